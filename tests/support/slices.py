"""The repetitive tests of one run of ``make test``: other variants each day, all of them in a week or two.

A test that repeats one scenario with many seeds, versions or directions has the marker ``soak``. Its first argument
says how many of its variants a run has; with 0 only ``make soak`` has the test. Variants are all combinations of the
test's parameters that have the marker; with ``of`` the values of this parameter, for each combination of the others;
with ``among`` all tests of the file that have the same text there. ``make soak`` runs all of them.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Hashable, Sequence
from typing import Any, Final, TypeVar

from gantrymq.testing.simulated.seeds import COUNT_VARIABLE, ONE_VARIABLE

WHOLE_VARIABLE: Final = "GANTRYMQ_SOAK"
"""``true``: every variant, as ``make soak`` has it."""
NUMBER_VARIABLE: Final = "GANTRYMQ_SLICE"
"""The number of the slice to run, instead of the day's."""
DAY_S: Final = 24 * 3600

_V = TypeVar("_V", bound=Hashable)


def is_whole() -> bool:
    """Whether this run has every variant: also when the environment says which seeds of simulations to run."""
    return os.environ.get(WHOLE_VARIABLE) == "true" or COUNT_VARIABLE in os.environ or ONE_VARIABLE in os.environ


def slice_number() -> int:
    """The number of this run's slice: the days since 1970, unless the environment has one.

    Raises ValueError when the environment has something else than a number.
    """
    given = os.environ.get(NUMBER_VARIABLE) or str(int(time.time() // DAY_S))
    if not given.isdecimal():
        raise ValueError(f"{NUMBER_VARIABLE} is the number of a slice, not {given!r}")
    return int(given)


def choose(variants: Sequence[_V], count: int, number: int, name: str = "") -> list[_V]:
    """``count`` of the variants, in their order and as far from each other as they can be: neighbors are alike. The
    next ``number`` has other ones, until each had its turn.

    ``name`` of the test: two tests do not begin with the same variant.
    """
    if count < 1:
        raise ValueError(f"a slice has one variant at least, not {count}")
    total = len(variants)
    count = min(count, total)
    first = (number + zlib.crc32(name.encode())) % -(-total // count)
    chosen = {(first + each * total // count) % total for each in range(count)}
    return [variant for at, variant in enumerate(variants) if at in chosen]


def split(items: Sequence[Any], number: int) -> tuple[list[Any], list[Any]]:
    """The tests that run, and those of other slices; ``items`` are pytest's, in their order."""
    groups: dict[tuple[str, str], list[Any]] = {}
    kept: dict[Any, int] = {}
    for item in items:
        if mark := item.get_closest_marker("soak"):
            (kept[item],) = mark.args
            groups.setdefault(_group(item, **mark.kwargs), []).append(item)
    left_out: set[Any] = set()
    for (name, _), variants in groups.items():
        count = kept[variants[0]]
        left_out.update(set(variants) - set(choose(variants, count, number, name) if count else ()))
    return [item for item in items if item not in left_out], [item for item in items if item in left_out]


def _group(item: Any, *, of: str | None = None, among: str | None = None) -> tuple[str, str]:
    """Its test, and its other parameters."""
    if among is not None:
        return item.nodeid.partition("::")[0], among
    test = item.nodeid.partition("[")[0]
    if of is None:
        return test, ""
    others = {name: value for name, value in item.callspec.params.items() if name != of}
    return test, repr(sorted(others.items()))

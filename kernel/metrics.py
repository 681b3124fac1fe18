"""The numbers of one moment, as plugins tell them when somebody asks (hook ``collect_metrics``).

Names and kinds are Prometheus's: a gauge goes up and down, a counter only up until the broker starts again, and its
name ends in ``_total``. Nothing here knows who asks, or in which format it is told.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import attrs

Kind = Literal["gauge", "counter", "histogram"]
LabelValues = tuple[str, ...]

_NAME = re.compile(r"[a-z][a-z0-9_]*")


@attrs.frozen
class Distribution:
    """A histogram's series: how many values were at most each bound, the last of them infinite, and their sum."""

    buckets: Sequence[tuple[float, int]]
    total: float


@attrs.define
class Family:
    """All series of one name. ``label_names``: of every one of them, in the order of their values."""

    name: str
    kind: Kind
    text: str
    label_names: tuple[str, ...]
    series: dict[LabelValues, float | Distribution] = attrs.field(factory=dict)


class Metrics:
    """What is told at one moment: at most ``series_max`` series.

    Each family keeps the first ones that it is given; :meth:`cut` then takes from the largest families what is too
    much in all, so that what has few series keeps them.
    """

    def __init__(self, series_max: int) -> None:
        self.families: dict[str, Family] = {}
        self.dropped = 0
        """How many series were left out."""
        self._series_max = series_max
        self._later: list[Callable[[], None]] = []

    def gauge(self, name: str, text: str, value: float, **labels: str | bool) -> None:
        """A number of now. ``text`` says in a sentence what it is, with its unit; of a name, the first text counts.

        All series of a name have the same labels and one kind: else :class:`ValueError`. Of equal series the last
        value counts.
        """
        self._put("gauge", name, text, value, labels)

    def counter(self, name: str, text: str, value: float, **labels: str | bool) -> None:
        """What there was in all, since the broker was started. The name ends in ``_total``. Else as :meth:`gauge`."""
        if not name.endswith("_total"):
            raise ValueError(f"the name of a counter ends in _total: {name!r}")
        self._put("counter", name, text, value, labels)

    def histogram(
        self, name: str, text: str, bounds: Sequence[float], counts: Sequence[int], total: float, **labels: str | bool
    ) -> None:
        """``counts``: how many values lay between each bound and the one before, and how many above the last one.

        ``total``: the sum of all values. Else as :meth:`gauge`.
        """
        if len(counts) != len(bounds) + 1:
            raise ValueError(f"{name}: {len(bounds)} bounds part {len(bounds) + 1} counts, not {len(counts)}")
        buckets, passed = [], 0
        for bound, count in zip((*bounds, float("inf")), counts, strict=True):
            passed += count
            buckets.append((bound, passed))
        self._put("histogram", name, text, Distribution(buckets, total), labels)

    def later(self, work: Callable[[], None]) -> None:
        """Let ``work`` be called in a worker thread when all plugins have told what they know at once.

        It may read the disk, wait for it, and tell more; what it uses of the broker must be safe for any thread.
        """
        self._later.append(work)

    def work(self) -> Iterable[Callable[[], None]]:
        """What was put off, to be called one by one."""
        return tuple(self._later)

    def cut(self) -> None:
        """Leave out what is too much in all, where most is."""
        left, families = self._series_max, sorted(self.families.values(), key=lambda family: len(family.series))
        for number, family in enumerate(families):
            share = left // (len(families) - number)
            for values in list(family.series)[share:]:
                del family.series[values]
                self.dropped += 1
            left -= len(family.series)

    def _put(
        self, kind: Kind, name: str, text: str, value: float | Distribution, labels: dict[str, str | bool]
    ) -> None:
        family = self.families.get(name)
        if family is None:
            if not _NAME.fullmatch(name):
                raise ValueError(f"not the name of a metric: {name!r}")
            family = self.families[name] = Family(name, kind, text, tuple(labels))
        if family.kind != kind or family.label_names != tuple(labels):
            raise ValueError(
                f"{name} is a {family.kind} with the labels {family.label_names}, not a {kind} with {tuple(labels)}"
            )
        values = tuple(str(label).lower() if isinstance(label, bool) else label for label in labels.values())
        if values not in family.series and len(family.series) >= self._series_max:
            self.dropped += 1
        else:
            family.series[values] = value

"""The ids of a local cluster's brokers, from one start to the next.

A broker keeps its folder, but ``gantrymq cluster promote`` can change its id while it runs. The new id is in its store
(``config/overrides.toml``), which the old master does not know; only this module sees both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from gantrymq.cli.failures import CommandFailed
from gantrymq.kernel.env.system import SystemEnv
from gantrymq.kernel.errors import StartError
from gantrymq.plugins.admin.overrides import Overrides

SECTION, KEY = "broker", "id"


def changed_numbers(folder: Path, labels: Sequence[str]) -> dict[str, int]:
    """The numbers that brokers were given at run time, by the names of their folders; the latest change comes first.

    :class:`CommandFailed` for a file that cannot be read.
    """
    found = []
    for label in labels:
        overrides = _overrides(folder / label)
        number = overrides.get(SECTION, KEY)
        if isinstance(number, int):
            found.append((Path(overrides.path).stat().st_mtime_ns, label, number))
    return {label: number for _, label, number in sorted(found, reverse=True)}


def forget_changes(folder: Path, labels: Sequence[str]) -> None:
    """Remove the ids from the stores: they are now in the files with which the cluster starts its brokers."""
    for label in labels:
        _overrides(folder / label).take_out(SECTION, KEY)


def numbers_of(labels: Sequence[str], before: Mapping[str, int], changed: Mapping[str, int]) -> dict[str, int]:
    """A distinct number for each broker of one name: the changed one, else the previous one, else the lowest free
    one."""
    numbers: dict[str, int] = {}
    for wanted in (changed, before):
        for label, number in wanted.items():
            if label in labels and label not in numbers and number not in numbers.values():
                numbers[label] = number
    for label in labels:
        if label not in numbers:
            numbers[label] = next(number for number in range(len(labels) + 1) if number not in numbers.values())
    return numbers


def _overrides(store: Path) -> Overrides:
    try:
        return Overrides(SystemEnv(), str(store))
    except StartError as error:
        raise CommandFailed(str(error)) from None

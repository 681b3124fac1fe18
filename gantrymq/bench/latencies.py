"""Counts of microseconds in bounded memory, and percentiles of them."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping

KEYS_MAX = 50_000
NEW_MAX = 4096
EXACT = 65_536
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}


class Latencies:
    """Exact to the microsecond until there are too many distinct values; then to three digits."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._new: list[int] = []
        self._exact: array[int] = array("q")

    @property
    def exact(self) -> array[int]:
        """The count of each time below ``EXACT`` that was not counted otherwise, for compiled code to increment."""
        if not self._exact:
            self._exact = array("q", bytes(8 * EXACT))
        return self._exact

    def add(self, microseconds: list[int]) -> None:
        """Count several times."""
        self._new += microseconds
        if len(self._new) >= NEW_MAX:
            self._take()

    def add_one(self, microseconds: int) -> None:
        """Count one time."""
        self._new.append(microseconds)
        if len(self._new) >= NEW_MAX:
            self._take()

    def merge(self, counts: Mapping[int, int]) -> None:
        """Add the counts of another instance."""
        for microseconds, count in counts.items():
            self._counts[microseconds] += count

    @property
    def counts(self) -> Counter[int]:
        """Return the count of each time."""
        for microseconds, count in enumerate(self._exact):
            if count:
                self._counts[microseconds] += count
                self._exact[microseconds] = 0
        self._take()
        return self._counts

    def _take(self) -> None:
        self._counts.update(self._new)
        self._new.clear()
        if len(self._counts) > KEYS_MAX:
            self._counts = rounded(self._counts)

    def summary(self) -> dict[str, int]:
        """Return microseconds by name: p50, p90, p99, p99.9 and max; empty without counts."""
        return percentiles(self.counts)


def rounded(counts: Mapping[int, int]) -> Counter[int]:
    """Return the same counts with three digits of each time, rounded up so that no time looks better than it was."""
    result: Counter[int] = Counter()
    for microseconds, count in counts.items():
        unit = 10 ** max(0, len(str(microseconds)) - 3)
        result[-(-microseconds // unit) * unit] += count
    return result


def percentiles(counts: Mapping[int, int], wanted: Mapping[str, float] = PERCENTILES) -> dict[str, int]:
    """Return the percentiles by name, and ``max``."""
    total = sum(counts.values())
    if not total:
        return {}
    found: dict[str, int] = {}
    waiting = sorted(wanted.items(), key=lambda item: item[1])
    seen = 0
    for microseconds in sorted(counts):
        seen += counts[microseconds]
        while waiting and seen >= waiting[0][1] * total:
            found[waiting.pop(0)[0]] = microseconds
    return found | {"max": max(counts)}


def microseconds_text(values: Iterable[tuple[str, int]]) -> str:
    """Return text such as ``p50 102 us  p99 1.3 ms``, each time with a suitable unit."""
    return "  ".join(f"{name} {_text(value)}" for name, value in values)


def _text(microseconds: int) -> str:
    if microseconds < 1000:
        return f"{microseconds} us"
    if microseconds < 1_000_000:
        return f"{microseconds / 1000:.3g} ms" if microseconds < 999_500 else "1 s"
    return f"{microseconds / 1_000_000:.3g} s"

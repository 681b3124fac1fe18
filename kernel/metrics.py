"""One collection of metrics, which plugins fill on request (hook ``collect_metrics``).

Names and kinds are Prometheus's: a gauge goes up and down; a counter only goes up until the broker restarts, and its
name ends in ``_total``. This module does not depend on the output format.
"""

from __future__ import annotations

import re
from bisect import bisect_left
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
    """All series of one name. ``label_names``: the labels of each series, in the order of their values."""

    name: str
    kind: Kind
    text: str
    label_names: tuple[str, ...]
    series: dict[LabelValues, float | Distribution] = attrs.field(factory=dict)


class Buckets:
    """Values for :meth:`Metrics.histogram`: ``counts`` of them between the ``bounds``, and the ``total`` of all."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count ``value``. A value equal to a bound belongs below it."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Metrics:
    """One collection of at most ``series_max`` series.

    Each family keeps its first series; :meth:`cut` then removes the excess from the largest families, so that small
    families keep their series.
    """

    def __init__(self, series_max: int) -> None:
        self.families: dict[str, Family] = {}
        self.dropped = 0
        """How many series were left out."""
        self._series_max = series_max
        self._later: list[Callable[[], None]] = []

    def gauge(self, name: str, text: str, value: float, **labels: object) -> None:
        """A present value. ``text`` describes it in a sentence, with its unit; the first text of a name is used.

        All series of a name must have the same labels and kind, else :class:`ValueError`. The last value of equal
        series is used. A label may be a text, a number or a bool. A value that is not a number raises ``TypeError`` or
        :class:`ValueError`.
        """
        self._put("gauge", name, text, _number(value), labels)

    def counter(self, name: str, text: str, value: float, **labels: object) -> None:
        """A total since the broker's start. The name ends in ``_total``. Otherwise as :meth:`gauge`."""
        if not name.endswith("_total"):
            raise ValueError(f"the name of a counter ends in _total: {name!r}")
        self._put("counter", name, text, _number(value), labels)

    def histogram(
        self, name: str, text: str, bounds: Sequence[float], counts: Sequence[int], total: float, **labels: object
    ) -> None:
        """``counts``: the number of values between each bound and the previous one, and above the last one.

        ``total``: the sum of all values. Otherwise as :meth:`gauge`.
        """
        if len(counts) != len(bounds) + 1:
            raise ValueError(f"{name}: {len(bounds)} bounds need {len(bounds) + 1} counts, not {len(counts)}")
        buckets, passed = [], 0
        for bound, count in zip((*bounds, float("inf")), counts, strict=True):
            passed += count
            buckets.append((float(bound), passed))
        self._put("histogram", name, text, Distribution(buckets, float(total)), labels)

    def later(self, work: Callable[[], None]) -> None:
        """Call ``work`` in a worker thread after all plugins have added their immediate metrics.

        It may wait for the disk and add metrics; what it uses of the broker must be thread-safe.
        """
        self._later.append(work)

    def work(self) -> Iterable[Callable[[], None]]:
        """Return the postponed functions, to be called one by one."""
        return tuple(self._later)

    def cut(self) -> None:
        """Remove excess series from the largest families."""
        left, families = self._series_max, sorted(self.families.values(), key=lambda family: len(family.series))
        for number, family in enumerate(families):
            share = left // (len(families) - number)
            for values in list(family.series)[share:]:
                del family.series[values]
                self.dropped += 1
            left -= len(family.series)

    def _put(self, kind: Kind, name: str, text: str, value: float | Distribution, labels: dict[str, object]) -> None:
        family = self.families.get(name)
        if family is None:
            if not _NAME.fullmatch(name):
                raise ValueError(f"not the name of a metric: {name!r}")
            wrong = [label for label in labels if not _NAME.fullmatch(label)]
            if wrong:
                raise ValueError(f"{name}: not the name of a label: {wrong[0]!r}")
            family = self.families[name] = Family(name, kind, _as_text(text), tuple(labels))
        if family.kind != kind or family.label_names != tuple(labels):
            raise ValueError(
                f"{name} is a {family.kind} with the labels {family.label_names}, not a {kind} with {tuple(labels)}"
            )
        values = tuple(map(_as_text, labels.values()))
        if values not in family.series and len(family.series) >= self._series_max:
            self.dropped += 1
        else:
            family.series[values] = value


def _number(value: float) -> float:
    """An integer as it is, anything else as ``float``: what is not a number must fail here, in the plugin's call."""
    number = float(value)
    return value if isinstance(value, int) else number


def _as_text(value: object) -> str:
    """``value`` as a text that can be encoded."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if text.isascii() else text.encode(errors="replace").decode()

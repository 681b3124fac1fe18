"""Single figures other than the throughput of a scenario: a time, a size, or a share, for each system."""

from __future__ import annotations

import statistics

import attrs

NO_MERIT = ("%", "times", "")
"""Units of figures that describe circumstances: a higher value is neither better nor worse."""


@attrs.define
class Figure:
    """One line of a section. ``values`` by system, one for each round; ``goal`` is ours to stay at or below,
    or to reach where more is better (in ``unit``), or 0; ``ratio_goal`` how many times better than Java's value ours
    has to be, or 0."""

    group: str
    what: str
    unit: str
    less_is_better: bool = True
    goal: float = 0.0
    ratio_goal: float = 0.0
    values: dict[str, list[float]] = attrs.field(factory=dict)

    def median(self, system: str) -> float | None:
        """Return the median of all rounds, None without rounds."""
        found = self.values.get(system)
        return statistics.median(found) if found else None

    def text(self, system: str) -> str:
        """Return the median with its unit."""
        value = self.median(system)
        return "-" if value is None else f"{_number(value)} {self.unit}".strip()

    @property
    def ratio(self) -> float | None:
        """How many times better ours is than Java's; None if either is missing."""
        ours, theirs = self.median("gantrymq"), self.median("java")
        if not ours or not theirs:
            return None
        return theirs / ours if self.less_is_better else ours / theirs

    @property
    def verdict(self) -> str:
        """A verdict in one word; empty without two values to compare, and for a circumstance."""
        ours, theirs = self.median("gantrymq"), self.median("java")
        text = []
        if ours is not None and theirs is not None and self.unit not in NO_MERIT and not self.what.startswith("bare "):
            better = ours < theirs if self.less_is_better else ours > theirs
            text.append("equal" if ours == theirs else "better" if better else "WORSE")
        if self.ratio is not None and self.ratio_goal:
            reached = self.ratio >= self.ratio_goal
            text.append(
                f"{self.ratio:.2f} times, goal >= {self.ratio_goal:g} times: {'reached' if reached else 'MISSED'}"
            )
        if ours is not None and self.goal:
            sign, reached = ("<=", ours <= self.goal) if self.less_is_better else (">=", ours >= self.goal)
            text.append(f"goal {sign} {self.goal:g} {self.unit}: {'reached' if reached else 'MISSED'}")
        return "; ".join(text)


@attrs.define
class Figures:
    """All figures, in the order in which they were added."""

    found: list[Figure] = attrs.field(factory=list)

    def add(
        self, group: str, what: str, unit: str, system: str, value: float, *, more_is_better: bool = False,
        goal: float = 0.0, ratio_goal: float = 0.0,
    ) -> None:  # fmt: skip
        """Add one system's value of one round."""
        for each in self.found:
            if (each.group, each.what) == (group, what):
                break
        else:
            each = Figure(group, what, unit, not more_is_better, goal, ratio_goal)
            self.found.append(each)
        each.values.setdefault(system, []).append(value)

    def of(self, group: str) -> list[Figure]:
        """Return the figures of one section."""
        return [each for each in self.found if each.group == group]


def _number(value: float) -> str:
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"

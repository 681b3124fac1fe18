"""Medians and ratios of all results: tables, verdicts, and plain values for JSON."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import attrs
from figures import Figures
from measuring import CEILING_GOOD, MIB, Round, Timing
from scenarios import GROUPS, Scenario

from gantrymq.kernel.fast import KIND

SYSTEMS = ("gantrymq", "java")
TIMES = ("p50", "p99", "p99.9", "max")
COST_GOAL = 0.2
"""The share of Java's processor time for a message that ours may take at most."""
Table = tuple[tuple[str, ...], list[tuple[str, ...]]]


@attrs.define
class Report:
    """All results. ``ceilings`` are messages a second by scenario; ``others`` are those of further systems by name,
    each with a line in ``versions``; ``costs_of_others`` is their processor time in microseconds for each message.
    ``notes`` list what was left out or failed; ``took`` is the duration in seconds."""

    scenarios: Sequence[Scenario]
    timing: Timing
    load_before: float
    folder: str
    rounds: list[Round] = attrs.field(factory=list)
    ceilings: dict[str, float] = attrs.field(factory=dict)
    others: dict[str, dict[str, list[float]]] = attrs.field(factory=dict)
    costs_of_others: dict[str, dict[str, list[float]]] = attrs.field(factory=dict)
    versions: dict[str, str] = attrs.field(factory=dict)
    figures: Figures = attrs.field(factory=Figures)
    notes: list[str] = attrs.field(factory=list)
    took: float = 0.0

    def rates(self, system: str, name: str) -> list[float]:
        """Messages a second of each round."""
        return [each.outcomes[name].rate for each in self.rounds if each.system == system and name in each.outcomes]

    def times(self, system: str, name: str, which: str) -> list[int]:
        """Return one percentile of each round, in microseconds."""
        found = [
            each.outcomes[name].latencies for each in self.rounds if each.system == system and name in each.outcomes
        ]
        return [latencies[which] for latencies in found if which in latencies]

    def of_group(self, group: str) -> list[Scenario]:
        """Return a section's scenarios that were measured."""
        return [each for each in self.scenarios if group in each.groups and self.rates("gantrymq", each.name)]

    def count(self, scenarios: Iterable[Scenario]) -> int:
        """In how many rounds they were measured."""
        return max((len(self.rates("gantrymq", scenario.name)) for scenario in scenarios), default=0)

    def table(self, scenarios: Sequence[Scenario]) -> Table:
        """Columns and rows: medians of the rates, their ratio and its goal, times, and what the generator used."""
        others = [name for name, found in self.others.items() if any(each.name in found for each in scenarios)]
        columns = ["scenario", "gantrymq/s", "java/s", "ratio", "goal", *(f"{name}/s" for name in others)]
        columns += [*(f"{which} us" for which in TIMES), "ceiling/s", "generator"]
        rows = []
        for scenario in scenarios:
            ours, theirs = self.rates("gantrymq", scenario.name), self.rates("java", scenario.name)
            cells = [scenario.name, _rate(ours), _rate(theirs), _ratio_text(ours, theirs), _goal_text(scenario)]
            cells += [_rate(self.others[name].get(scenario.name, [])) for name in others]
            for which in TIMES:
                pair = [self.times(system, scenario.name, which) for system in SYSTEMS]
                cells.append(" / ".join(f"{statistics.median(found):,.0f}" if found else "-" for found in pair))
            cells += [self._ceiling(scenario.name), self._generator(scenario.name)]
            rows.append(tuple(cells))
        return tuple(columns), rows

    def cost_table(self, scenarios: Sequence[Scenario]) -> Table:
        """Columns and rows: processor time for each message in microseconds, user and system time of all threads, the
        share of Java's, and its goal; no rows where nothing was measured."""
        others = [name for name, found in self.costs_of_others.items() if any(each.name in found for each in scenarios)]
        columns = ("scenario", "gantrymq us", "java us", "of java's", "goal", *(f"{name} us" for name in others))
        rows = []
        for scenario in scenarios:
            ours, theirs = (self.costs(system, scenario.name) for system in SYSTEMS)
            if not ours:
                continue
            share = ratio_of(ours, theirs)
            verdict = "-"
            if share is not None:
                verdict = f"<= {COST_GOAL:g}: {'reached' if share <= COST_GOAL else 'MISSED'}"
            cells = [scenario.name, _cost(ours), _cost(theirs), "-" if share is None else f"{share:.2f}", verdict]
            cells += [_cost(self.costs_of_others[name].get(scenario.name, [])) for name in others]
            rows.append(tuple(cells))
        return columns, rows

    def goal_table(self) -> Table:
        """Columns and rows: each goal that compares us with another system, and how it ended; a row without a
        result stays, because a goal that is not measured is not reached."""
        rows = []
        for scenario in self.scenarios:
            goals = {"java": _goal(scenario), **(scenario.goals_of_others if KIND != "plain" else {})}
            ours = self.rates("gantrymq", scenario.name)
            for system, goal in goals.items():
                if goal is None:
                    continue
                theirs = self.rates(system, scenario.name) or self.others.get(system, {}).get(scenario.name, [])
                result = _against(goal, ratio_of(ours, theirs))
                rows.append((scenario.name, f"{_rate(ours)}/s", system, f"{_rate(theirs)}/s", f">= {goal:g}", *result))
        for figure in self.figures.found:
            if figure.ratio_goal:
                texts = figure.text("gantrymq"), "java", figure.text("java")
                rows.append(
                    (figure.what, *texts, f">= {figure.ratio_goal:g}", *_against(figure.ratio_goal, figure.ratio))
                )
        return ("row", "ours", "beside", "theirs", "goal", "times better", "result"), rows

    def costs(self, system: str, name: str) -> list[float]:
        """Microseconds of processor time for each message, of each round."""
        return [each.costs[name] for each in self.rounds if each.system == system and name in each.costs]

    def figure_table(self, group: str) -> Table:
        """Columns and rows of a section's single figures; no rows where there are none."""
        found = self.figures.of(group)
        others = dict.fromkeys(system for figure in found for system in figure.values if system not in SYSTEMS)
        systems = (*SYSTEMS, *others)
        rows = [(figure.what, *(figure.text(system) for system in systems), figure.verdict or "-") for figure in found]
        return ("what", *systems, "ours"), rows

    def verdicts(self, scenarios: Sequence[Scenario]) -> list[str]:
        """Return a sentence for each row: won or lost, reached or missed."""
        found = []
        for scenario in scenarios:
            ratio = ratio_of(self.rates("gantrymq", scenario.name), self.rates("java", scenario.name))
            if ratio is None:
                continue
            goal = _goal(scenario)
            text = f"{scenario.name}: {'faster' if ratio >= 1 else 'SLOWER'} than the Java broker, {ratio:.2f} times"
            if goal is not None:
                text += f"; the goal is {goal:g}: {'reached' if ratio >= goal else 'MISSED'}"
            if scenario.is_alone:
                pair = [self.times(system, scenario.name, "p99") for system in SYSTEMS]
                if all(pair):
                    lower = statistics.median(pair[0]) < statistics.median(pair[1])
                    text += f"; its p99 is {'lower' if lower else 'HIGHER'} than Java's"
            found.append(text)
        return found

    def limited(self, scenarios: Sequence[Scenario]) -> list[str]:
        """Return the names of the scenarios whose rate is too close to the generator's ceiling."""
        return [each.name for each in scenarios if self._is_limited(each.name)]

    def memory_and_start(self) -> Table:
        """Name, ours, theirs: of the budget's rounds, or of all rounds if there are none."""
        rounds = [each for each in self.rounds if each.budget] or self.rounds
        rows: list[tuple[str, ...]] = []
        for what, pick in (("idle", "idle"), ("under the loads of the first table", "loaded")):
            cells = []
            for system in SYSTEMS:
                found = [both for each in rounds if each.system == system and any(both := getattr(each, pick))]
                both = [statistics.median(column) / MIB for column in zip(*found, strict=True)]
                cells.append(f"{both[0]:,.0f} MiB, {both[1]:,.0f} of it no file" if both else "-")
            rows.append((f"resident memory, {what}", *cells))
        starts = []
        for system in SYSTEMS:
            seconds = [each.first_message for each in rounds if each.system == system and each.first_message]
            starts.append(f"{statistics.median(seconds):.2f} s" if seconds else "-")
        rows.append(("start to first acknowledged message", *starts))
        return ("what", *SYSTEMS), rows

    def spread(self) -> Table:
        """The rate of each round, for scenarios that ran in several."""
        rows = [
            (scenario.name, *(_all(self.rates(system, scenario.name)) for system in SYSTEMS))
            for scenario in self.scenarios
            if self.count([scenario]) > 1
        ]
        return ("scenario", "gantrymq/s", "java/s"), rows

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain values: each scenario's outcomes, round by round, and each figure's values."""
        return {
            "timing": attrs.asdict(self.timing),
            "load_before": self.load_before,
            "took_seconds": self.took,
            "versions": self.versions,
            "notes": self.notes,
            "scenarios": [
                {
                    **attrs.asdict(scenario),
                    "goal": _goal(scenario),
                    "ceiling": self.ceilings.get(scenario.name),
                    "costs_of_others": {name: found[scenario.name] for name, found in self.costs_of_others.items()
                                        if scenario.name in found},
                    "others": {name: found[scenario.name] for name, found in self.others.items()
                               if scenario.name in found},
                    "rounds": [
                        {"system": each.system, **each.outcomes[scenario.name].as_json(),
                         "broker_us_per_message": each.costs.get(scenario.name)}
                        for each in self.rounds
                        if scenario.name in each.outcomes
                    ],
                }
                for scenario in self.scenarios
            ],
            "starts": [
                {"system": each.system, "flush": each.flush, "first_message_seconds": each.first_message,
                 "idle_bytes": each.idle, "loaded_bytes": each.loaded}
                for each in self.rounds
            ],
            "figures": [attrs.asdict(figure) for figure in self.figures.found],
        }  # fmt: skip

    def _is_limited(self, name: str) -> bool:
        rates = [statistics.median(found) for system in SYSTEMS if (found := self.rates(system, name))]
        ceiling = self.ceilings.get(name, 0.0)
        return bool(ceiling and rates and ceiling < CEILING_GOOD * max(rates))

    def _ceiling(self, name: str) -> str:
        ceiling = self.ceilings.get(name, 0.0)
        return (f"{ceiling:,.0f}" + (" LIMITS" if self._is_limited(name) else "")) if ceiling else "-"

    def _generator(self, name: str) -> str:
        shares = []
        processes = 1
        for system in SYSTEMS:
            found = [each.outcomes[name] for each in self.rounds if each.system == system and name in each.outcomes]
            shares.append(f"{statistics.median([each.cpu for each in found]):.2f}" if found else "-")
            processes = max([processes, *(each.processes for each in found)])
        return " / ".join(shares) + (f", {processes} processes" if processes > 1 else "")


def figure_lines(groups: Iterable[str], figures: Figures) -> list[str]:
    """Return a sentence for each figure that has a verdict."""
    return [
        f"{GROUPS[group]}: {each.what}: {each.text('gantrymq')}, Java {each.text('java')}: {each.verdict}"
        for group in groups
        for each in figures.of(group)
        if each.verdict
    ]


def ratio_of(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """The ratio of the medians; None if either is missing."""
    return statistics.median(ours) / statistics.median(theirs) if ours and theirs else None


def _goal(scenario: Scenario) -> float | None:
    return scenario.plain_goal if KIND == "plain" else scenario.goal


def _against(goal: float, ratio: float | None) -> tuple[str, str]:
    """Return the ratio and the verdict."""
    if ratio is None:
        return "-", "not measured"
    return f"{ratio:.2f}", "reached" if ratio >= goal else "MISSED"


def _goal_text(scenario: Scenario) -> str:
    goal = _goal(scenario)
    return "-" if goal is None else f">= {goal:g}"


def _ratio_text(ours: Sequence[float], theirs: Sequence[float]) -> str:
    ratio = ratio_of(ours, theirs)
    return "-" if ratio is None else f"{ratio:.2f}"


def _rate(found: Sequence[float]) -> str:
    return f"{statistics.median(found):,.0f}" if found else "-"


def _cost(found: Sequence[float]) -> str:
    return f"{statistics.median(found):.2f}" if found else "-"


def _all(found: Sequence[float]) -> str:
    return "  ".join(f"{each:,.0f}" for each in found) or "-"

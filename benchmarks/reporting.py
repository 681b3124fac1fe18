"""Medians and ratios of all rounds, as a table and as the page RESULTS.md."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import attrs
from measuring import Round
from scenarios import Scenario
from systems import JAVA_VERSION, java_memory, memory_bytes

from gantrymq._version import __version__
from gantrymq.cli.checkup import fdatasync
from gantrymq.kernel.fast import KIND

MIB = 2**20
ROOT = Path(__file__).resolve().parents[1]


@attrs.define
class Report:
    """All that was measured. ``ceilings`` and ``redis`` are messages a second by scenario."""

    scenarios: Sequence[Scenario]
    seconds: float
    warm: float
    load_before: float
    folder: str
    rounds: list[Round] = attrs.field(factory=list)
    ceilings: dict[str, float] = attrs.field(factory=dict)
    redis: dict[str, list[float]] = attrs.field(factory=dict)
    redis_version: str = ""

    def rates(self, system: str, name: str) -> list[float]:
        """Messages a second of each round."""
        return [each.outcomes[name].rate for each in self.rounds if each.system == system and name in each.outcomes]

    def times(self, system: str, name: str, which: str) -> list[int]:
        """One percentile of each round, in microseconds."""
        found = [
            each.outcomes[name].latencies for each in self.rounds if each.system == system and name in each.outcomes
        ]
        return [latencies[which] for latencies in found if which in latencies]

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Columns and rows: medians of the rates, their ratio and its goal, times, and what the generator used."""
        columns = ["scenario", "gantrymq/s", "java/s", "ratio", "goal", "p50 us", "p99 us", "ceiling/s", "generator"]
        if self.redis:
            columns.insert(5, "redis/s")
        rows = []
        for scenario in self.scenarios:
            ours, theirs = self.rates("gantrymq", scenario.name), self.rates("java", scenario.name)
            cells = [scenario.name, _rate(ours), _rate(theirs), _ratio_text(ours, theirs), _goal_text(scenario)]
            if self.redis:
                cells.append(_rate(self.redis.get(scenario.name, [])))
            for which in ("p50", "p99"):
                pair = [self.times(system, scenario.name, which) for system in ("gantrymq", "java")]
                cells.append(" / ".join(f"{statistics.median(found):,.0f}" if found else "-" for found in pair))
            ceiling = self.ceilings.get(scenario.name, 0.0)
            cells += [f"{ceiling:,.0f}" if ceiling else "-", self._generator(scenario.name)]
            rows.append(tuple(cells))
        return tuple(columns), rows

    def verdicts(self) -> list[str]:
        """A sentence for each row: won or lost, reached or missed."""
        found = []
        for scenario in self.scenarios:
            ratio = _ratio(self.rates("gantrymq", scenario.name), self.rates("java", scenario.name))
            if ratio is None:
                continue
            goal = _goal(scenario)
            told = f"{scenario.name}: {'faster' if ratio >= 1 else 'SLOWER'} than the Java broker, {ratio:.2f} times"
            if goal is not None:
                told += f"; the goal is {goal:g}: {'reached' if ratio >= goal else 'MISSED'}"
            if scenario.is_alone:
                pair = [self.times(system, scenario.name, "p99") for system in ("gantrymq", "java")]
                if all(pair):
                    lower = statistics.median(pair[0]) < statistics.median(pair[1])
                    told += f"; its p99 is {'lower' if lower else 'HIGHER'} than Java's"
            found.append(told)
        return found

    def memory_and_start(self) -> list[tuple[str, ...]]:
        """Rows: what, ours, theirs."""
        rows: list[tuple[str, ...]] = []
        for what, pick in (("idle", "idle"), ("under the loads above", "loaded")):
            cells = []
            for system in ("gantrymq", "java"):
                found = [getattr(each, pick) for each in self.rounds if each.system == system]
                both = [statistics.median(column) / MIB for column in zip(*found, strict=True)]
                cells.append(f"{both[0]:,.0f} MiB, {both[1]:,.0f} of it no file" if both else "-")
            rows.append((f"resident memory, {what}", *cells))
        starts = []
        for system in ("gantrymq", "java"):
            seconds = [each.first_message for each in self.rounds if each.system == system]
            starts.append(f"{statistics.median(seconds):.2f} s" if seconds else "-")
        rows.append(("start to first acknowledged message", *starts))
        return rows

    def page(self) -> str:
        """The whole of RESULTS.md."""
        columns, rows = self.table()
        count = max((len(self.rates("gantrymq", scenario.name)) for scenario in self.scenarios), default=0)
        parts = [
            "# Results",
            "Written by `make bench`; do not edit. How to read and repeat it: [the how-to](../docs/howto/bench.md).",
            "\n".join(f"- {line}" for line in self.circumstances(count)),
            "## Throughput and times",
            f"Medians of {_rounds(count)}. Times are ours / Java's, from a request to its answer.",
            markdown(columns, rows),
            "## Won and lost",
            "\n".join(f"- {line}" for line in self.verdicts()) or "There was no Java broker to compare with.",
            "## Memory and start",
            markdown(("what", "gantrymq", "java"), self.memory_and_start()),
            "## Every round",
            markdown(("scenario", "gantrymq/s", "java/s"), self._spread()),
        ]
        return "\n\n".join(parts) + "\n"

    def circumstances(self, count: int) -> list[str]:
        """Date, machine, versions, settings."""
        lines = [
            time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
            f"{_processor()}, {os.cpu_count()} cores, {memory_bytes() / 2**30:.0f} GiB, Linux {platform.release()}",
            f"fdatasync of a page in {self.folder}: {fdatasync(self.folder).found}",
            f"load of the machine before: {self.load_before:.2f}",
            f"GantryMQ {__version__}{_revision()}, hot path {KIND}, Python {platform.python_version()}",
            f"Apache RocketMQ {JAVA_VERSION}, {_java()}, {' '.join(java_memory())}",
            f"{_rounds(count)}, {self.seconds:g} s each scenario after a warm-up of {self.warm:g} s and 1 s for each",
        ]
        return [*lines, f"Redis {self.redis_version}, XADD by redis-benchmark"] if self.redis else lines

    def _generator(self, name: str) -> str:
        shares = []
        for system in ("gantrymq", "java"):
            found = [each.outcomes[name].cpu for each in self.rounds if each.system == system and name in each.outcomes]
            shares.append(f"{statistics.median(found):.2f}" if found else "-")
        return " / ".join(shares)

    def _spread(self) -> list[tuple[str, ...]]:
        return [
            (scenario.name, *(_all(self.rates(system, scenario.name)) for system in ("gantrymq", "java")))
            for scenario in self.scenarios
        ]


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as Markdown has it."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _rounds(count: int) -> str:
    return "1 round" if count == 1 else f"{count} alternating rounds"


def _goal(scenario: Scenario) -> float | None:
    return scenario.plain_goal if KIND == "plain" else scenario.goal


def _goal_text(scenario: Scenario) -> str:
    goal = _goal(scenario)
    return "-" if goal is None else f">= {goal:g}"


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    return statistics.median(ours) / statistics.median(theirs) if ours and theirs else None


def _ratio_text(ours: Sequence[float], theirs: Sequence[float]) -> str:
    ratio = _ratio(ours, theirs)
    return "-" if ratio is None else f"{ratio:.2f}"


def _rate(found: Sequence[float]) -> str:
    return f"{statistics.median(found):,.0f}" if found else "-"


def _all(found: Sequence[float]) -> str:
    return "  ".join(f"{each:,.0f}" for each in found) or "-"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _revision() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return f" ({done.stdout.strip()})" if done.returncode == 0 else ""


def _java() -> str:
    try:
        done = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False)
    except OSError:
        return "no Java"
    return done.stderr.partition("\n")[0]

"""One run of ``make bench``: measures the chosen scenarios and groups on every system, and reports them."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import attrs
import kafka
import nats
import streams
from arguments import Arguments
from kafka_clients import measure_kafka_clients
from measuring import CEILING_GOOD, Failed, Round, ceiling, measure
from page import ROOT, write_page
from page_cache import filler
from reporting import Report, figure_lines
from scenarios import Scenario
from spark_rows import measure_spark_with_kafka
from special_groups import SPECIAL
from systems import INTEROP, JAVA_VERSION, Setup, start, start_seconds

from gantrymq.bench.running import default_processes
from gantrymq.cli.tables import print_table
from gantrymq.remoting.errors import GantryError
from support.foreign import ToolMissing, cache_folder, find_java
from support.processes import ChildFailed

QUIET_LOAD = 0.5
CEILING_SECONDS = 0.6
GAIN = 1.15
"""The generator gets more processes where they raise the ceiling by this factor."""
FLUSHES = ("async", "sync")
FAILURES = (Failed, ChildFailed, GantryError, OSError, RuntimeError)
"""What a system raises that is missing, refuses requests or ends during the run."""
FAILURES_OF_OTHERS = (ToolMissing, ChildFailed, OSError, RuntimeError, streams.SubprocessError)


class Server(Protocol):
    """A running server of another system."""

    def rate(self, scenario: Scenario, seconds: float) -> tuple[float, float]:
        """Messages a second, and microseconds of the server's processor time for each."""


@attrs.frozen
class Other:
    """A system with a protocol of its own, measured with its own tools."""

    name: str
    is_asked_for: Callable[[Arguments], bool]
    version_line: Callable[[], str]
    expresses: Callable[[Scenario], bool]
    start: Callable[[str], AbstractContextManager[Server]]
    is_in_rounds: bool = False
    """Whether it is measured in each round, just after the brokers: its goals compare rates that are close to each
    other, and a machine changes more than that within half an hour. The others are measured once, after the rounds."""


OTHERS = (
    Other(
        "Redis",
        lambda given: given.redis and streams.is_installed(),
        streams.version_line,
        lambda scenario: scenario.is_plain_send,
        streams.redis,
        is_in_rounds=True,
    ),
    Other("Kafka", lambda given: given.kafka, lambda: kafka.VERSION_LINE, kafka.expresses, kafka.kafka),
    Other("NATS", lambda given: given.nats, lambda: nats.VERSION_LINE, nats.expresses, nats.nats),
)


class Run:
    """One run: its systems, its report, and what failed in it."""

    def __init__(self, given: Arguments, scenarios: list[Scenario], special: list[str]) -> None:
        self.given = given
        self.began = time.monotonic()
        self.special = special
        self.failures: list[str] = []
        self.systems = _systems(given.java)
        self.processes: dict[str, int] = {}
        self.report = Report(scenarios, given.timing, os.getloadavg()[0], tempfile.gettempdir())
        self._fill: Callable[[], object] = lambda: None
        self.quiet = self.report.load_before < QUIET_LOAD
        if not self.quiet:
            print_progress(
                f"the machine is busy (load {self.report.load_before:.2f}): these numbers are not for keeping"
            )

    def measure(self) -> None:
        """Measure everything that was asked for. A whole run fills the page cache before each start."""
        if not (self.given.fill or self.given.is_whole):
            self._measure()
            return
        with filler() as self._fill:
            print_progress("fills the page cache")
            size = self._fill()
            self.report.notes.append(f"page cache filled with {size / 2**30:.1f} GiB of another file before each start")
            self._measure()

    def _measure(self) -> None:
        """Measure the ceilings, the rounds of the budget, one round of the wider scenarios, other systems, and the
        special groups."""
        if not streams.is_installed():
            print_progress("without Redis: redis-server and redis-benchmark are not installed")
        scenarios = self.report.scenarios
        in_rounds = [each for each in scenarios if each.groups[0] == "budget" and "budget" in self.given.groups]
        wider = [each for each in scenarios if each not in in_rounds]
        for scenario in scenarios:
            self._ceiling(scenario)
        for number in range(1, self.given.rounds + 1):
            self._round(in_rounds, number, budget=True)
        self._round(wider, 1, budget=False)
        self._others_once()
        for group in self.special:
            for measure_it in SPECIAL[group]:
                for system in self.systems:
                    self._special(group, system, measure_it)
        if self.given.kafka:
            seconds, rows = self.given.timing.seconds, self.given.sizes.spark_rows
            if "client" in self.special:
                self._beside("client, Kafka's Python clients", measure_kafka_clients, seconds)
            if "spark" in self.special:
                self._beside("spark, Kafka's connector", measure_spark_with_kafka, rows)

    def publish(self) -> None:
        """Print the tables; write the page, the pictures and the JSON. Write nothing if nothing was measured."""
        report = self.report
        report.took = time.monotonic() - self.began
        for failure in self.failures:
            print_progress(f"ended early, this is what was measured so far: {failure}")
        if not report.rounds and not report.figures.found:
            return
        self._print()
        kept = self.quiet and not self.failures and self.given.is_whole
        path = self.given.results or ROOT / ("benchmarks" if kept else "build/bench") / "RESULTS.md"
        if self.failures:
            path = path.with_name("RESULTS-partial.md")
        pictures: list[str] = []
        try:
            from plots import draw

            pictures = draw(report, path.parent / "plots")
        except ImportError:
            print_progress("without pictures: matplotlib is not installed (the extra [bench] has it)")
        write_page(report, path, pictures, "; ".join(self.failures))
        print_progress(f"written: {path}")
        if self.given.json is not None:
            self.given.json.parent.mkdir(parents=True, exist_ok=True)
            text = {"ended_early": "; ".join(self.failures) or None, **report.as_json()}
            self.given.json.write_text(json.dumps(text, indent=2) + "\n")
            print_progress(f"written: {self.given.json}")

    def _ceiling(self, scenario: Scenario) -> None:
        """Measure the generator's ceiling; where more processes raise it, they also drive the systems."""
        usual = default_processes()
        seconds = min(CEILING_SECONDS, self.given.timing.seconds)
        best = ceiling(scenario, seconds, usual)
        self.processes[scenario.name] = usual
        if best and scenario.connections > usual and scenario.batch == 1:
            more = ceiling(scenario, seconds, usual * 2)
            if more > best * GAIN:
                best, self.processes[scenario.name] = more, usual * 2
        self.report.ceilings[scenario.name] = best

    def _round(self, scenarios: Sequence[Scenario], number: int, *, budget: bool) -> None:
        """Measure each system in turn, one flush mode after the other, in every second round in reverse order; after
        them the other systems that are in the rounds."""
        for flush in FLUSHES:
            wanted = [each for each in scenarios if each.flush == flush]
            for system in (self.systems if number % 2 else reversed(self.systems)) if wanted else ():
                print_progress(f"round {number}, {flush} flush, {system}: starts and warms up")
                result = Round(system, flush, budget)
                self._fill()
                try:
                    with start(system, Setup(flush)) as running:
                        result.first_message = running.first_message if system == "gantrymq" else 0.0
                        # at once, so that what was measured stays if the next scenario fails
                        self.report.rounds.append(result)
                        measure(
                            result,
                            running,
                            wanted,
                            self.given.timing,
                            self.processes,
                            self.report.figures,
                            print_progress,
                        )
                except (ChildFailed, GantryError, OSError, RuntimeError) as error:
                    raise Failed(f"round {number}, {flush} flush, {system}: {error}") from error
                if system == "java" and budget and flush == FLUSHES[0]:
                    result.first_message = start_seconds(system)
            for other in self._others:
                if other.is_in_rounds:
                    self._other(other, flush, wanted)

    @property
    def _others(self) -> list[Other]:
        return [each for each in OTHERS if each.is_asked_for(self.given)]

    def _others_once(self) -> None:
        for flush in FLUSHES:
            for other in self._others:
                if not other.is_in_rounds:
                    self._other(other, flush, [each for each in self.report.scenarios if each.flush == flush])

    def _other(self, other: Other, flush: str, scenarios: Sequence[Scenario]) -> None:
        """Measure Redis, Kafka or NATS; a failure becomes a note and does not end the run."""
        wanted = [each for each in scenarios if other.expresses(each)]
        if not wanted:
            return
        self.report.versions[other.name.lower()] = other.version_line()
        self._fill()
        try:
            with other.start(flush) as server:
                for scenario in wanted:
                    self._add(other.name.lower(), scenario, *server.rate(scenario, self.given.timing.seconds))
        except FAILURES_OF_OTHERS as error:
            self._note_failure(f"{other.name}, {flush} flush, failed: {error}")

    def _add(self, system: str, scenario: Scenario, rate: float, cost: float) -> None:
        """``cost``: microseconds of the server's processor time for each message."""
        self.report.others.setdefault(system, {}).setdefault(scenario.name, []).append(rate)
        self.report.costs_of_others.setdefault(system, {}).setdefault(scenario.name, []).append(cost)
        print_progress(f"{system:9} {scenario.name:26} {rate:12,.0f}/s  {cost:.2f} us of the processor for a message")

    def _special(self, group: str, system: str, measure_it: object) -> None:
        """Measure a group on one system; after a failure the run continues with the next system."""
        print_progress(f"{group}, {system}")
        self._fill()
        try:
            measure_it(system, self.given.timing, self.given.sizes, self.report.figures, self._note)
        except FAILURES as error:
            self.failures.append(f"{group}, {system}: {error}")
            print_progress(self.failures[-1])

    def _beside(self, what: str, measure_it: Callable[..., None], amount: float) -> None:
        """Measure something of Kafka's; a failure becomes a note and does not end the run."""
        print_progress(what)
        try:
            measure_it(amount, self.report.figures, self._note)
        except FAILURES_OF_OTHERS as error:
            self._note_failure(f"{what}: failed: {error}")

    def _note_failure(self, line: str) -> None:
        print_progress(line)
        if line not in self.report.notes:  # it may fail alike in each round
            self.report.notes.append(line)

    def _note(self, line: str) -> None:
        print_progress(line)
        if line.startswith(("left out", "fewer")) and line not in self.report.notes:
            self.report.notes.append(line)

    def _print(self) -> None:
        report = self.report
        if report.rounds:
            print_table(*report.table(report.scenarios))
            print_table(*report.cost_table(report.scenarios))
            print_table(*report.memory_and_start())
        for group in self.given.groups:
            columns, rows = report.figure_table(group)
            if rows:
                print_table(columns, rows)
        if (goals := report.goal_table())[1]:
            print_table(*goals)
        for line in [*report.verdicts(report.scenarios), *figure_lines(self.given.groups, report.figures)]:
            print(line)
        if limited := report.limited(report.scenarios):
            print(
                f"the generator may be the limit, its ceiling being below {CEILING_GOOD:g} times: {', '.join(limited)}"
            )
        sys.stdout.flush()


def _systems(with_java: bool) -> list[str]:
    if not with_java:
        return ["gantrymq"]
    try:
        find_java(JAVA_VERSION, INTEROP / "java", cache_folder(INTEROP / ".cache"))
    except ToolMissing as missing:
        print_progress(f"without the Java broker: {missing}")
        return ["gantrymq"]
    return ["gantrymq", "java"]


def print_progress(line: str) -> None:
    """Print one line to stderr at once."""
    print(line, file=sys.stderr, flush=True)

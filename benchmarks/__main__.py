"""``make bench``: GantryMQ and the Java broker in turns on this machine, the same load on both, medians and ratios."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path

import streams
from measuring import ceiling, measure
from reporting import ROOT, Report
from scenarios import Scenario, chosen
from systems import INTEROP, JAVA_VERSION, Running, gantrymq, java, java_start

from gantrymq.cli.tables import print_table
from gantrymq.testing.foreign import ToolMissing, cache_folder, find_java

QUIET_LOAD = 0.5
CEILING_SECONDS = 1.0
FLUSHES = ("async", "sync")


def main() -> int:
    """Run all rounds; what was measured is told even if one of them fails."""
    given = _arguments()
    scenarios = chosen(given.only)
    if not scenarios:
        print(f"no scenario has {given.only!r} in its name", file=sys.stderr)
        return 2
    systems = _systems(given.no_java)
    report = Report(scenarios, given.seconds, given.warm, os.getloadavg()[0], tempfile.gettempdir())
    quiet = report.load_before < QUIET_LOAD
    if not quiet:
        say(f"the machine is busy (load {report.load_before:.2f}): these numbers are not for keeping")
    code = 0
    try:
        for scenario in scenarios:
            report.ceilings[scenario.name] = ceiling(scenario, CEILING_SECONDS)
        for number in range(1, given.rounds + 1):
            for flush in FLUSHES:
                _round(report, [each for each in scenarios if each.flush == flush], flush, systems, number)
    except KeyboardInterrupt:
        code = 130
    except Exception as error:
        print(f"ended early, this is what was measured so far: {error}", file=sys.stderr)
        code = 1
    _tell(report)
    if not code:
        path = given.results or ROOT / ("benchmarks" if quiet else "build/bench") / "RESULTS.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(report.page())
        say(f"written: {path}")
    return code


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each scenario")
    parser.add_argument("--warm", type=float, default=20.0, help="seconds of load after each start")
    parser.add_argument("--only", default="", help="scenarios with one of these comma-separated texts in their names")
    parser.add_argument("--no-java", action="store_true")
    parser.add_argument("--results", type=Path, help="where the page goes; benchmarks/RESULTS.md on a quiet machine")
    return parser.parse_args()


def _systems(no_java: bool) -> list[str]:
    if no_java:
        return ["gantrymq"]
    try:
        find_java(JAVA_VERSION, INTEROP / "java", cache_folder(INTEROP / ".cache"))
    except ToolMissing as missing:
        say(f"without the Java broker: {missing}")
        return ["gantrymq"]
    return ["gantrymq", "java"]


def _round(report: Report, scenarios: list[Scenario], flush: str, systems: list[str], number: int) -> None:
    """Each system in turn; every other round the other way round."""
    if not scenarios:
        return
    for system in systems if number % 2 else reversed(systems):
        say(f"round {number}, {flush} flush, {system}: starts and warms up")
        with _start(system, flush) as running:
            found = measure(system, flush, running, scenarios, report.warm, report.seconds, say)
        if system == "java":
            found.first_message = java_start()
        report.rounds.append(found)
    sends = [scenario for scenario in scenarios if scenario.kind == "send" and scenario.batch == 1]
    if not streams.is_installed():
        if number == 1 and flush == scenarios[0].flush == "async":
            say("without Redis: redis-server and redis-benchmark are not installed")
        return
    report.redis_version = streams.version()
    with streams.redis(flush) as port:
        for scenario in sends:
            rate = streams.rate(port, scenario, report.seconds)
            report.redis.setdefault(scenario.name, []).append(rate)
            say(f"redis     {scenario.name:24} {rate:12,.0f}/s")


def _start(system: str, flush: str) -> AbstractContextManager[Running]:
    return gantrymq(flush) if system == "gantrymq" else java(flush)


def _tell(report: Report) -> None:
    if not report.rounds:
        return
    columns, rows = report.table()
    print_table(columns, rows)
    print_table(("what", "gantrymq", "java"), report.memory_and_start())
    for line in report.verdicts():
        print(line)
    sys.stdout.flush()


def say(line: str) -> None:
    """One line for who watches."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

"""What ``make bench`` was asked for."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import attrs
from measuring import Timing
from scenarios import GROUPS, USUAL_GROUPS
from special_groups import Sizes

QUICK = {
    "seconds": 1.5,
    "settle": 0.5,
    "warm": 5.0,
    "growth": "0.5,1",
    "old": 1.0,
    "crash": 0.5,
    "keyed": 100_000,
    "spark_rows": 100_000,
}
ALL = {"growth": "1,10,20", "keyed": 10_000_000}
USUAL = {
    "seconds": 3.0,
    "settle": 1.0,
    "warm": 10.0,
    "growth": "1,2",
    "old": 2.0,
    "crash": 1.0,
    "keyed": 1_000_000,
    "spark_rows": 1_000_000,
}


class WrongUsage(Exception):
    """The arguments are invalid; the text says which and why."""


@attrs.frozen(kw_only=True)
class Arguments:
    """``groups`` and ``only`` select scenarios; ``results`` and ``json`` are the paths of the page and of the values,
    None for the default."""

    groups: Sequence[str]
    only: str
    rounds: int
    timing: Timing
    sizes: Sizes
    java: bool
    redis: bool
    kafka: bool
    nats: bool
    fill: bool
    results: Path | None
    json: Path | None

    @property
    def is_whole(self) -> bool:
        """Whether the run leaves nothing out: only then does its page replace the published one."""
        return not self.only and self.java and set(self.groups) >= set(USUAL_GROUPS)


def read(words: Sequence[str]) -> Arguments:
    """Raises :class:`WrongUsage`; argparse ends the process with exit code 2 for what it rejects itself."""
    given = _parser().parse_args(words)
    usual = USUAL | (ALL if given.groups == "all" else {}) | (QUICK if given.quick else {})
    picked = {name: usual[name] if getattr(given, name) is None else getattr(given, name) for name in usual}
    groups = list(GROUPS) if given.groups == "all" else [name.strip() for name in given.groups.split(",") if name]
    unknown = [name for name in groups if name not in GROUPS]
    if unknown or not groups:
        raise WrongUsage(f"no group is called {', '.join(unknown) or 'nothing'}: there are {', '.join(GROUPS)} and all")
    try:
        growth = sorted({float(mark) for mark in str(picked["growth"]).split(",") if mark})
    except ValueError:
        raise WrongUsage(f"--growth is GiB with commas between them, not {picked['growth']!r}") from None
    if (
        given.rounds < 1
        or given.idle < 1
        or min([picked["seconds"], picked["spark_rows"], picked["old"], picked["crash"], picked["keyed"], *growth]) <= 0
    ):
        raise WrongUsage("rounds, seconds, connections and sizes must be more than nothing")
    return Arguments(
        groups=groups,
        only=given.only,
        rounds=given.rounds,
        timing=Timing(picked["seconds"], picked["settle"], picked["warm"]),
        sizes=Sizes(
            given.idle, picked["old"], picked["crash"], growth, picked["keyed"], spark_rows=picked["spark_rows"]
        ),
        java=not given.no_java,
        redis=not given.no_redis,
        kafka=given.kafka,
        nats=given.nats,
        fill=given.fill,
        results=given.results,
        json=given.json,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="make bench", description="GantryMQ beside the Java broker, the same load on both."
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="everything in eight to ten minutes: shorter, smaller")
    add(
        "--groups",
        default=",".join(USUAL_GROUPS),
        help="with commas between them, or all: indexing and nameserver too, and 20 GiB stored",
    )
    add("--only", default="", help="scenarios with one of these comma-separated texts in their names")
    add("--rounds", type=int, default=3, help="of the budget")
    add("--seconds", type=float, help="of each scenario")
    add("--settle", type=float, help="seconds of each scenario before it counts")
    add("--warm", type=float, help="seconds of load after each start")
    add("--growth", help="GiB at which the ordinary send is measured, such as 1,10,20")
    add("--idle", type=int, default=10_000, help="idle connections")
    add("--old", type=float, help="GiB that a consumer catches up with")
    add("--crash", type=float, help="GiB that are there when the broker is killed")
    add("--keyed", type=int, help="messages whose keys are indexed")
    add("--spark-rows", type=int, help="rows that Spark writes and reads")
    add("--no-java", action="store_true")
    add("--no-redis", action="store_true")
    add("--kafka", action="store_true", help="Kafka too, fetched from Maven Central")
    add("--nats", action="store_true", help="NATS JetStream too, built from its Go module")
    add("--fill", action="store_true", help="fill the page cache before each start; a whole run always does")
    add("--results", type=Path, help="where the page goes; benchmarks/RESULTS.md on a quiet machine")
    add("--json", type=Path, help="all values as JSON")
    return parser

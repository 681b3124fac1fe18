"""A broker under a second load or after long use: idle connections, an old reader, years of messages, a crash."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Sequence

import attrs
import trio
from client import measure_client
from figures import Figures
from floods import measure_floods
from hooks import measure_hooks
from idle_connections import held
from indexing import index
from measuring import MIB, Failed, Timing, checked, load_of, warm_up
from msgspec.structs import replace
from nameserver import measure_lookups
from processes import scale
from replication import ROUNDS, answer, replicate
from scenarios import Scenario
from security import secure
from spark_rows import measure_spark
from stores import GIB, cached_share, fill, free_bytes, leave_page_cache, log_files
from systems import Running, Setup, home_of, resident_bytes, start

from gantrymq.bench.cluster import targets_at_end, targets_from_first
from gantrymq.bench.plan import Load, Plan, Target
from gantrymq.bench.running import Outcome, new_mark, run, run_together
from gantrymq.client import connect
from gantrymq.remoting.descriptors import descriptors_allowed, raise_descriptor_limit

LONE = Scenario("send 1x1", "async", 1, 1)
BUSY = Scenario("send 8x16", "async", 8, 16)
SMALL_LOG_FILE = 128 * 2**20
"""A starting broker reads its last files; with smaller files it reads less of the old messages."""
RECENT_FILES = 5
FILES_SHARE = 2
"""A broker uses at most half of its descriptors for its files."""
OTHERS = 84
"""The connections that are busy."""
OLD_BODY_BYTES = 1024
READ_SHARE_MAX = 0.9
"""A reader starts over at the end of its queue and then reads from memory. One queue may end before the others."""
SPARE_BYTES = 4 * GIB
_scanned = re.compile(r"scanned_bytes\W+(\d+)").findall

Progress = Callable[[str], None]


@attrs.frozen
class Sizes:
    """Sizes: idle connections, GiB of old messages, GiB before the crash, the steps of growth, messages with keys to
    index, topics of a nameserver, and rows of Spark."""

    idle: int = 10_000
    old: float = 2.0
    crash: float = 1.0
    growth: Sequence[float] = (1.0, 2.0)
    keyed: int = 1_000_000
    topics: int = 10_000
    spark_rows: int = 1_000_000


def idle(system: str, timing: Timing, sizes: Sizes, figures: Figures, progress: Progress) -> None:
    """One busy connection without and with thousands of idle ones, and the memory that those take."""
    raise_descriptor_limit()
    wanted = min(sizes.idle, descriptors_allowed(FILES_SHARE) - OTHERS)
    if wanted < sizes.idle:
        progress(f"fewer idle connections, {wanted:,} instead of {sizes.idle:,}: ulimit -n allows no more open files")
    with start(system) as running:
        warm_up(running, timing.warm)
        alone = _send(system, running, LONE, timing)
        before = resident_bytes(running.pid)[1]
        with held(running.address, wanted) as count:
            used = resident_bytes(running.pid)[1] - before
            together = _send(system, running, LONE, timing)
            left = count()
    progress(f"{system:9} {left:,} idle connections, p99 of the busy one {together.latencies['p99']} us")
    figures.add("idle", "idle connections held", "", system, left, more_is_better=True)
    figures.add("idle", "memory of an idle connection", "KiB", system, used / max(1, left) / 1024)
    for which in ("p50", "p99"):
        figures.add("idle", f"{which} of a lone sender, without them", "us", system, alone.latencies[which])
        figures.add("idle", f"{which} of a lone sender beside them", "us", system, together.latencies[which])


def through(system: str, timing: Timing, sizes: Sizes, figures: Figures, progress: Progress) -> None:
    """One message at a time from the producer to a waiting consumer."""

    async def ends(running: Running, topic: str) -> list[Target]:
        async with connect(running.nameserver) as client:
            return await targets_at_end(client, topic)

    with start(system) as running:
        warm_up(running, timing.warm)
        send = load_of(running, LONE)
        targets = trio.run(ends, running, LONE.topic)
        mark = new_mark()
        follow = replace(send, kind="follow", targets=targets, in_flight=len(targets[0].queues), batch=32)
        loads = [replace(load, run=mark) for load in (follow, send)]
        found = checked(system, "end to end", run(Plan(loads=loads, warm_up=timing.settle, seconds=timing.seconds)))
    progress(f"{system:9} end to end p50 {found.latencies['p50']} us, p99 {found.latencies['p99']} us")
    for which in ("p50", "p99"):
        figures.add("mixed", f"{which} from a lone producer to the consumer", "us", system, found.latencies[which])


def measure_catch_up(system: str, timing: Timing, sizes: Sizes, figures: Figures, progress: Progress) -> None:
    """Producers without and with a consumer that reads old messages from the disk."""
    need = sizes.old * 1.5 * GIB + RECENT_FILES * SMALL_LOG_FILE + SPARE_BYTES
    if not _has_room(need, "the old messages", progress):
        return
    setup = Setup(log_file_bytes=SMALL_LOG_FILE, pre_touch=False)
    with home_of(system) as home:
        with start(system, setup, home) as running:
            fill(running, "old", sizes.old * GIB, body_bytes=OLD_BODY_BYTES, batch=32)
            fill(running, "recent", RECENT_FILES * SMALL_LOG_FILE)
            running.stop()
        leave_page_cache(running.store)
        with start(system, setup, home) as running:
            warm_up(running, timing.warm)
            old = log_files(running.store)[: max(1, int(sizes.old * GIB / SMALL_LOG_FILE))]
            cached = sum(map(cached_share, old)) / len(old)
            alone = _send(system, running, BUSY, timing)
            targets = trio.run(_from_first, running, "old")
            read = Load(kind="pull", topic="old", targets=targets, connections=4, in_flight=2, batch=32)
            plans = [
                Plan(loads=[load_of(running, BUSY)], warm_up=timing.settle, seconds=timing.seconds),
                Plan(loads=[read], seconds=timing.settle + timing.seconds),
            ]
            sent, reading = run_together(plans)
            together, found = checked(system, BUSY.name, sent), checked(system, "catching up", reading)
    stored = sizes.old * GIB / OLD_BODY_BYTES
    if found.messages > READ_SHARE_MAX * stored:
        counts = f"{found.messages:,} messages were read, {stored:,.0f} are stored"
        raise Failed(f"{system}, catching up: {counts}, so some may have been read twice: use a larger --old")
    progress(f"{system:9} catching up: producers {alone.rate:,.0f}/s without, {together.rate:,.0f}/s with")
    add = figures.add
    add("mixed", "old messages in memory before they are read", "%", system, 100 * cached)
    add("mixed", "producers 8x16, nobody reads", "/s", system, alone.rate, more_is_better=True)
    add("mixed", "producers 8x16 while old messages are read", "/s", system, together.rate, more_is_better=True)
    add("mixed", "their p99, nobody reads", "us", system, alone.latencies["p99"])
    add("mixed", "their p99 while old messages are read", "us", system, together.latencies["p99"])
    add("mixed", "old messages of 1 KiB read", "/s", system, found.rate, more_is_better=True)


def recovery(system: str, timing: Timing, sizes: Sizes, figures: Figures, progress: Progress) -> None:
    """The start after a ``kill -9`` under load, and a start that must read the whole log."""
    if not _has_room(sizes.crash * 1.5 * GIB + SPARE_BYTES, "the crash", progress):
        return
    setup = Setup(pre_touch=False, log_level="info")
    with home_of(system) as home:
        with start(system, setup, home) as running:
            empty = running.first_message
            fill(running, "crash", sizes.crash * GIB, body_bytes=1024, batch=32)
            running.kill()
        gib = sum(path.stat().st_blocks * 512 for path in log_files(running.store)) / GIB
        with start(system, setup, home) as running:
            after = running.first_message
            running.kill()
        _forget_queues(running)
        with start(system, setup, home) as running:
            again = running.first_message
            scanned = [int(each) for each in _scanned(running.log.read_text(errors="replace"))]
    if scanned:
        gib = scanned[-1] / GIB
    progress(f"{system:9} after kill -9 {after:.2f} s, everything read again {again:.2f} s, {gib:.2f} GiB")
    add = figures.add
    stored = f"{sizes.crash:g} GiB of bodies of 1 KiB stored"
    add("recovery", "start to first acknowledged message, empty store", "s", system, empty)
    add("recovery", f"the same after kill -9, {stored}", "s", system, after)
    add("recovery", "the same, checkpoint and queues lost: everything is read", "s", system, again)
    per_gib = max(0.0, again - empty) / max(gib, 1e-9)
    add("recovery", "recovery for each GiB that is read", "s", system, per_gib, goal=10.0)


def growth(system: str, timing: Timing, sizes: Sizes, figures: Figures, progress: Progress) -> None:
    """The usual send, and the memory, with the given GiB of stored messages."""
    with start(system) as running:
        warm_up(running, timing.warm)
        stored = 0.0
        for mark in sizes.growth:
            if not _has_room((mark - stored) * 1.1 * GIB + SPARE_BYTES, f"{mark:g} GiB", progress):
                return
            fill(running, "grow", (mark - stored) * GIB)
            stored = mark
            found = _send(system, running, BUSY, timing)
            used = resident_bytes(running.pid)[1] / MIB
            progress(f"{system:9} {mark:g} GiB stored: {found.rate:,.0f}/s, {used:,.0f} MiB")
            at = f"at {mark:g} GiB stored"
            figures.add("growth", f"send 8x16 {at}", "/s", system, found.rate, more_is_better=True)
            figures.add("growth", f"its p99 {at}", "us", system, found.latencies["p99"])
            figures.add("growth", f"memory that is no file {at}", "MiB", system, used)


SPECIAL = {
    "mixed": (through, measure_catch_up), "idle": (idle,), "recovery": (recovery,), "growth": (growth,),
    "indexing": (index,),
    "nameserver": (measure_lookups,), "replication": (replicate, *(answer,) * ROUNDS), "floods": (measure_floods,),
    "client": (measure_client,), "hooks": (measure_hooks,), "processes": (scale,),
    "security": (secure,), "spark": (measure_spark,),
}  # fmt: skip
"""What each group measures in addition to its scenarios."""


def _send(system: str, running: Running, scenario: Scenario, timing: Timing) -> Outcome:
    plan = Plan(loads=[load_of(running, scenario)], warm_up=timing.settle, seconds=timing.seconds)
    return checked(system, scenario.name, run(plan))


async def _from_first(running: Running, topic: str) -> list[Target]:
    async with connect(running.nameserver) as client:
        return await targets_from_first(client, topic)


def _forget_queues(running: Running) -> None:
    """Delete the checkpoint and the consume queues, so that a broker must read its whole log."""
    (running.store / "checkpoint").unlink(missing_ok=True)
    shutil.rmtree(running.store / "consumequeue", ignore_errors=True)
    shutil.rmtree(running.store / "index", ignore_errors=True)


def _has_room(need: float, what: str, progress: Progress) -> bool:
    free = free_bytes(tempfile.gettempdir())
    if free < need:
        progress(f"left out: {what} would need {need / GIB:.1f} GiB of disk, {free / GIB:.1f} are free")
    return free >= need

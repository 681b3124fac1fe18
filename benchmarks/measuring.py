"""One round of one system: start, warm-up, every scenario of one flush mode, stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import attrs
import trio
from figures import Figures
from fsync import bare_fdatasync
from msgspec.structs import replace
from scenarios import QUEUES, Scenario
from systems import Running, echo, resident_bytes

from gantrymq.bench.cluster import prepare_topic, targets_at_end, targets_from_first, targets_of
from gantrymq.bench.plan import Load, Plan, Target
from gantrymq.bench.running import Outcome, Result, default_processes, run, run_together
from gantrymq.client import Client, connect
from gantrymq.remoting.codes import RequestCode

PULL_MESSAGES = 400_000
"""How many messages are stored for pulls, which read them repeatedly."""
CEILING_GOOD = 2.0
"""If the ceiling is at least this multiple of a rate, the generator did not limit the rate."""
MIB = 2**20


class Failed(Exception):
    """A system did not do what it was asked to; the text says what and why."""


@attrs.frozen
class Timing:
    """Seconds: of each scenario, of its own warm-up on a warm broker, and of the load after each start."""

    seconds: float = 3.0
    settle: float = 1.0
    warm: float = 10.0


@attrs.define
class Round:
    """Results of one start of one system: rates and times by scenario; memory in bytes, in total and without files.
    ``budget``: whether the start ran exactly the rows of the budget."""

    system: str
    flush: str
    budget: bool = True
    outcomes: dict[str, Outcome] = attrs.field(factory=dict)
    first_message: float = 0.0
    idle: tuple[int, int] = (0, 0)
    loaded: tuple[int, int] = (0, 0)
    costs: dict[str, float] = attrs.field(factory=dict)
    """Processor time of the broker for each message in microseconds, user and system time of all threads."""


def measure(
    result: Round,
    running: Running,
    scenarios: Sequence[Scenario],
    timing: Timing,
    processes: dict[str, int],
    figures: Figures,
    progress: Callable[[str], None],
) -> None:
    """Run all ``scenarios`` on a running system and add each outcome to ``result``. Raises :class:`Failed` when one of
    them fails; the outcomes before it stay. ``processes`` of the generator by scenario."""
    system = result.system
    result.idle = resident_bytes(running.pid)
    warm_up(running, timing.warm, [scenario.kind for scenario in scenarios])
    for scenario in scenarios:
        count = processes.get(scenario.name, default_processes())
        if scenario.topics:
            _first_of_each_queue(system, running, scenario, figures)
        if scenario.followed:
            outcome = _followed(system, running, scenario, timing, figures)
        else:
            load = load_of(running, scenario)
            if timing.settle:  # a run of its own, so that the broker's processor time is that of the measured messages
                checked(system, scenario.name, run(Plan(loads=[load], seconds=timing.settle), count))
            used = -running.processor_seconds
            outcome = checked(system, scenario.name, run(Plan(loads=[load], seconds=timing.seconds), count))
            used += running.processor_seconds
            result.costs[scenario.name] = used / outcome.messages * 1e6
        result.outcomes[scenario.name] = outcome
        result.loaded = max(result.loaded, resident_bytes(running.pid))
        progress(f"{system:9} {scenario.name:26} {outcome.rate:12,.0f}/s  generator {outcome.cpu:.2f} of a core")
        if scenario.topics:
            used = resident_bytes(running.pid)[1] / MIB
            figures.add("queues", f"memory that is no file, {scenario.queues:,} queues", "MiB", system, used)
        if scenario.is_alone and scenario.flush == "sync":
            _beside_the_disk(system, scenario, outcome, timing, figures)


def checked(system: str, what: str, found: Result) -> Outcome:
    """Return the outcome of the first load; KeyboardInterrupt or :class:`Failed` if it is not usable."""
    outcome = found.outcomes[0]
    if found.interrupted:
        raise KeyboardInterrupt
    if found.ended or outcome.failures or not outcome.messages:
        reasons = [found.ended, *(f"{name}: {failure.remark}" for name, failure in outcome.failures.items())]
        raise Failed(f"{system}, {what}: {'; '.join(filter(None, reasons)) or 'no message was processed'}")
    return outcome


def ceiling(scenario: Scenario, seconds: float, processes: int) -> float:
    """The rate of the given number of generator processes against an echo server; 0 for loads that an echo server
    cannot serve."""
    if scenario.kind != "send" or scenario.followed or scenario.topics:
        return 0.0
    code = RequestCode.SEND_BATCH_MESSAGE if scenario.batch > 1 else RequestCode.SEND_MESSAGE_V2
    with echo() as (host, port):
        load = _fill(scenario, [Target(host, port, list(range(QUEUES)))], success=code)
        found = run(Plan(loads=[load], warm_up=0.2, seconds=seconds), processes)
    if found.interrupted:
        raise KeyboardInterrupt
    return found.outcomes[0].rate


def warm_up(running: Running, seconds: float, kinds: Sequence[str] = ()) -> None:
    """Send one by one and in batches, with one and with many in flight, then pull, and run transactions if they are
    among the ``kinds``, so that the JIT has compiled what is measured."""
    sends = [
        Scenario("", "", 8, 16),
        Scenario("", "", 64, 1),
        Scenario("", "", 4, 4, batch=32),
    ]
    for scenario in sends:
        _warm(running, scenario, seconds / 4)
    if "transact" in kinds:
        _warm(running, Scenario("", "", 8, 16, kind="transact"), seconds / 2)
    _warm(running, Scenario("", "", 4, 2, batch=32, kind="pull"), seconds / 4)


def _warm(running: Running, scenario: Scenario, seconds: float) -> None:
    checked("warm-up", scenario.kind, run(Plan(loads=[load_of(running, scenario)], seconds=seconds)))


def load_of(running: Running, scenario: Scenario) -> Load:
    """Return the scenario's load on this system, after creating its topics and the messages to pull."""

    async def find() -> list[Target]:
        async with connect(running.nameserver) as client:
            topics = scenario.topics
            for topic in topics or [scenario.topic]:
                await prepare_topic(client, topic, scenario.queues // len(topics) if topics else scenario.queues)
            if scenario.kind in ("send", "transact"):
                return await targets_of(client, topics[0] if topics else scenario.topic)
            if not await _has_messages(client, scenario.topic):
                filling = Scenario("", "", 8, 4, batch=32)
                load = _fill(filling, await targets_of(client, scenario.topic), PULL_MESSAGES // filling.batch)
                plan = Plan(loads=[replace(load, topic=scenario.topic)])
                checked("filling", scenario.topic, await trio.to_thread.run_sync(run, plan))
            return await targets_from_first(client, scenario.topic)

    return _fill(scenario, trio.run(find))


def _first_of_each_queue(system: str, running: Running, scenario: Scenario, figures: Figures) -> None:
    load = replace(load_of(running, scenario), connections=1, requests=scenario.queues)
    began = time.perf_counter()
    checked(system, "first message of each queue", run(Plan(loads=[load], timeout=60.0)))
    took = time.perf_counter() - began
    what = f"first message to each of {scenario.queues:,} queues"
    figures.add("queues", what, "s", system, took, ratio_goal=1.0)


def _followed(system: str, running: Running, scenario: Scenario, timing: Timing, figures: Figures) -> Outcome:
    async def ends() -> list[Target]:
        async with connect(running.nameserver) as client:
            return await targets_at_end(client, scenario.topic)

    send = load_of(running, scenario)
    follow = Load(kind="follow", topic=scenario.topic, targets=trio.run(ends), connections=4, in_flight=2, batch=32)
    plans = [Plan(loads=[load], warm_up=timing.settle, seconds=timing.seconds) for load in (send, follow)]
    sent, received = run_together(plans)
    outcome = checked(system, scenario.name, sent)
    rate = checked(system, f"{scenario.name}, received", received).rate
    figures.add("mixed", "received meanwhile by 8 pulls of 32", "/s", system, rate, more_is_better=True)
    return outcome


def _beside_the_disk(system: str, scenario: Scenario, outcome: Outcome, timing: Timing, figures: Figures) -> None:
    bare = bare_fdatasync(scenario, min(timing.seconds, 2.0))
    name = "lone synchronous sender"
    figures.add("budget", "bare fdatasync of the same bytes, p50", "us", system, bare["p50"])
    figures.add("budget", f"{name}, p50", "us", system, outcome.latencies["p50"])
    figures.add("budget", f"{name}, p50 over the bare fdatasync", "times", system,
                outcome.latencies["p50"] / bare["p50"])  # fmt: skip
    figures.add("budget", "bare fdatasync of the same bytes, p99", "us", system, bare["p99"])
    figures.add("budget", f"{name}, p99", "us", system, outcome.latencies["p99"])


async def _has_messages(client: Client, topic: str) -> bool:
    for queue in await client.admin.queues(topic):
        if await client.admin.max_offset(queue):
            return True
    return False


def _fill(scenario: Scenario, targets: list[Target], requests: int = 0, success: int = 0) -> Load:
    return Load(
        kind=scenario.kind,
        topic=scenario.topic,
        targets=targets,
        connections=scenario.connections,
        in_flight=scenario.in_flight,
        body_bytes=scenario.size,
        batch=scenario.batch,
        requests=requests,
        success=success,
        topics=scenario.topics,
    )

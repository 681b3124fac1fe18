"""One round of one system: started, warmed up, every scenario of one flush mode, stopped."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import trio
from scenarios import Scenario
from systems import Running, echo, resident_bytes

from gantrymq.bench.cluster import prepare_topic, targets_from_first, targets_of
from gantrymq.bench.plan import Load, Plan, Target
from gantrymq.bench.running import Outcome, default_processes, run
from gantrymq.client import Client, connect
from gantrymq.remoting.codes import RequestCode

QUEUES = 8
PULL_MESSAGES = 400_000
"""What is there to be pulled, over and over."""
SETTLE_SECONDS = 1.0
"""Each scenario runs so long before it counts, on a broker that is warm already."""


@attrs.define
class Round:
    """What one start of one system showed. Rates and times by scenario; memory in bytes: all, and what is no file."""

    system: str
    flush: str
    outcomes: dict[str, Outcome]
    first_message: float
    idle: tuple[int, int]
    loaded: tuple[int, int] = (0, 0)


def measure(
    system: str,
    flush: str,
    running: Running,
    scenarios: Sequence[Scenario],
    warm: float,
    seconds: float,
    tell: Callable[[str], None],
) -> Round:
    """All ``scenarios`` on a running system; RuntimeError when one of them fails."""
    result = Round(system, flush, {}, running.first_message, resident_bytes(running.pid))
    _warm_up(running, warm)
    for scenario in scenarios:
        load = _load(running, scenario)
        found = run(Plan(loads=[load], warm_up=SETTLE_SECONDS, seconds=seconds), default_processes())
        outcome = found.outcomes[0]
        if found.interrupted:
            raise KeyboardInterrupt
        if found.ended or outcome.failures or not outcome.messages:
            reasons = [found.ended, *(f"{what}: {failure.remark}" for what, failure in outcome.failures.items())]
            raise RuntimeError(f"{system}, {scenario.name}: {'; '.join(filter(None, reasons)) or 'nothing came'}")
        result.outcomes[scenario.name] = outcome
        result.loaded = max(result.loaded, resident_bytes(running.pid))
        tell(f"{system:9} {scenario.name:24} {outcome.rate:12,.0f}/s  generator {outcome.cpu:.2f} of a core")
    return result


def ceiling(scenario: Scenario, seconds: float) -> float:
    """What the generator reaches against a server that only sends back; 0 for a pull, which such a server cannot."""
    if scenario.kind != "send":
        return 0.0
    code = RequestCode.SEND_BATCH_MESSAGE if scenario.batch > 1 else RequestCode.SEND_MESSAGE_V2
    with echo() as (host, port):
        load = _fill(scenario, [Target(host, port, list(range(QUEUES)))], success=code)
        found = run(Plan(loads=[load], warm_up=0.2, seconds=seconds), default_processes())
    if found.interrupted:
        raise KeyboardInterrupt
    return found.outcomes[0].rate


def _warm_up(running: Running, seconds: float) -> None:
    """Sends one by one and in batches, one in flight and many, then pulls: what will be measured has been compiled."""
    sends = [
        Scenario("", "", 8, 16),
        Scenario("", "", 64, 1),
        Scenario("", "", 4, 4, batch=32),
    ]
    for scenario in sends:
        run(Plan(loads=[_load(running, scenario)], seconds=seconds / 4), default_processes())
    run(Plan(loads=[_load(running, Scenario("", "", 4, 2, batch=32, kind="pull"))], seconds=seconds / 4))


def _load(running: Running, scenario: Scenario) -> Load:
    async def find() -> list[Target]:
        async with connect(running.nameserver) as client:
            await prepare_topic(client, scenario.topic, QUEUES)
            if scenario.kind == "send":
                return await targets_of(client, scenario.topic)
            if not await _has_messages(client, scenario.topic):
                filling = Scenario("", "", 4, 4, batch=32)
                load = attrs.evolve(filling, connections=8)
                targets = await targets_of(client, scenario.topic)
                requests = PULL_MESSAGES // load.batch
                fill = _fill(load, targets, topic=scenario.topic, requests=requests)
                await trio.to_thread.run_sync(run, Plan(loads=[fill]))
            return await targets_from_first(client, scenario.topic)

    return _fill(scenario, trio.run(find))


async def _has_messages(client: Client, topic: str) -> bool:
    for queue in await client.admin.queues(topic):
        if await client.admin.max_offset(queue):
            return True
    return False


def _fill(scenario: Scenario, targets: list[Target], topic: str = "", requests: int = 0, success: int = 0) -> Load:
    return Load(
        kind=scenario.kind,
        topic=topic or scenario.topic,
        targets=targets,
        connections=scenario.connections,
        in_flight=scenario.in_flight,
        body_bytes=scenario.size,
        batch=scenario.batch,
        requests=requests,
        success=success,
    )

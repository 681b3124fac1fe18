"""The targets of a load: the brokers and queues of a topic, from a nameserver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gantrymq.bench.plan import BenchFailed, Target
from gantrymq.remoting.address import parse_address

if TYPE_CHECKING:
    from gantrymq.client import Client
    from gantrymq.message import MessageQueue

DEFAULT_QUEUES = 8


async def prepare_topic(client: Client, topic: str, queues: int | None) -> None:
    """Create ``topic`` where it is missing. With ``queues`` it gets that number of queues, also if it exists."""
    from gantrymq.client.errors import NoRoute

    try:
        count = len(await client.admin.queues(topic))
    except NoRoute:
        count = 0
    if not count or queues is not None:
        await client.admin.create_topic(topic, queues or DEFAULT_QUEUES)


async def targets_of(client: Client, topic: str) -> list[Target]:
    """Return one target per broker that has the topic, for sending."""
    return await _group(client, topic, [(queue, 0) for queue in await client.admin.queues(topic)])


async def targets_from_first(client: Client, topic: str) -> list[Target]:
    """Return one target per broker for reading existing messages; :class:`BenchFailed` if there are none."""
    found = []
    for queue in await client.admin.queues(topic):
        first = await client.admin.min_offset(queue)
        if await client.admin.max_offset(queue) > first:
            found.append((queue, first))
    if not found:
        raise BenchFailed(f"topic {topic} has no messages to read; gantrymq bench produce --topic {topic} makes some")
    return await _group(client, topic, found)


async def targets_at_end(client: Client, topic: str) -> list[Target]:
    """Return one target per broker for reading messages that arrive from now on."""
    queues = await client.admin.queues(topic)
    return await _group(client, topic, [(queue, await client.admin.max_offset(queue)) for queue in queues])


async def _group(client: Client, topic: str, found: Sequence[tuple[MessageQueue, int]]) -> list[Target]:
    route = await client.admin.route(topic)
    masters = {data.broker_name: data.broker_addrs[0] for data in route.broker_datas if 0 in data.broker_addrs}
    targets: dict[str, Target] = {}
    for queue, offset in found:
        if queue.broker_name not in masters:
            continue
        host, port = parse_address(masters[queue.broker_name])
        target = targets.setdefault(queue.broker_name, Target(host, port, [], []))
        target.queues.append(queue.queue_id)
        target.offsets.append(offset)
    if not targets:
        raise BenchFailed(f"no master broker of topic {topic} is known to the nameserver")
    return list(targets.values())

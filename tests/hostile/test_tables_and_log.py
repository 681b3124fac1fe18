"""Tables that say more, or less, than the log: after power cuts, kills, full disks nothing acknowledged is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.records import decode_records
from gantrymq.testing.requests import pull, send
from gantrymq.testing.simulated.cluster import Cluster
from gantrymq.testing.simulated.network import OBSERVER, Process, on
from gantrymq.testing.simulated.run import simulate

HOST = "10.0.0.10"
ASYNC = {"plugin.flush.mode": "async", "plugin.flush.interval": "60s"}


@asynccontextmanager
async def connected(cluster: Cluster) -> AsyncIterator[Channel]:
    with on(Process(OBSERVER)):
        async with open_channel(cluster.machine(HOST).address) as channel:
            yield channel


async def ask(channel: Channel, code: RequestCode, **ext: object) -> Command:
    return await channel.call(Command(code, {key: str(value) for key, value in ext.items()}))


async def send_all(channel: Channel, topic: str, bodies: list[bytes]) -> None:
    for body in bodies:
        answer = await channel.call(send(topic, body))
        assert answer.code == ResponseCode.SUCCESS, answer.remark


async def group_offset(channel: Channel, topic: str, group: str = "shop") -> int:
    answer = await ask(channel, RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup=group, topic=topic, queueId=0)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return int((answer.ext or {})["offset"])


async def read_from(channel: Channel, topic: str, offset: int, queue_id: int = 0) -> list[bytes]:
    bodies: list[bytes] = []
    while True:
        answer = await channel.call(pull(topic, queue_id, offset, group="shop"))
        if answer.code != ResponseCode.SUCCESS:
            return bodies
        for record in decode_records(answer.body):
            bodies.append(bytes(record.body))
            offset = record.queue_offset + 1


def numbered(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


def events(cluster: Cluster, name: str) -> list[Any]:
    return [line for line in cluster.log if line["event"] == name]


def test_a_power_cut_that_takes_consumed_messages_lets_the_group_have_those_that_take_their_places() -> None:
    """With asynchronous flush the offsets' file was newer than the log: the next messages were skipped."""

    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.start_broker(HOST, settings=ASYNC)
        async with connected(cluster) as channel:
            await send_all(channel, "T", numbered(0, 20))
            broker.store.flush_queues()
            await send_all(channel, "T", numbered(20, 50))
            # a pull of a member makes its group known
            assert await read_from(channel, "T", 0) == numbered(0, 50)
            commit = {"consumerGroup": "shop", "topic": "T", "queueId": 0, "commitOffset": 50}
            assert (await ask(channel, RequestCode.UPDATE_CONSUMER_OFFSET, **commit)).code == ResponseCode.SUCCESS
            broker.collect_state()
            broker.write_state()
            cluster.machine(HOST).power_cut()
        await cluster.start_broker(HOST, settings=ASYNC)
        async with connected(cluster) as channel:
            await send_all(channel, "T", numbered(100, 130))
            offset = await group_offset(channel, "T")
            assert offset == 20
            assert await read_from(channel, "T", offset) == numbered(100, 130)
        (warning,) = events(cluster, "offsets_clamped_to_queue_ends")
        assert (warning["group"], warning["topic"], warning["queues"]) == ("shop", "T", {0: "50 -> 20"})

    simulate(scenario, seed=1)

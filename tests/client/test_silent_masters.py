"""Sends find the successor of a silent master before their timeout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest

import gantrymq
from gantrymq import MessageQueue
from gantrymq.client.gathering import GROUP_MAX_MESSAGES
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command

pytestmark = pytest.mark.anyio

Cluster = Callable[..., Any]
LONG_S = 12.0
"""A send that waits for so long has noticed nothing."""


async def silent(request: Command) -> None:
    await anyio.sleep_forever()


def pair_of(cluster: Any) -> tuple[Any, Any]:
    """The two brokers of ``cluster`` as the master of one name, and another one that the nameserver does not show."""
    master, other = cluster.brokers
    other.name = master.name
    cluster.nameserver.brokers = [master]
    return master, other


async def test_sends_to_a_hanging_master_reach_its_successor_before_their_timeout(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(brokers=2, T=4) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer(timeout=LONG_S) as producer,
    ):
        master, successor = pair_of(cluster)
        await producer.send("T", b"before")
        master.answers = {310: silent, 320: silent, 34: silent}
        began = anyio.current_time()

        async with anyio.create_task_group() as senders:
            for _ in range(20):
                senders.start_soon(producer.send, "T", b"x")
            await master.wait_sent(21)
            cluster.nameserver.brokers = [successor]
        assert anyio.current_time() - began < LONG_S
        assert len(master.sent()) == 21, "sent there once"
        assert len(successor.sent()) == 20


@pytest.mark.slow
async def test_a_late_successor_is_found_with_one_route_query_a_second(
    fake_cluster: Cluster,
) -> None:
    async with (
        fake_cluster(brokers=2, T=4) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer(timeout=LONG_S) as producer,
    ):
        master, successor = pair_of(cluster)
        await producer.send("T", b"before")
        asked = len(cluster.nameserver.seen(105))
        master.answers = {310: silent, 320: silent}
        began = anyio.current_time()
        async with anyio.create_task_group() as senders:
            for _ in range(20):
                senders.start_soon(producer.send, "T", b"x")
            await cluster.nameserver.wait_for(105, asked + 2)
            cluster.nameserver.brokers = [successor]
        assert len(cluster.nameserver.seen(105)) - asked <= 1 + anyio.current_time() - began
        assert len(successor.sent()) == 20


async def test_a_send_without_retries_fails_when_its_master_is_replaced_and_the_next_one_works(
    fake_cluster: Cluster,
) -> None:
    async with (
        fake_cluster(brokers=2, T=4) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer(timeout=LONG_S, retries=0) as producer,
    ):
        master, successor = pair_of(cluster)
        master.answers = {310: silent, 320: silent}
        cluster.nameserver.brokers = [master]
        assert await producer.queues("T")
        cluster.nameserver.brokers = [successor]
        with pytest.raises(gantrymq.ConnectError, match=f"broker-a has its master at {successor.address} now"):
            await producer.send("T", b"x")
        await producer.send("T", b"y")
        queue = MessageQueue(topic="T", broker_name="broker-a", queue_id=2)
        assert (await producer.send("T", b"z", queue=queue)).queue == queue
        assert master.sent() == [b"x"]


async def test_a_master_that_hangs_during_connect_is_abandoned(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(brokers=2, T=4) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer(timeout=2.5) as producer,
    ):
        master, successor = pair_of(cluster)
        master.answers = {310: silent, 320: silent, 34: silent}  # the first heartbeat waits for up to 3 s
        assert await producer.queues("T")
        cluster.nameserver.brokers = [successor]
        await producer.send("T", b"x")
        assert len(successor.sent()) == 1


async def test_a_slow_response_causes_one_route_query_only(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(T=4) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer(timeout=LONG_S) as producer,
    ):
        await producer.send("T", b"before")
        asked = len(cluster.nameserver.seen(105))
        broker = cluster.broker

        async def slow(request: Command) -> Command:
            await cluster.nameserver.wait_for(105, asked + 1)
            await anyio.sleep(0.2)
            one = request.code == RequestCode.SEND_MESSAGE_V2
            return (broker.on_send_message_v2 if one else broker.on_send_batch_message)(request)  # type: ignore[no-any-return]

        broker.answers = {310: slow, 320: slow}
        began = anyio.current_time()
        async with anyio.create_task_group() as senders:
            for _ in range(20):
                senders.start_soon(producer.send, "T", b"x")
        assert 1 <= len(cluster.nameserver.seen(105)) - asked <= 1 + anyio.current_time() - began
        assert len(broker.sent()) == 21
        assert len(broker.connections) == 1


async def test_timely_responses_cause_no_route_query(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(T=4) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer() as producer,
    ):
        await producer.send("T", b"before")
        asked = len(cluster.nameserver.seen(105))
        until = anyio.current_time() + 1.5
        while anyio.current_time() < until:
            await producer.send("T", b"x")
            await anyio.sleep(0.01)
        assert len(cluster.nameserver.seen(105)) == asked


async def test_a_replaced_broker_is_not_avoided_if_there_are_others(fake_cluster: Cluster) -> None:
    """Its successor did not fail."""
    async with (
        fake_cluster(brokers=3, T=4) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer(timeout=LONG_S) as producer,
    ):
        master, successor, third = cluster.brokers
        successor.name = master.name
        cluster.nameserver.brokers = [master, third]
        assert await producer.queues("T")
        master.answers = {310: silent, 320: silent}
        cluster.nameserver.brokers = [successor, third]
        async with anyio.create_task_group() as senders:
            for _ in range(8 * GROUP_MAX_MESSAGES):  # a request for each queue
                senders.start_soon(producer.send, "T", b"x")
        assert master.sent()
        for _ in range(8):
            await producer.send("T", b"y")
        assert successor.sent().count(b"y") == 4

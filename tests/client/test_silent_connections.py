"""Clients replace connections that carry no more packets, as after a firewall has forgotten them.

The tests set the clock of the watches, and short timeouts apply only to calls without a response, so pauses of the
process have no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

import gantrymq
from gantrymq.client.silent_connections import SILENCE_SECONDS
from gantrymq.remoting.channel import Channel
from gantrymq.remoting.command import Command
from support.peer import PeerConnection

pytestmark = pytest.mark.anyio

Cluster = Callable[..., Any]
CALL_SECONDS = 0.05


class Clock:
    """The time of the connections' watches, which read it for each call without an answer."""

    def __init__(self) -> None:
        self.readings = 0
        self.step = SILENCE_SECONDS
        """Seconds between two such calls."""

    def current_time(self) -> float:
        self.readings += 1
        return self.readings * self.step


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("gantrymq.client.silent_connections.anyio", SimpleNamespace(current_time=clock.current_time))
    return clock


def deafen(server: Any) -> None:
    """From now on the existing connections to ``server`` lose all bytes in both directions."""
    deaf, serve = list(server.connections), server.serve

    async def lose(command: Command) -> None:
        pass

    async def serve_others(connection: PeerConnection, request: Command) -> None:
        if connection not in deaf:
            await serve(connection, request)

    for connection in deaf:
        connection.write = lose
    server.serve = serve_others


@contextmanager
def short_calls() -> Iterator[None]:
    """Calls time out after ``CALL_SECONDS`` in this block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gantrymq.client.connections.call.__defaults__", (CALL_SECONDS,))
        patch.setattr(Channel.call, "__defaults__", (CALL_SECONDS,))
        yield


async def time_out_a_send(producer: gantrymq.Producer, clock: Clock) -> None:
    """Send until a broker has left a request without an answer."""
    before = clock.readings
    while clock.readings == before:  # the time of a send may be over before its request is sent
        with pytest.raises(gantrymq.GantryError):
            await producer.send("T", b"x", timeout=CALL_SECONDS)


async def test_sends_use_a_new_connection_when_nothing_comes_through_the_old_one(
    fake_cluster: Cluster, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer(retries=0) as producer,
    ):
        await producer.send("T", b"before")
        deafen(cluster.broker)
        await time_out_a_send(producer, clock)
        assert "silent_connection_closed" not in caplog.text
        await time_out_a_send(producer, clock)
        assert "silent_connection_closed" in caplog.text
        await producer.send("T", b"x")
        assert len(cluster.broker.connections) == 2


async def test_heartbeats_without_an_answer_end_a_connection_that_is_not_used(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer() as producer,
    ):
        await producer.send("T", b"before")
        deafen(cluster.broker)
        with short_calls():
            for _ in range(2):
                await client._cluster.heartbeat()
        await producer.send("T", b"x")
        assert len(cluster.broker.connections) == 2


async def test_two_calls_that_time_out_at_the_same_time_end_no_connection(fake_cluster: Cluster, clock: Clock) -> None:
    clock.step = 0.0
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer(retries=0) as producer,
    ):
        await producer.send("T", b"before")
        deafen(cluster.broker)
        with short_calls():
            async with anyio.create_task_group() as beats:
                for _ in range(4):
                    beats.start_soon(client._cluster.heartbeat)
        assert clock.readings == 4
        await time_out_a_send(producer, clock)
        assert len(cluster.broker.connections) == 1
        client._cluster.connections.abandon(cluster.broker.address, "leaving the group would wait for an answer")


async def test_a_broker_that_answers_something_keeps_its_connection(fake_cluster: Cluster, clock: Clock) -> None:
    async def silent(request: Command) -> None:
        await anyio.sleep_forever()

    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer(retries=0) as producer,
    ):
        await producer.send("T", b"before")
        cluster.broker.answers = {310: silent, 320: silent}
        for _ in range(4):
            await time_out_a_send(producer, clock)
            await client._cluster.heartbeat()
        assert len(cluster.broker.connections) == 1


async def test_a_silent_connection_to_a_nameserver_is_replaced(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        assert await client.admin.topics() == ["T"]
        deafen(cluster.nameserver)
        with short_calls():
            for _ in range(2):
                with pytest.raises(gantrymq.CallTimeout):
                    await client.admin.topics()
        assert await client.admin.topics() == ["T"]
        assert len(cluster.nameserver.connections) == 2


async def test_a_consumer_continues_on_a_new_connection(fake_cluster: Cluster, no_pause: None) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        async with client.consumer("T", "g", start="first") as messages:
            await cluster.broker.wait_for(11)
            deafen(cluster.broker)
            cluster.broker.store("T", 0, b"x")
            with short_calls():
                for _ in range(2):
                    await client._cluster.heartbeat()
            with anyio.fail_after(20):
                message = await anext(messages)
            await message.ack()
            await messages.commit()
        assert cluster.broker.offsets == {("g", "T", 0): 1}

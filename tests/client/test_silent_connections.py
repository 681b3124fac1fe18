"""Connections that no longer carry packets, as after a firewall forgot them, end, and new ones take their place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest

import gantrymq
from gantrymq.remoting.channel import Channel
from gantrymq.remoting.command import Command
from support.peer import PeerConnection

pytestmark = pytest.mark.anyio

Cluster = Callable[..., Any]
CALL_SECONDS = 0.05
SILENCE_SECONDS = 0.1


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gantrymq.client.silent_connections.SILENCE_SECONDS", SILENCE_SECONDS)
    monkeypatch.setattr("gantrymq.client.connections.call.__defaults__", (CALL_SECONDS,))
    monkeypatch.setattr(Channel.call, "__defaults__", (CALL_SECONDS,))


def deafen(server: Any) -> None:
    """What clients send to ``server`` on the connections of now gets lost on the way."""
    deaf, serve = list(server.connections), server.serve

    async def serve_others(connection: PeerConnection, request: Command) -> None:
        if connection not in deaf:
            await serve(connection, request)

    server.serve = serve_others


async def fails_until(works: Callable[[], Any], error: type[Exception]) -> int:
    """Call ``works`` until it raises no ``error``: how often it did."""
    failures = 0
    with anyio.fail_after(20):
        while True:
            try:
                await works()
            except error:
                failures += 1
            else:
                return failures


async def test_sends_use_a_new_connection_when_nothing_comes_through_the_old_one(
    fake_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer(timeout=0.2, retries=0) as producer,
    ):
        await producer.send("T", b"before")
        deafen(cluster.broker)
        assert await fails_until(lambda: producer.send("T", b"x"), gantrymq.GantryError) == 2
        assert len(cluster.broker.connections) == 2
        assert "silent_connection_closed" in caplog.text


async def test_heartbeats_without_an_answer_end_a_connection_that_is_not_used(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer() as producer,
    ):
        await producer.send("T", b"before")
        deafen(cluster.broker)
        for _ in range(2):
            await client._cluster.heartbeat()
            await anyio.sleep(SILENCE_SECONDS)
        await producer.send("T", b"x")
        assert len(cluster.broker.connections) == 2


async def test_two_calls_that_time_out_at_the_same_time_end_no_connection(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gantrymq.client.silent_connections.SILENCE_SECONDS", 60.0)
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer(timeout=0.1, retries=0) as producer,
    ):
        await producer.send("T", b"before")
        deafen(cluster.broker)
        async with anyio.create_task_group() as beats:
            for _ in range(4):
                beats.start_soon(client._cluster.heartbeat)
        with pytest.raises(gantrymq.GantryError):
            await producer.send("T", b"x")
        assert len(cluster.broker.connections) == 1


async def test_a_broker_that_answers_something_keeps_its_connection(fake_cluster: Cluster) -> None:
    async def silent(request: Command) -> None:
        await anyio.sleep_forever()

    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer(timeout=0.2, retries=0) as producer,
    ):
        await producer.send("T", b"before")
        cluster.broker.answers = {310: silent, 320: silent}
        for _ in range(4):
            with pytest.raises(gantrymq.GantryError):
                await producer.send("T", b"x")
            await client._cluster.heartbeat()
        assert len(cluster.broker.connections) == 1


async def test_a_silent_connection_to_a_nameserver_is_replaced(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        assert await client.admin.topics() == ["T"]
        deafen(cluster.nameserver)
        assert await fails_until(client.admin.topics, gantrymq.CallTimeout) >= 2
        assert len(cluster.nameserver.connections) == 2


async def test_a_consumer_continues_on_a_new_connection(fake_cluster: Cluster, no_pause: None) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        async with client.consumer("T", "g", start="first") as messages:
            await cluster.broker.wait_for(11)
            deafen(cluster.broker)
            cluster.broker.store("T", 0, b"x")
            for _ in range(2):
                await client._cluster.heartbeat()
                await anyio.sleep(SILENCE_SECONDS)
            with anyio.fail_after(20):
                message = await anext(messages)
            await message.ack()
            await messages.commit()
        assert cluster.broker.offsets == {("g", "T", 0): 1}

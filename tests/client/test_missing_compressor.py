"""Bodies whose compressor is not installed: the consumer ends with an error, and no message is lost."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

import gantrymq
import gantrymq.sync
from gantrymq import MessageQueue
from gantrymq.client.local_offsets import LocalOffsets
from gantrymq.remoting.codes import RequestCode

pytestmark = pytest.mark.anyio

Cluster = Callable[..., Any]
Q0 = MessageQueue(topic="T", broker_name="broker-a", queue_id=0)
LZ4 = 0x101
PACKAGES = r"package lz4: run pip install 'gantrymq\[compression\]' \(or 'gantrymq-client\[compression\]'"


@pytest.fixture(autouse=True)
def no_lz4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lz4", None)
    monkeypatch.setitem(sys.modules, "lz4.frame", None)


def fill(broker: Any) -> None:
    """Two messages that can be read, a compressed one, and one behind it."""
    for body, sys_flag in ((b"1", 0), (b"2", 0), (b"packed", LZ4), (b"4", 0)):
        broker.store("T", 0, body, sys_flag=sys_flag)


def assert_undone(broker: Any) -> None:
    assert broker.offsets == {("g", "T", 0): 2}
    assert not broker.seen(RequestCode.CONSUMER_SEND_MSG_BACK)


@pytest.mark.parametrize("ordered", [False, True, "key"])
async def test_the_iteration_raises_and_the_message_is_not_done(fake_cluster: Cluster, ordered: Any) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        fill(cluster.broker)
        async with client.consumer("T", "g", start="first", deserializer="json", ordered=ordered) as messages:
            with anyio.fail_after(20):
                for value in (1, 2):
                    message = await anext(messages)
                    assert message.value == value
                    await message.ack()
                for _ in range(2):
                    with pytest.raises(gantrymq.CompressorMissing, match=PACKAGES):
                        await anext(messages)
            assert "lz4" in str(messages.statistics().last_error)
        assert_undone(cluster.broker)


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_batch_ends_before_the_message_that_cannot_be_read(fake_cluster: Cluster, ordered: bool) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        fill(cluster.broker)
        async with client.consumer("T", "g", start="first", deserializer="json", ordered=ordered) as messages:
            with anyio.fail_after(20):
                batch = await messages.next_batch(10)
                assert [message.value for message in batch] == [1, 2]
                await batch.ack()
                for _ in range(2):
                    with pytest.raises(gantrymq.CompressorMissing, match=PACKAGES):
                        await messages.next_batch(10)
        assert_undone(cluster.broker)


@pytest.mark.parametrize("deserializer", [None, "json"])
@pytest.mark.parametrize("in_thread", [False, True])
async def test_a_worker_ends_with_the_error(fake_cluster: Cluster, deserializer: Any, in_thread: bool) -> None:
    handled: list[bytes] = []

    async def handle(message: gantrymq.ReceivedMessage) -> None:
        handled.append(message.body)

    def handle_in_thread(message: gantrymq.ReceivedMessage) -> None:
        handled.append(message.body)

    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        fill(cluster.broker)
        with anyio.fail_after(20), pytest.raises(gantrymq.CompressorMissing, match=PACKAGES):
            await client.run(
                handle_in_thread if in_thread else handle, "T", "g", start="first", deserializer=deserializer,
                concurrency=1, signals=False,
            )  # fmt: skip
        assert handled == [b"1", b"2"]
        assert_undone(cluster.broker)


async def test_an_app_ends_with_the_error(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster:
        fill(cluster.broker)
        app = gantrymq.App(cluster.address)

        @app.on("T", group="g", start="first", concurrency=1)
        async def handle(number: int) -> None:
            assert number in (1, 2)

        with anyio.fail_after(20), pytest.raises(gantrymq.CompressorMissing, match=PACKAGES):
            await app.run(signals=False)
        assert_undone(cluster.broker)


async def test_a_broadcast_consumer_gets_the_message_again(fake_cluster: Cluster, tmp_path: Path) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        fill(cluster.broker)
        with anyio.fail_after(20):
            async with client.consumer(
                "T", "g", start="first", deserializer="json", broadcast=True, offsets_file=tmp_path / "offsets.json"
            ) as messages:
                for _ in range(2):
                    await (await anext(messages)).ack()
                with pytest.raises(gantrymq.CompressorMissing):
                    await anext(messages)
        offsets = LocalOffsets(tmp_path / "offsets.json")
        offsets.load()
        assert offsets.get(Q0) == 2


def test_the_blocking_consumer_and_worker_raise(fake_in_thread: Any) -> None:
    fill(fake_in_thread.broker)
    with gantrymq.sync.connect(fake_in_thread.address) as client:
        with client.consumer("T", "g", start="first", deserializer="json") as messages:
            for _ in range(2):
                next(messages).ack()
            with pytest.raises(gantrymq.CompressorMissing, match=PACKAGES):
                next(messages)
        assert fake_in_thread.broker.offsets["g", "T", 0] == 2
        with pytest.raises(gantrymq.CompressorMissing, match=PACKAGES):
            client.run(lambda message: message.body, "T", "g", start="first", concurrency=1)
        assert fake_in_thread.broker.offsets["g", "T", 0] == 2
        assert not fake_in_thread.broker.seen(RequestCode.CONSUMER_SEND_MSG_BACK)

"""A consumer handles new messages with the offsets of old ones after a broker has lost the end of a queue."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

import gantrymq
from gantrymq import MessageQueue
from gantrymq.client.consumer import Consumer
from gantrymq.client.local_offsets import LocalOffsets
from gantrymq.client.options import Ordered

pytestmark = pytest.mark.anyio

Cluster = Callable[..., Any]
Messages = gantrymq.Consumer[gantrymq.ReceivedMessage]
Q0 = MessageQueue(topic="T", broker_name="broker-a", queue_id=0)


def order_key(key: object) -> str:
    return f"__SHARDINGKEY\x01{key}\x02"


async def take(messages: Messages, count: int) -> list[gantrymq.ReceivedMessage]:
    with anyio.fail_after(20):
        return [await anext(messages) for _ in range(count)]


async def nothing_comes(messages: Messages) -> bool:
    with anyio.move_on_after(0.05) as scope:
        await anext(messages)
    return scope.cancelled_caught


def highest_commit(broker: Any) -> int:
    """The highest offset that came to ``broker``, in a commit or with a pull (whose flag 1 says so)."""
    pulls = [pull for pull in broker.seen(11) if int(pull.ext["sysFlag"]) & 1]
    return max((int(request.ext["commitOffset"]) for request in (*broker.seen(15), *pulls)), default=0)


async def lose_tail(broker: Any, keep: int = 0) -> None:
    """The queue has only the first ``keep`` messages any more; returns when the consumer has begun again there."""
    del broker.queues["T", 0][keep:]
    pulls = len(broker.seen(11))
    broker.stir()
    with anyio.fail_after(20):
        while not any(int(pull.ext["queueOffset"]) == keep for pull in broker.seen(11)[pulls:]):
            await broker.changed.wait()


@pytest.mark.parametrize("settle", ["ack", "retry", "twice"])
async def test_old_messages_settled_after_a_lost_tail_do_not_count_for_new_ones(
    fake_cluster: Cluster, settle: str
) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        broker = cluster.broker
        broker.store("T", 0, b"old 0")
        broker.store("T", 0, b"old 1")
        async with client.consumer("T", "g", start="first") as messages:
            old = await take(messages, 2)
            await old[0].ack()
            if settle == "twice":
                await old[1].ack()
            await broker.wait_for(11, 2)
            await lose_tail(broker)
            broker.store("T", 0, b"new 0")
            broker.store("T", 0, b"new 1")
            new = await take(messages, 2)
            assert [message.body for message in new] == [b"new 0", b"new 1"]
            for message in old:
                await (message.retry() if settle == "retry" else message.ack())
            await messages.commit()
            assert broker.offsets["g", "T", 0] == 0
            assert not broker.seen(36), "the broker has another message there"
            await new[0].ack()
            await messages.commit()
            assert broker.offsets["g", "T", 0] == 1
            await new[1].ack()
        assert broker.offsets["g", "T", 0] == 2


@pytest.mark.parametrize("settle", ["ack", "retry", "dead letter"])
@pytest.mark.parametrize("ordered", [True, "key"])
async def test_new_messages_of_an_ordered_queue_follow_the_old_ones_after_a_lost_tail(
    fake_cluster: Cluster, ordered: Ordered, settle: str
) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        broker = cluster.broker
        broker.answers[36] = lambda request: request.answer(0)
        broker.store("T", 0, b"old 0", order_key("A"))
        async with client.consumer("T", "g", start="first", ordered=ordered) as messages:
            (old,) = await take(messages, 1)
            await broker.wait_for(11, 2)
            broker.queues["T", 0].clear()
            broker.stir()
            with anyio.fail_after(20):
                while broker.offsets.get(("g", "T", 0)) != 0:
                    await broker.changed.wait()
            for number, key in enumerate("BAA"):
                broker.store("T", 0, b"new %d" % number, order_key(key))
            assert await nothing_comes(messages), "an old message of the queue is in work"
            if settle == "ack":
                await old.ack()
            else:
                await old.retry(0 if settle == "retry" else -1)
            await messages.commit()
            assert broker.offsets["g", "T", 0] == 0
            for number in range(3):
                (message,) = await take(messages, 1)
                assert message.body == b"new %d" % number
                await message.ack()
        assert broker.offsets["g", "T", 0] == 3
        assert not broker.locks


async def test_a_broadcast_consumer_begins_again_after_a_lost_tail(fake_cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "offsets.json"
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        broker = cluster.broker
        broker.store("T", 0, b"old 0")
        async with client.consumer("T", "g", start="first", broadcast=True, offsets_file=file) as messages:
            (old,) = await take(messages, 1)
            await broker.wait_for(11, 2)
            await lose_tail(broker)
            broker.store("T", 0, b"new 0")
            (new,) = await take(messages, 1)
            await old.ack()
            await messages.commit()
            offsets = LocalOffsets(file)
            offsets.load()
            assert offsets.get(Q0) == 0
            await new.ack()
        offsets.load()
        assert offsets.get(Q0) == 1


@pytest.mark.parametrize("kind", ["plain", "ordered", "by key", "broadcast"])
async def test_a_consumer_that_ends_before_it_begins_again_commits_the_new_end(
    fake_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    async def wait_for_ever(_: Any) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr(Consumer, "_reset", wait_for_ever)
    file = tmp_path / "offsets.json"
    options: dict[str, Any] = {"ordered": {"ordered": True}, "by key": {"ordered": "key"}}.get(kind, {})
    if kind == "broadcast":
        options = {"broadcast": True, "offsets_file": file}
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        broker = cluster.broker
        for number in range(3):
            broker.store("T", 0, b"%d" % number, order_key(number))
        async with client.consumer("T", "g", start="first", **options) as messages:
            for _ in range(2):
                (old,) = await take(messages, 1)
                await messages.commit()
                await old.ack()
            await broker.wait_for(11, 2)
            broker.queues["T", 0].clear()
            broker.stir()
            (old,) = await take(messages, 1)
            with anyio.fail_after(20):
                while Q0 not in messages._resets:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
            await old.ack()
        if kind == "broadcast":
            offsets = LocalOffsets(file)
            offsets.load()
            assert offsets.get(Q0) == 0
        else:
            assert broker.offsets["g", "T", 0] == 0


@pytest.mark.parametrize("kind", ["plain", "ordered", "by key", "broadcast"])
async def test_messages_before_a_lost_end_that_were_not_acknowledged_come_again(
    fake_cluster: Cluster, tmp_path: Path, kind: str
) -> None:
    options: dict[str, Any] = {"ordered": {"ordered": True}, "by key": {"ordered": "key"}}.get(kind, {})
    if kind == "broadcast":
        options = {"broadcast": True, "offsets_file": tmp_path / "offsets.json"}
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        broker = cluster.broker
        for number in range(6):
            broker.store("T", 0, b"%d" % number, order_key("A"))
        async with client.consumer("T", "g", start="first", **options) as messages:
            (first,) = await take(messages, 1)
            await first.ack()
            (old,) = await take(messages, 1)
            await broker.wait_for(11, 2)
            del broker.queues["T", 0][5:]
            broker.stir()
            with anyio.fail_after(20):
                while not old.delivery.dropped:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
            if kind in ("ordered", "by key"):
                assert await nothing_comes(messages), "an old message of the queue is in work"
            await old.retry()
            for number in range(1, 5):
                (message,) = await take(messages, 1)
                assert message.body == b"%d" % number
                await messages.commit()
                assert highest_commit(broker) <= number
                await message.ack()
            await messages.commit()
            if kind == "broadcast":
                assert messages.offsets("T") == {Q0: 5}
            else:
                assert broker.offsets["g", "T", 0] == 5
            assert not broker.seen(36)


async def test_only_messages_that_the_broker_lost_are_replaced_by_new_ones(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        broker = cluster.broker
        for number in range(3):
            broker.store("T", 0, b"%d" % number)
        async with client.consumer("T", "g", start="first") as messages:
            old = await take(messages, 3)
            for message in old[:2]:
                await message.ack()
            await broker.wait_for(11, 2)
            await lose_tail(broker, keep=2)
            broker.store("T", 0, b"new 2")
            (new,) = await take(messages, 1)
            assert new.body == b"new 2"
            await old[2].ack()
            await messages.commit()
            assert broker.offsets["g", "T", 0] == 2
            await new.ack()
        assert broker.offsets["g", "T", 0] == 3


@pytest.mark.parametrize("ordered", [False, True, "key"])
async def test_messages_before_a_lost_end_count_until_they_are_acknowledged_if_none_of_them_was_lost(
    fake_cluster: Cluster, ordered: Ordered
) -> None:
    """Only messages that the subscription does not match were lost, so the broker still has all delivered ones."""
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        broker = cluster.broker
        for tag in "aabb":
            broker.store("T", 0, tag.encode(), f"TAGS\x01{tag}")
        async with client.consumer("T", "g", start="first", tags="a", ordered=ordered) as messages:
            (first,) = await take(messages, 1)
            await broker.wait_for(11, 2)
            await lose_tail(broker, keep=3)
            await messages.commit()
            assert broker.offsets["g", "T", 0] == 0
            assert messages.statistics().queues[Q0].outstanding == 2
            await first.ack()
            await messages.commit()
            assert broker.offsets["g", "T", 0] == 1
            (second,) = await take(messages, 1)
            await second.ack()
            broker.store("T", 0, b"new", "TAGS\x01a")
            (new,) = await take(messages, 1)
            assert (new.body, new.queue_offset) == (b"new", 3)
            await messages.commit()
            assert broker.offsets["g", "T", 0] == 3
            await new.ack()
        assert broker.offsets["g", "T", 0] == 4

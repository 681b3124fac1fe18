"""Ordered consumption: one message of a queue at a time, while members join, leave or die."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import anyio
import pytest

import gantrymq
import gantrymq.sync
from gantrymq import MessageQueue
from gantrymq.client.lanes import KeyLane, Lane
from gantrymq.client.options import Ordered
from gantrymq.remoting.bodies.queues import LockBatchRequestBody

pytestmark = pytest.mark.anyio

Cluster = Callable[..., Any]
KEYS = 3
Q0 = MessageQueue(topic="T", broker_name="broker-a", queue_id=0)


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gantrymq.client.consumer.SUSPEND_SECONDS", 0.01)
    monkeypatch.setattr("gantrymq.client.consumer.REBALANCE_RETRY_SECONDS", 0.01)
    monkeypatch.setattr("gantrymq.client.consumer.LOCK_CHECK_SECONDS", 0.01)
    monkeypatch.setattr("gantrymq.client.puller.PAUSE_AFTER_ERROR_SECONDS", 0.01)


def order_key(key: object) -> str:
    return f"__SHARDINGKEY\x01{key}\x02"


async def take(messages: gantrymq.Consumer[gantrymq.ReceivedMessage], count: int) -> list[gantrymq.ReceivedMessage]:
    with anyio.fail_after(20):
        return [await anext(messages) for _ in range(count)]


async def nothing_comes(messages: gantrymq.Consumer[gantrymq.ReceivedMessage]) -> bool:
    with anyio.move_on_after(0.05) as scope:
        await anext(messages)
    return scope.cancelled_caught


async def test_the_next_message_of_a_queue_is_delivered_after_the_previous_one_is_settled(
    fake_cluster: Cluster,
) -> None:
    async with fake_cluster(T=2) as cluster, gantrymq.connect(cluster.address) as client:
        for number in range(6):
            cluster.broker.store("T", number % 2, b"%d" % number)
        async with client.consumer("T", "g", start="first", ordered=True) as messages:
            first, second = await take(messages, 2)
            assert {first.queue.queue_id, second.queue.queue_id} == {0, 1}
            assert await nothing_comes(messages)
            await second.ack()
            (third,) = await take(messages, 1)
            assert (third.queue, third.queue_offset) == (second.queue, 1)
            assert await nothing_comes(messages)
        assert not cluster.broker.locks, "given back at the end"
        assert cluster.broker.offsets["g", "T", second.queue.queue_id] == 1


async def test_a_batch_is_from_one_queue_and_the_next_follows_when_it_is_settled(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        for number in range(10):
            cluster.broker.store("T", 0, b"%d" % number)
        async with client.consumer("T", "g", start="first", ordered=True) as messages:
            batch = await messages.next_batch(4)
            assert [message.queue_offset for message in batch] == [0, 1, 2, 3]
            await batch[0].ack()
            await batch[3].ack()
            await batch[1].retry()  # and the third one with it, since it may depend on the second
            again = await messages.next_batch(4)
            assert [message.queue_offset for message in again] == [1, 2, 4, 5]
            assert [message.reconsume_times for message in again] == [1, 0, 0, 0]
            await batch[2].ack()
            assert messages.statistics().returned == 1


async def test_a_message_sent_back_is_redelivered_first_until_it_is_a_dead_letter(
    fake_cluster: Cluster,
) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.answers[36] = lambda request: request.answer(0)
        for number in range(2):
            cluster.broker.store("T", 0, b"%d" % number)
        async with client.consumer("T", "g", start="first", ordered=True, max_retries=2) as messages:
            for attempt in range(3):
                (message,) = await take(messages, 1)
                assert (message.body, message.reconsume_times) == (b"0", attempt)
                await message.retry()
            (message,) = await take(messages, 1)
            assert message.body == b"1"
            await message.retry(-1)
        assert [back.ext["delayLevel"] for back in cluster.broker.seen(36)] == ["-1", "-1"]
        assert cluster.broker.offsets["g", "T", 0] == 2


async def test_a_message_that_is_redelivered_with_the_one_before_it_is_no_dead_letter(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        broker = cluster.broker
        broker.answers[36] = lambda request: request.answer(0)
        for number in range(2):
            broker.store("T", 0, b"%d" % number)
        async with client.consumer("T", "g", start="first", ordered=True) as messages:
            with anyio.fail_after(20):
                for _ in range(3):
                    batch = await messages.next_batch(2)
                    await batch[0].retry()
                    await batch[1].retry(-1)
                assert not broker.seen(36)
                batch = await messages.next_batch(2)
                await batch[0].ack()
                await batch[1].retry(-1)
        assert len(broker.seen(36)) == 1
        assert broker.offsets["g", "T", 0] == 2


async def test_a_message_that_is_being_sent_back_is_not_redelivered_with_the_one_before_it(
    fake_cluster: Cluster,
) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        broker = cluster.broker
        may_answer = anyio.Event()

        async def late(request: Any) -> Any:
            await may_answer.wait()
            return request.answer(0)

        broker.answers[36] = late
        broker.store("T", 0, b"1")
        broker.store("T", 0, b"no JSON")
        async with client.consumer("T", "g", start="first", ordered=True, deserializer="json") as messages:
            with anyio.fail_after(20):
                (message,) = await messages.next_batch(2)
                await broker.wait_for(36)
                await message.retry()
                may_answer.set()
                (message,) = await messages.next_batch(2)
                await message.ack()
                await messages.commit()
        assert len(broker.seen(36)) == 1
        assert broker.offsets["g", "T", 0] == 2


async def test_a_queue_locked_by_another_member_is_not_consumed(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.store("T", 0, b"x")
        cluster.broker.locks["g", Q0] = "another"
        async with client.consumer("T", "g", start="first", ordered=True) as messages:
            assert await nothing_comes(messages)
            assert not cluster.broker.seen(11)
            cluster.broker.offsets["g", "T", 0] = 1
            cluster.broker.store("T", 0, b"y")
            del cluster.broker.locks["g", Q0]
            assert (await take(messages, 1))[0].body == b"y", "the offset is read when the lock is there"


async def test_locks_are_renewed_and_a_lost_lock_restarts_the_queue(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gantrymq.client.locks.RENEW_SECONDS", 0.05)
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        for number in range(3):
            cluster.broker.store("T", 0, b"%d" % number)
        async with client.consumer("T", "g", start="first", ordered=True) as messages:
            (stale,) = await take(messages, 1)
            await cluster.broker.wait_for(41, 3)
            cluster.broker.locks["g", Q0] = "another"
            with anyio.fail_after(20):
                while messages.queues:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
            await stale.ack()
            await messages.commit()
            assert ("g", "T", 0) not in cluster.broker.offsets, "the offset is the other member's to commit"
            cluster.broker.offsets["g", "T", 0] = 2
            del cluster.broker.locks["g", Q0]
            (message,) = await take(messages, 1)
            assert message.body == b"2"


async def test_an_expired_lock_blocks_messages_and_commits(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        for number in range(3):
            cluster.broker.store("T", 0, b"%d" % number)
        async with client.consumer("T", "g", start="first", ordered=True) as messages:
            (message,) = await take(messages, 1)
            monkeypatch.setattr("gantrymq.client.consumer.LOCK_CHECK_SECONDS", 3600)
            await anyio.sleep(0.05)
            monkeypatch.setattr("gantrymq.client.locks.HELD_SECONDS", -1)  # as after a pause of the process
            await message.ack()
            assert await nothing_comes(messages)
            await messages.commit()
            assert ("g", "T", 0) not in cluster.broker.offsets


async def test_a_queue_continues_after_a_renewal_that_came_when_its_lock_had_lapsed(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gantrymq.client.locks.CALL_SECONDS", 60)
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        for number in range(3):
            cluster.broker.store("T", 0, b"%d" % number)
        may_answer = anyio.Event()

        async def late(request: Any) -> Any:
            await may_answer.wait()
            return cluster.broker.on_lock_batch_mq(request)

        async with client.consumer("T", "g", start="first", ordered=True) as messages:
            (message,) = await take(messages, 1)
            cluster.broker.answers[41] = late
            renewals = len(cluster.broker.seen(41)) + 1
            monkeypatch.setattr("gantrymq.client.locks.RENEW_SECONDS", 0.0)
            await cluster.broker.wait_for(41, renewals)
            monkeypatch.setattr("gantrymq.client.locks.HELD_SECONDS", -1)  # it lapses while the renewal is under way
            await message.ack()
            assert await nothing_comes(messages)
            monkeypatch.setattr("gantrymq.client.locks.HELD_SECONDS", 3600)
            may_answer.set()
            (message,) = await take(messages, 1)
            assert message.body == b"1"


def renewals_of(broker: Any, queue: MessageQueue) -> int:
    return sum(queue in LockBatchRequestBody.from_bytes(request.body).mq_set for request in broker.seen(41))


async def wait_renewed(broker: Any, queue: MessageQueue, times: int) -> bool:
    """Whether a member asks for the lock of ``queue`` so many times more, within ten seconds."""
    wanted = renewals_of(broker, queue) + times
    with anyio.move_on_after(10):
        while renewals_of(broker, queue) < wanted:
            await broker.changed.wait()
        return True
    return False


async def test_locks_are_renewed_while_on_assigned_runs(fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gantrymq.client.locks.RENEW_SECONDS", 0.05)
    renewed: list[bool] = []

    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.store("T", 0, b"x")

        async def on_assigned(queues: Sequence[MessageQueue]) -> None:
            renewed.append(await wait_renewed(cluster.broker, Q0, 3))

        async with client.consumer("T", "g", start="first", ordered=True, on_assigned=on_assigned) as messages:
            (message,) = await take(messages, 1)
            assert message.body == b"x"
            assert not cluster.broker.seen(42), "the lock was not given back in between"
        assert renewed == [True]


async def test_locks_of_other_queues_are_renewed_while_on_revoked_of_a_lost_queue_runs(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gantrymq.client.locks.RENEW_SECONDS", 0.05)
    other = MessageQueue(topic="T", broker_name="broker-a", queue_id=1)
    renewed: list[bool] = []
    called = anyio.Event()

    async with fake_cluster(T=2) as cluster, gantrymq.connect(cluster.address) as client:

        async def on_revoked(queues: Sequence[MessageQueue]) -> None:
            if not called.is_set():
                renewed.append(await wait_renewed(cluster.broker, other, 3))
                called.set()

        async with client.consumer("T", "g", ordered=True, on_revoked=on_revoked):
            cluster.broker.locks["g", Q0] = "0-another-member"
            with anyio.fail_after(20):
                await called.wait()
        assert renewed == [True]


@pytest.mark.parametrize("settle", ["ack", "retry", "dead letter"])
@pytest.mark.parametrize("ordered", [True, "key"])
async def test_a_reset_waits_for_the_messages_in_work(fake_cluster: Cluster, ordered: Ordered, settle: str) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        broker = cluster.broker
        broker.answers[36] = lambda request: request.answer(0)
        for number in range(4):
            broker.store("T", 0, b"%d" % number, order_key("a"))
        async with client.consumer("T", "g", start="first", ordered=ordered) as messages:
            (message,) = await take(messages, 1)
            for offset in (1, 2):  # the second one while the first one waits
                messages.reset_offsets({Q0: offset})
                with anyio.fail_after(20):
                    while broker.offsets.get(("g", "T", 0)) != offset:
                        await broker.changed.wait()
            assert await nothing_comes(messages)
            assert broker.locks["g", Q0] == client.client_id
            if settle == "ack":
                await message.ack()
            else:
                await message.retry(0 if settle == "retry" else -1)
            (message,) = await take(messages, 1)
            assert message.body == b"2"
            await messages.commit()
            assert broker.offsets["g", "T", 0] == 2
            await message.ack()
        assert broker.offsets["g", "T", 0] == 3
        assert not broker.locks


async def test_a_queue_moves_to_another_member_after_messages_in_progress_are_settled(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        for number in range(3):
            cluster.broker.store("T", 0, b"%d" % number)
        async with client.consumer("T", "g", start="first", ordered=True) as messages:
            (message,) = await take(messages, 1)
            cluster.broker.groups["g"] = ["0-another-member"]
            await cluster.broker.notify("g")
            with anyio.fail_after(20):
                while messages.queues:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
            assert await nothing_comes(messages)
            assert cluster.broker.locks["g", Q0] == client.client_id
            await message.ack()
            with anyio.fail_after(20):
                while ("g", Q0) in cluster.broker.locks:
                    await cluster.broker.changed.wait()
            assert cluster.broker.offsets["g", "T", 0] == 1, "committed before the lock was given back"
            codes = [request.code for request in cluster.broker.requests]
            assert codes.index(42) > codes.index(15)


async def test_a_lock_granted_while_leaving_is_released(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        async with client.consumer("T", "g", ordered=True) as messages:
            cluster.broker.groups["g"] = ["0-another-member"]
            await cluster.broker.notify("g")
            with anyio.fail_after(20):
                while messages.queues or cluster.broker.locks:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
            cluster.broker.answers[41] = lambda request: cluster.broker.on_lock_batch_mq(request) and None
            cluster.broker.groups["g"] = [client.client_id]
            await cluster.broker.notify("g")
            await cluster.broker.wait_for(41, 2)
        assert not cluster.broker.locks


async def test_a_lock_granted_after_a_rebalance_is_released(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gantrymq.client.locks.CALL_SECONDS", 0.05)
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.answers[41] = lambda request: cluster.broker.on_lock_batch_mq(request) and None
        async with client.consumer("T", "g", ordered=True):
            await cluster.broker.wait_for(41, 2)
            assert cluster.broker.locks
            cluster.broker.groups["g"] = ["0-another-member"]
            await cluster.broker.notify("g")
            with anyio.fail_after(20):
                while cluster.broker.locks:
                    await cluster.broker.changed.wait()


async def test_a_renewal_that_overtakes_the_release_is_released(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gantrymq.client.locks.RENEW_SECONDS", 0.05)
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        released = anyio.Event()

        async def late(request: Any) -> Any:
            await released.wait()
            return cluster.broker.on_lock_batch_mq(request)

        def release(request: Any) -> Any:
            released.set()
            return cluster.broker.on_unlock_batch_mq(request)

        async with client.consumer("T", "g", ordered=True):
            cluster.broker.answers[41] = late
            await cluster.broker.wait_for(41, 2)
            cluster.broker.answers[42] = release
            cluster.broker.groups["g"] = ["0-another-member"]
            await cluster.broker.notify("g")
            await cluster.broker.wait_for(42, 2)
            with anyio.fail_after(20):
                while cluster.broker.locks:
                    await cluster.broker.changed.wait()


async def test_a_queue_may_lose_its_lock_while_on_revoked_runs(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gantrymq.client.locks.RENEW_SECONDS", 0.0)
    revoked: list[int] = []

    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.store("T", 0, b"x")

        async def on_revoked(queues: Sequence[MessageQueue]) -> None:
            revoked.append(len(queues))
            cluster.broker.locks["g", Q0] = "0-another-member"
            with anyio.move_on_after(20):
                while messages.queues:  # noqa: ASYNC110
                    await anyio.sleep(0.01)

        async with client.consumer("T", "g", start="first", ordered=True, on_revoked=on_revoked) as messages:
            await take(messages, 1)
            cluster.broker.groups["g"].insert(0, "0-another-member")
            await cluster.broker.notify("g")
            with anyio.fail_after(20):
                while messages.queues:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
            cluster.broker.groups["g"].remove("0-another-member")
            cluster.broker.locks.clear()
            await cluster.broker.notify("g")
            assert await nothing_comes(messages), "the message of the lost queue is still in work"
            assert revoked == [1]
            await messages.commit()


class Stop:
    """How one member ends."""

    def __init__(self) -> None:
        self.event = anyio.Event()
        self.kills = False


class Group:
    """Members that join, leave and die by chance, and what they did with each queue."""

    def __init__(self, cluster: Any, chance: random.Random, ordered: Ordered) -> None:
        self.cluster = cluster
        self.chance = chance
        self.ordered = ordered
        self.keys = KEYS if ordered == "key" else 1
        self.done: dict[int, set[int]] = defaultdict(set)
        self.busy: dict[tuple[int, int], object] = {}
        self.most = 0
        self.handed_over = 0
        self.moved = anyio.Event()
        self.last: dict[int, object] = {}

    async def member(self, stop: Stop) -> None:
        me = object()
        client_id = ""
        try:
            async with gantrymq.connect(self.cluster.address) as client:
                client_id = client.client_id
                async with client.consumer("T", "g", start="first", ordered=self.ordered) as messages:
                    await self.cluster.broker.notify("g")
                    async with anyio.create_task_group() as tasks:
                        for _ in range(3):
                            tasks.start_soon(self.work, me, messages)
                        await stop.event.wait()
                        if stop.kills:
                            self.cut(client)
                        tasks.cancel_scope.cancel()
        finally:
            self.cluster.broker.forget(client_id)
            with anyio.CancelScope(shield=True):
                await self.cluster.broker.notify("g")

    @property
    def count(self) -> int:
        """How many messages are done."""
        return sum(map(len, self.done.values()))

    async def progress(self, count: int) -> None:
        """Wait until so many messages are done."""
        while self.count < count:
            self.moved = anyio.Event()
            await self.moved.wait()

    def cut(self, client: gantrymq.Client) -> None:
        async def refuse(address: str, *_: object) -> None:
            raise gantrymq.ConnectFailed(address, "the process died")

        connections: Any = client._cluster.connections
        connections.get, connections.open_one = refuse, lambda address: None
        for channel in connections._started:
            channel.abandon("the process died")

    def busy_elsewhere(self, queue_id: int, me: object) -> list[tuple[int, int]]:
        return [unit for unit, who in self.busy.items() if unit[0] == queue_id and who is not me]

    async def work(self, me: object, messages: gantrymq.Consumer[gantrymq.ReceivedMessage]) -> None:
        async for message in messages:
            queue_id, offset = message.queue.queue_id, message.queue_offset
            unit = (queue_id, offset % self.keys)
            assert unit not in self.busy, f"two at a time in queue {queue_id}"
            missing = set(range(unit[1], offset, self.keys)) - self.done[queue_id]
            assert not missing, f"{offset} of queue {queue_id} came before {sorted(missing)}"
            assert self.busy_elsewhere(queue_id, me) == [], f"two members have queue {queue_id}"
            self.busy[unit] = me
            self.most = max(self.most, sum(other[0] == queue_id for other in self.busy))
            self.handed_over += self.last.get(queue_id, me) is not me
            self.last[queue_id] = me
            try:
                await anyio.sleep(self.chance.random() * 0.002)
            finally:  # a member that ends works no more when it releases its locks
                del self.busy[unit]
            if self.chance.random() < 0.1:
                await message.retry()
            else:
                self.done[queue_id].add(offset)
                self.moved.set()
                await message.ack()


@pytest.mark.parametrize(("seed", "ordered"), [(0, True), (1, True), (2, "key")])
@pytest.mark.slow
async def test_order_is_kept_when_members_join_leave_or_die(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch, seed: int, ordered: Ordered
) -> None:
    monkeypatch.setattr("gantrymq.client.consumer.COMMIT_INTERVAL_SECONDS", 0.02)
    monkeypatch.setattr("gantrymq.client.locks.RENEW_SECONDS", 0.05)
    chance = random.Random(seed)
    queues, count = 4, 100
    async with fake_cluster(T=queues) as cluster, anyio.create_task_group() as members:
        group = Group(cluster, chance, ordered)
        running: list[Stop] = []

        def join() -> None:
            running.append(Stop())
            members.start_soon(group.member, running[-1])

        join()
        with anyio.fail_after(100):
            stored = 0
            while group.count < queues * count:
                if stored < count:
                    for queue_id in range(queues):
                        for number in range(stored, stored + 5):
                            cluster.broker.store("T", queue_id, b"%d" % number, order_key(number % KEYS))
                    stored += 5
                # a change waits for progress, so that a slow machine has no more of them than a fast one
                await group.progress(min(group.count + chance.randrange(5, 25), queues * stored))
                step = chance.random()
                if len(running) < 2 or (len(running) < 3 and step < 0.4):
                    join()
                elif step < 0.8:
                    stop = running.pop(chance.randrange(len(running)))
                    stop.kills = step < 0.6
                    stop.event.set()
        assert group.handed_over > 3
        assert (group.most > 1) == (ordered == "key")
        for stop in running:
            stop.event.set()


def test_a_lane_without_its_lock_returns_nothing() -> None:
    offered: list[Lane[Any]] = []
    held = False
    lane: Lane[Any] = Lane(offered.append, lambda: held)
    record = gantrymq.ReceivedMessage("T", 0, 0, 0, 0, 0, 0, bytes(8), 0, bytes(8), 0, 0, b"x", b"", 100)
    lane.add([record])
    assert offered == [lane]
    assert lane.take(5) == []
    held = True
    assert lane.take(5) == [record]
    assert lane.in_work == 1
    lane.close()
    drained: list[bool] = []
    lane.drained = lambda: drained.append(True)
    assert not lane.settle(7)
    assert lane.put_back(0)
    assert drained == [True]
    assert not lane.put_back(0)
    lane.resume()
    assert lane.take(5) == []


def record_of(offset: int, key: str | None) -> gantrymq.ReceivedMessage:
    raw = b"" if key is None else order_key(key).encode()
    return gantrymq.ReceivedMessage("T", 0, 0, offset, 0, 0, 0, bytes(8), 0, bytes(8), 0, 0, b"x", raw, 100)


def test_a_message_that_comes_back_later_than_the_one_before_it_stays_behind_it() -> None:
    """Its send back was in flight when the other one was put back, and the master refused it."""
    lane: Lane[Any] = Lane(lambda lane: None, lambda: True)
    records = [record_of(offset, None) for offset in range(3)]
    lane.add(records)
    assert lane.take(2) == records[:2]
    first = lane.put_back(0, kept={1})
    second = lane.put_back(1)
    assert first is not None
    assert second is not None
    first()
    second()
    assert lane.take(5) == records


def test_a_keyed_lane_returns_one_message_of_each_key() -> None:
    offered: list[Lane[Any]] = []
    lane: KeyLane[Any] = KeyLane(offered.append, lambda: True)
    a0, b1, a2, free3, free4, a5 = records = [
        record_of(offset, key) for offset, key in enumerate(["a", "b", "a", None, None, "a"])
    ]
    lane.add(records)
    assert offered == [lane]
    assert lane.take(1) == [a0]
    assert offered == [lane, lane], "there is more"
    assert lane.take(10) == [b1, free3, free4]
    assert (lane.in_work, lane.take(10)) == (4, [])
    resume = lane.put_back(0)
    assert resume is not None
    assert lane.put_back(0) is None
    assert not lane.settle(0)
    assert lane.take(10) == [], "the key is suspended"
    resume()
    assert lane.take(10) == [a0], "before the others of its key"
    assert lane.settle(1)
    lane.add([record_of(6, "b")])
    assert [record.queue_offset for record in lane.take(10)] == [6], "the key was free"
    assert lane.settle(0)
    assert lane.take(10) == [a2]
    assert lane.settle(2)
    drained: list[bool] = []
    lane.drained = lambda: drained.append(True)
    again = lane.put_back(3)
    lane.close()
    assert lane.settle(4)
    assert drained == []
    assert lane.settle(6)
    assert drained == [True]
    assert again is not None
    again()
    assert lane.take(10) == []
    lane.add([a5])
    assert lane.take(10) == []


def test_a_keyed_lane_without_its_lock_returns_nothing() -> None:
    held = False
    lane: KeyLane[Any] = KeyLane(lambda _: None, lambda: held)
    lane.add([record_of(0, "a")])
    assert lane.take(5) == []
    held = True
    assert len(lane.take(5)) == 1


async def test_a_batch_of_a_consumer_ordered_by_key_has_one_message_of_each_key(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        for number, key in enumerate("aabc"):
            cluster.broker.store("T", 0, b"%d" % number, order_key(key))
        async with client.consumer("T", "g", start="first", ordered="key") as messages:
            assert messages.ordered
            first = await messages.next_batch(10)
            assert [message.body for message in first] == [b"0", b"2", b"3"]
            await first[0].retry()
            (again,) = await messages.next_batch(10)
            assert (again.body, again.reconsume_times) == (b"0", 1)
            for message in first:
                await message.ack()
            (last,) = await messages.next_batch(10)
            assert last.body == b"1"
        assert cluster.broker.offsets["g", "T", 0] == 1


@pytest.mark.parametrize("ordered", [True, "key"])
@pytest.mark.parametrize("reason", ["handler", "body"])
async def test_a_message_that_cannot_be_returned_does_not_keep_a_revoked_queue(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch, reason: str, ordered: Ordered
) -> None:
    monkeypatch.setattr("gantrymq.client.worker.SEND_BACK_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr("gantrymq.client.intercepted.SEND_BACK_PAUSE_SECONDS", 0.01)

    async def handle(message: gantrymq.ReceivedMessage) -> None:
        raise gantrymq.DeadLetter("not wanted")

    async with fake_cluster(T=2) as cluster, gantrymq.connect(cluster.address) as client:
        broker = cluster.broker
        broker.answers[36] = lambda request: request.answer(14, "no room")
        broker.store("T", 0, b"1" if reason == "handler" else b"{")
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                options: Any = {"start": "first", "ordered": ordered, "deserializer": "json"}
                tasks.start_soon(partial(client.run, handle, "T", "g", signals=False, **options))
                await broker.wait_for(36)
                broker.groups["g"].insert(0, "0-another-member")  # sorts first, so it gets queue 0
                await broker.notify("g")
                while ("g", Q0) in broker.locks:
                    await broker.changed.wait()
                tasks.cancel_scope.cancel()
        assert broker.offsets["g", "T", 0] == 0, "the other member gets it"


@pytest.mark.parametrize("interceptors", [(), (gantrymq.Interceptor(),)], ids=["plain", "intercepted"])
def test_redeliveries_of_a_blocking_consumer_do_not_nest_their_deliveries(
    fake_in_thread: Any, monkeypatch: pytest.MonkeyPatch, interceptors: tuple[gantrymq.Interceptor, ...]
) -> None:
    monkeypatch.setattr("gantrymq.client.consumer.SUSPEND_SECONDS", 0)

    def layers(message: gantrymq.sync.ReceivedMessage) -> list[str]:
        delivery: Any = message.delivery
        found = [type(delivery).__name__]
        while (delivery := getattr(delivery, "inner", None)) is not None:
            found.append(type(delivery).__name__)
        return found

    fake_in_thread.broker.store("T", 0, b"x")
    with (
        gantrymq.sync.connect(fake_in_thread.address, interceptors=interceptors) as client,
        client.consumer("T", "g", start="first", ordered=True) as messages,
    ):
        message = next(messages)
        first = layers(message)
        for number in range(5):
            message.retry()
            (message,) = batch = messages.next_batch(timeout=20)
            assert (message.reconsume_times, layers(message)) == (number + 1, first)
        batch.ack()
    assert fake_in_thread.broker.offsets["g", "T", 0] == 1


def test_a_blocking_call_without_waiting_gets_a_message_in_order(fake_in_thread: Any) -> None:
    fake_in_thread.broker.store("T", 0, b"x")
    with (
        gantrymq.sync.connect(fake_in_thread.address) as client,
        client.consumer("T", "g", start="first", ordered=True) as messages,
    ):
        deadline = time.monotonic() + 20
        while not (batch := messages.next_batch(timeout=0)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert [message.body for message in batch] == [b"x"]


def test_the_blocking_consumer_supports_order(fake_in_thread: Any) -> None:
    for number in range(4):
        fake_in_thread.broker.store("T", 0, b"%d" % number)
    with (
        gantrymq.sync.connect(fake_in_thread.address) as client,
        client.consumer("T", "g", start="first", ordered=True) as messages,
    ):
        first = next(messages)
        assert messages.next_batch(timeout=0.05) == []
        first.ack()
        second = next(messages)
        second.retry()
        again = next(messages)
        assert (again.body, again.reconsume_times) == (b"1", 1)
    request = fake_in_thread.broker.seen(41)[0]
    assert LockBatchRequestBody.from_bytes(request.body).client_id == client.client_id
    assert fake_in_thread.broker.locks == {}

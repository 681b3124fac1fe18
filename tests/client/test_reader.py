"""Readers with positions of their own: seeks, pauses, and the end offsets of an iteration."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest

import gantrymq
import gantrymq.sync
from gantrymq import MessageQueue, Sql
from gantrymq.message import DeliveredRecord
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command

pytestmark = pytest.mark.anyio

Cluster = Callable[..., Any]
Q0, Q1 = (MessageQueue(topic="T", broker_name="broker-a", queue_id=number) for number in range(2))


def fill(cluster: Any, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        cluster.broker.store("T", number % 2, b"%d" % number, f"TAGS\x01{'ab'[number % 4 // 2]}")


async def poll(reader: gantrymq.Reader[DeliveredRecord], count: int) -> list[bytes]:
    got: list[bytes] = []
    with anyio.fail_after(20):
        while len(got) < count:
            got += [message.body for message in await reader.poll(max=count - len(got))]
    return got


def numbers(first: int, last: int) -> set[bytes]:
    return {b"%d" % number for number in range(first, last)}


async def test_a_reader_returns_all_messages_and_follows_the_topic(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=2) as cluster, gantrymq.connect(cluster.address) as client, client.reader("T") as reader:
        fill(cluster, 100)
        assert set(await poll(reader, 100)) == numbers(0, 100)
        assert await reader.poll(timeout=0.01) == []
        fill(cluster, 2, 100)
        assert set(await poll(reader, 2)) == numbers(100, 102)
        assert reader.queues == [Q0, Q1]
        assert (await reader.position(Q0), await reader.position(Q1)) == (51, 51)
        assert await reader.begin_offsets() == {Q0: 0, Q1: 0}
        assert await reader.end_offsets() == {Q0: 51, Q1: 51}
        assert not cluster.broker.seen(34), "it is no member of a group"
        assert not cluster.broker.offsets


@pytest.mark.parametrize("until", [None, "end"])
async def test_polls_with_a_timeout_of_0_get_the_messages_in_the_end(fake_cluster: Cluster, until: Any) -> None:
    async with fake_cluster(T=2) as cluster, gantrymq.connect(cluster.address) as client:
        fill(cluster, 20)
        got: list[bytes] = []
        async with client.reader("T", until=until) as reader:
            with anyio.fail_after(20):
                while len(got) < 20:
                    got += [message.body for message in await reader.poll(timeout=0)]
                    await anyio.sleep(0.001)
        assert set(got) == numbers(0, 20)


async def test_a_reader_that_is_assigned_other_queues_looks_for_their_ends(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=2) as cluster, gantrymq.connect(cluster.address) as client:
        fill(cluster, 20)
        async with client.reader("T", until="end") as reader:
            await reader.assign([Q0])
            assert {message.queue_id async for message in reader} == {0}
            await reader.assign([Q1])
            assert len([message async for message in reader]) == 10


async def test_an_iteration_ends_at_the_end_offsets_of_its_start(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=2) as cluster, gantrymq.connect(cluster.address) as client:
        fill(cluster, 20)
        got = []
        async with client.reader("T", until="end") as reader:
            async for message in reader:
                got.append(message.body)
                if len(got) == 1:
                    fill(cluster, 20, 20)
            assert set(got) == numbers(0, 20)
            assert await reader.poll(timeout=5) == []
            await reader.seek_to_beginning()
            assert len([message async for message in reader]) == 40, "a seek looks for the end anew"
        async with client.reader("T", tags="a", until="end") as reader:
            assert {message.tags async for message in reader} == {"a"}
        async with client.reader("Empty", until="end") as reader:
            with pytest.raises(gantrymq.NoRoute):
                await reader.poll(timeout=5)
        cluster.nameserver.topics["Empty"] = 2
        async with client.reader("Empty", until="end") as reader:
            assert [message async for message in reader] == []


async def test_an_iteration_over_a_queue_with_nothing_to_read_ends_at_once(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        fill(cluster, 2)
        async with client.reader("T", until="end", start="last") as reader:
            with anyio.fail_after(5):  # far less than the broker holds a pull
                assert [message async for message in reader] == []


@pytest.mark.parametrize("move", ["seek", "seek_to_end"])
async def test_a_poll_that_waits_notices_that_a_seek_has_reached_the_end(fake_cluster: Cluster, move: str) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.store("T", 0, b"x")
        async with client.reader("T", until="end") as reader:
            assert await reader.position(Q0) == 0
            reader.pause()
            got: list[list[DeliveredRecord]] = []

            async def poll_once() -> None:
                got.append(await reader.poll())

            with anyio.fail_after(5):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(poll_once)
                    await cluster.broker.wait_for(30)
                    await anyio.sleep(0.05)
                    assert not got
                    await (reader.seek(Q0, 1) if move == "seek" else reader.seek_to_end(Q0))
            assert got == [[]]


async def test_seek_accepts_offsets_times_beginning_and_end(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=2) as cluster, gantrymq.connect(cluster.address) as client:
        fill(cluster, 20)
        async with client.reader("T", start="last") as reader:
            assert await reader.poll(timeout=0.05) == []
            await reader.seek(Q0, 7)
            assert await poll(reader, 3) == [b"14", b"16", b"18"]
            assert await reader.position(Q0) == 10
            await reader.seek_to_beginning(Q1)
            assert set(await poll(reader, 10)) == {b"%d" % number for number in range(1, 20, 2)}
            await reader.seek_to_beginning()
            assert set(await poll(reader, 20)) == numbers(0, 20)
            await reader.seek_to_time(datetime(2023, 11, 14, 22, 13, 20, 20_000, tzinfo=UTC), Q0)
            assert await poll(reader, 1) == [b"4"]
            await reader.seek_to_end()
            assert await reader.poll(timeout=0.05) == []
            for wrong in (reader.seek(Q0, -1), reader.seek(MessageQueue("T", "b", 9), 0), reader.seek_to_time("last")):
                with pytest.raises(ValueError, match=r"negative|not read|not a time"):
                    await wrong


async def test_no_pull_is_sent_while_too_many_bytes_are_fetched_ahead(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gantrymq.client.reader.OUTSTANDING_MAX_BYTES", 3000)
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        for number in range(40):
            cluster.broker.store("T", 0, b"%02d" % number * 500)  # somewhat more than 1,000 bytes each
        async with client.reader("T", pull_batch=1) as reader:
            await reader.assign()
            for pulls in (3, 4):
                await cluster.broker.wait_for(11, pulls)
                await anyio.sleep(0.05)
                assert len(cluster.broker.seen(11)) == pulls, "three messages are fetched ahead"
                reader._put_back(await reader.poll(max=2))  # counts as fetched ahead again
                assert len(await reader.poll(max=1)) == 1
            await reader.seek(Q0, 20)
            assert [int(body[:2]) for body in await poll(reader, 20)] == list(range(20, 40))
            assert reader._queues[Q0].bytes == 0


async def test_messages_fetched_before_a_seek_are_dropped(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client, client.reader("T") as reader:
        for number in range(50):
            cluster.broker.store("T", 0, b"%d" % number)
        assert (await anext(reader)).body == b"0"
        await reader.seek(Q0, 40)
        assert (await anext(reader)).body == b"40"


async def test_a_paused_queue_returns_nothing_while_others_continue(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=2) as cluster, gantrymq.connect(cluster.address) as client, client.reader("T") as reader:
        await reader.assign()
        reader.pause(Q0)
        fill(cluster, 10)
        assert set(await poll(reader, 5)) == {b"1", b"3", b"5", b"7", b"9"}
        assert await reader.poll(timeout=0.05) == []
        reader.pause()
        fill(cluster, 10, 10)
        assert await reader.poll(timeout=0.05) == []
        reader.resume(Q0)
        assert len(await poll(reader, 10)) == 10
        reader.resume()
        assert len(await poll(reader, 5)) == 5
        with pytest.raises(ValueError, match="not read"):
            reader.pause(MessageQueue("T", "b", 9))


async def test_only_assigned_queues_are_read(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=2) as cluster, gantrymq.connect(cluster.address) as client, client.reader("T") as reader:
        fill(cluster, 10)
        await reader.assign([Q1])
        assert set(await poll(reader, 5)) == {b"1", b"3", b"5", b"7", b"9"}
        assert await reader.poll(timeout=0.05) == []
        await reader.assign([Q0, Q1])
        assert len(await poll(reader, 5)) == 5
        await reader.assign([])
        fill(cluster, 2)
        assert await reader.poll(timeout=0.05) == []
        with pytest.raises(gantrymq.InvalidName, match="not U"):
            await reader.assign([MessageQueue("U", "broker-a", 0)])


def delay_routes(cluster: Any) -> anyio.Event:
    """Let the nameserver answer requests for routes when the returned event is set."""
    may_answer = anyio.Event()

    async def late(request: Any) -> Any:
        await may_answer.wait()
        return cluster.nameserver.on_get_routeinfo_by_topic(request)

    cluster.nameserver.answers[105] = late
    return may_answer


async def test_the_latest_of_concurrent_assignments_is_effective(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=2) as cluster, gantrymq.connect(cluster.address) as client, client.reader("T") as reader:
        may_answer = delay_routes(cluster)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(reader.assign)
            await cluster.nameserver.wait_for(105)
            await reader.assign([Q0])
            may_answer.set()
        assert reader.queues == [Q0]


async def test_queues_assigned_during_the_first_look_up_are_the_only_ones_read(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=2) as cluster, gantrymq.connect(cluster.address) as client, client.reader("T") as reader:
        may_answer = delay_routes(cluster)
        fill(cluster, 2)
        assert await reader.poll(timeout=0) == []
        await cluster.nameserver.wait_for(105)
        await reader.assign([Q0])
        may_answer.set()
        assert await poll(reader, 1) == [b"0"]
        assert await reader.poll(timeout=0.2) == []
        assert reader.queues == [Q0]


async def test_a_reader_with_a_group_commits_its_offsets(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=2) as cluster, gantrymq.connect(cluster.address) as client:
        fill(cluster, 10)
        async with client.reader("T", group="g") as reader:
            assert await reader.committed(Q0) is None
            await poll(reader, 10)
            await reader.commit({Q0: 3})
            assert cluster.broker.offsets == {("g", "T", 0): 3}
            await reader.commit()
            assert await reader.committed(Q1) == 5
        fill(cluster, 2, 10)
        async with client.reader("T", group="g") as reader:
            assert set(await poll(reader, 2)) == {b"10", b"11"}
        async with client.reader("T") as reader:
            with pytest.raises(ValueError, match="open it with group="):
                await reader.commit()


@pytest.mark.parametrize("reset_to", [0, 20])
async def test_a_reset_of_the_group_in_rocketmq_5_moves_no_reader(fake_cluster: Cluster, reset_to: int) -> None:
    """The broker answers one pull with the offset of the reset, whatever offset it was asked for."""
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        for number in range(20):
            cluster.broker.store("T", 0, b"%d" % number)
        resets = [reset_to]

        def answer(request: Command) -> Any:
            if resets and request.ext["queueOffset"] == "8":
                return cluster.broker.pulled(request, ResponseCode.PULL_OFFSET_MOVED, b"", resets.pop())
            return cluster.broker.on_pull_message(request)

        cluster.broker.answers[RequestCode.PULL_MESSAGE] = answer
        async with client.reader("T", group="g", pull_batch=8, until="end") as reader:
            assert [message.queue_offset async for message in reader] == list(range(20))
        assert not resets


async def test_positions_and_commits_count_only_what_an_iteration_has_given_out(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=2) as cluster, gantrymq.connect(cluster.address) as client:
        fill(cluster, 40)
        async with client.reader("T", group="g") as reader:
            first = await anext(reader)
            assert await reader.position(first.queue) == 1
            await reader.commit()
            assert cluster.broker.offsets["g", "T", first.queue.queue_id] == 1
            got = {first.body, *await poll(reader, 39)}
            assert got == numbers(0, 40), "a poll continues where the iteration was"
            await reader.commit()
        assert cluster.broker.offsets == {("g", "T", 0): 20, ("g", "T", 1): 20}


async def test_an_iteration_obeys_pauses_assignments_and_seeks_of_single_queues(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=2) as cluster, gantrymq.connect(cluster.address) as client:
        fill(cluster, 40)
        async with client.reader("T", until="end") as reader:
            await reader.assign()
            await cluster.broker.wait_for(11, 4)  # all messages of both queues are fetched
            one = (await anext(reader)).queue
            other = Q1 if one == Q0 else Q0
            reader.pause(one)
            assert ((await anext(reader)).queue, (await anext(reader)).queue) == (other, other)
            reader.resume()
            await reader.seek(one, 10)
            assert await reader.position(other) == 2, "a seek in one queue skips nothing of the other"
            await reader.assign([other])
            assert [message.queue async for message in reader] == [other] * 18


async def test_each_pull_has_the_subscription(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1, U=1) as cluster, gantrymq.connect(cluster.address) as client:
        async with client.reader({"T": Sql("n > 3"), "U": "a || b"}, pull_batch=7) as reader:
            await reader.poll(timeout=0.05)
            await cluster.broker.wait_for(11, 2)
        sent = {pull.ext["topic"]: pull.ext for pull in cluster.broker.seen(11)}
        assert (sent["T"]["subscription"], sent["T"]["expressionType"]) == ("n > 3", "SQL92")
        assert (sent["U"]["subscription"], sent["U"]["expressionType"]) == ("a || b", "TAG")
        assert {pull["sysFlag"] for pull in sent.values()} == {"6"}
        assert {pull["maxMsgNums"] for pull in sent.values()} == {"7"}


async def test_errors_are_raised_and_the_next_poll_continues(fake_cluster: Cluster, no_pause: None) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client, client.reader("T") as reader:
        cluster.broker.store("T", 0, b"x")
        cluster.broker.answers[11] = lambda request: request.answer(1, "disk")
        with pytest.raises(gantrymq.BrokerError, match="disk"), anyio.fail_after(20):
            await reader.poll()
        del cluster.broker.answers[11]
        with anyio.fail_after(20):
            while True:
                try:
                    batch = await reader.poll()
                except gantrymq.BrokerError:
                    continue  # of a request that was under way
                assert [message.body for message in batch] == [b"x"]
                break


def reduce_to_one_queue(cluster: Any, *, perm: int = 6) -> None:
    """From the second pull of Q1 on, the topic has only Q0, with the permission ``perm``."""

    def answer(request: Command) -> Any:
        if request.ext["queueId"] == "0" or request.ext["queueOffset"] == "0":
            return cluster.broker.on_pull_message(request)
        cluster.nameserver.topics["T"], cluster.nameserver.perm = 1, perm
        return request.answer(1, "queueId[1] is illegal")

    for queue_id, body in ((0, b"0"), (1, b"1"), (1, b"gone")):
        cluster.broker.store("T", queue_id, body)
    cluster.broker.answers[11] = answer


@pytest.mark.parametrize("until", [None, "end"])
async def test_a_queue_that_the_topic_does_not_have_any_more_is_not_read(fake_cluster: Cluster, until: Any) -> None:
    async with fake_cluster(T=2) as cluster, gantrymq.connect(cluster.address) as client:
        reduce_to_one_queue(cluster)
        async with client.reader("T", until=until, pull_batch=1) as reader:
            assert set(await poll(reader, 2)) == {b"0", b"1"}
            with anyio.fail_after(20):
                while reader.queues != [Q0]:
                    assert await reader.poll(timeout=0.05) == []
                if until == "end":
                    assert await reader.poll() == []
                else:
                    cluster.broker.store("T", 0, b"next")
                    assert await poll(reader, 1) == [b"next"]


@pytest.mark.parametrize("kept", ["assigned", "write-only"])
async def test_errors_of_queues_that_may_still_be_read_are_raised(fake_cluster: Cluster, kept: str) -> None:
    async with fake_cluster(T=2) as cluster, gantrymq.connect(cluster.address) as client:
        reduce_to_one_queue(cluster, perm=2 if kept == "write-only" else 6)
        async with client.reader("T", pull_batch=1) as reader:
            if kept == "assigned":
                await reader.assign([Q0, Q1])
            assert set(await poll(reader, 2)) == {b"0", b"1"}
            for _ in range(2):
                with pytest.raises(gantrymq.BrokerError, match="illegal"), anyio.fail_after(20):
                    await reader.poll()
            assert reader.queues == [Q0, Q1]


@pytest.fixture
def soon_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers look for new queues all the time."""
    monkeypatch.setattr("gantrymq.client.reader.NEW_QUEUES_INTERVAL_SECONDS", 0.05)


async def test_a_queue_found_before_the_end_is_not_read_and_keeps_the_committed_offset(
    fake_cluster: Cluster, soon_found: None
) -> None:
    async with fake_cluster(brokers=2, T=1) as cluster, gantrymq.connect(cluster.address) as client:
        first, second = cluster.brokers
        cluster.nameserver.places["T"] = [first]
        for number in range(8):
            first.store("T", 0, b"%d" % number)
            second.store("T", 0, b"unread")
        second.offsets["g", "T", 0] = 5
        async with client.reader("T", group="g", until="end") as reader:
            assert await poll(reader, 2) == [b"0", b"1"]
            cluster.nameserver.places["T"] = [first, second]
            with anyio.fail_after(20):
                while len(reader.queues) == 1:
                    reader.pause()
                    await reader.poll(timeout=0.05)
                await second.wait_for(11, 2)  # the messages behind its offset have been fetched
                reader.resume()
                assert [message.body async for message in reader] == [b"%d" % number for number in range(2, 8)]
                assert await reader.poll() == []
            await reader.commit()
        assert (first.offsets["g", "T", 0], second.offsets["g", "T", 0]) == (8, 5)


async def test_a_reader_of_the_last_messages_misses_none_of_a_queue_that_it_finds_later(
    fake_cluster: Cluster, soon_found: None
) -> None:
    async with fake_cluster(brokers=2, T=1) as cluster, gantrymq.connect(cluster.address) as client:
        first, second = cluster.brokers
        cluster.nameserver.places["T"] = [first]
        first.store("T", 0, b"old")
        async with client.reader("T", start="last") as reader:
            old_queue = MessageQueue(topic="T", broker_name=first.name, queue_id=0)
            assert await reader.position(old_queue) == 1
            second.store("T", 0, b"old")
            second.stored_at = int(time.time() * 1000)
            second.store("T", 0, b"new")
            cluster.nameserver.places["T"] = [first, second]
            assert await poll_until_some(reader) == [b"new"]
            await reader.seek_to_end()
            assert await reader.poll(timeout=0.05) == []


async def poll_until_some(reader: Any) -> list[bytes]:
    """Each poll begins a look-up for queues; one that waits does not."""
    with anyio.fail_after(20):
        while not (batch := await reader.poll(timeout=0.1)):
            pass
    return [message.body for message in batch]


async def test_a_reader_of_the_last_messages_misses_none_of_a_topic_that_is_created_later(
    fake_cluster: Cluster,
) -> None:
    async with fake_cluster(U=1) as cluster, gantrymq.connect(cluster.address) as client:
        async with client.reader("T", start="last") as reader:
            with pytest.raises(gantrymq.NoRoute), anyio.fail_after(20):
                await reader.poll()
            cluster.broker.store("T", 0, b"old")
            cluster.broker.stored_at = int(time.time() * 1000)
            cluster.broker.store("T", 0, b"new")
            cluster.nameserver.topics["T"] = 1
            assert await poll(reader, 1) == [b"new"]


async def test_a_reader_of_the_last_messages_misses_none_of_a_queue_that_comes_back(
    fake_cluster: Cluster, soon_found: None
) -> None:
    async with fake_cluster(T=2) as cluster, gantrymq.connect(cluster.address) as client:
        broker, nameserver = cluster.broker, cluster.nameserver

        def answer(request: Command) -> Any:
            if nameserver.topics["T"] == 1 and request.ext["queueId"] == "1":
                return request.answer(1, "queueId[1] is illegal")
            return broker.on_pull_message(request)

        broker.answers[11] = answer
        async with client.reader("T", start="last") as reader:
            assert await reader.position(Q1) == 0
            nameserver.topics["T"] = 1
            broker.store("T", 1, b"wakes the pull that waits")
            with anyio.fail_after(20):
                while reader.queues != [Q0]:
                    await reader.poll(timeout=0.05)
            broker.stored_at = int(time.time() * 1000)
            broker.store("T", 1, b"new")
            nameserver.topics["T"] = 2
            assert await poll_until_some(reader) == [b"new"]


async def test_a_nameserver_that_hangs_does_not_stop_seeks(
    fake_cluster: Cluster, soon_found: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gantrymq.client.reader.RENEW_WAIT_S", 0.05)
    renewals: list[str] = []

    async def hang(routes: Any, topic: str) -> None:
        renewals.append(topic)
        await anyio.sleep_forever()

    monkeypatch.setattr("gantrymq.client.routes.Routes.renew", hang)
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client, client.reader("T") as reader:
        assert await reader.position(Q0) == 0
        await anyio.sleep(0.1)  # another look-up is due
        with anyio.fail_after(20):
            await reader.seek(Q0, 5)
        assert renewals == ["T"]


async def test_a_closed_reader_raises(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        async with client.reader("T") as reader:
            pass
        with pytest.raises(gantrymq.ClientClosed, match="reader is closed"):
            await reader.poll()
        for arguments, match in (({"until": "now"}, "until"), ({"start": "x"}, "start"), ({"pull_batch": 0}, "batch")):
            with pytest.raises(ValueError, match=match):
                async with client.reader("T", **arguments):
                    pytest.fail("refused")


def test_the_blocking_reader_reads(fake_in_thread: Any) -> None:
    fill(fake_in_thread, 20)
    with gantrymq.sync.connect(fake_in_thread.address) as client:
        with client.reader("T", until="end", group="g") as reader:
            assert {message.body for message in reader} == numbers(0, 20)
            reader.commit()
            assert reader.committed(Q0) == 10
            reader.seek_to_beginning(Q0)
            assert reader.position(Q0) == 0
            reader.seek(Q0, 4)
            reader.pause()
            assert reader.poll(timeout=0.02) == []
            reader.resume()
            assert next(reader).body == b"8"
            reader.seek_to_time(1_700_000_000_020, Q0)
            assert next(reader).body == b"4"
            reader.seek_to_end()
            assert reader.begin_offsets() == {Q0: 0, Q1: 0}
            assert reader.end_offsets() == {Q0: 10, Q1: 10}
            reader.assign([Q1])
            assert (reader.queues, reader.topics) == ([Q1], ("T",))
        with pytest.raises(gantrymq.ClientClosed):
            reader.poll()


def test_the_blocking_reader_commits_only_what_it_has_given_out(fake_in_thread: Any) -> None:
    fill(fake_in_thread, 40)
    with gantrymq.sync.connect(fake_in_thread.address) as client:
        with client.reader("T", group="g", until="end") as reader:
            first = next(reader)
            assert reader.position(first.queue) == 1
            next(reader)
            reader.commit()
            assert sum(fake_in_thread.broker.offsets.values()) == 2
            got = {next(reader).body}
            reader.pause()
            assert reader.poll(timeout=0.02) == []
            reader.resume()
            while len(got) < 38:
                got |= {message.body for message in reader.poll(timeout=20)}
            reader.commit()
        assert fake_in_thread.broker.offsets == {("g", "T", 0): 20, ("g", "T", 1): 20}
        with client.reader("T", group="g2", until="end") as reader:
            one = next(reader).queue
            reader.seek(one, 19)
            assert len(list(reader)) == 21, "the other queue continues at its position"
        with client.reader("T", group="g2", until="end") as reader:
            one = next(reader).queue
            reader.assign([one])
            assert {message.queue for message in reader} == {one}

"""Options of consumers: subscriptions, batch sizes, timeouts, allocation strategies and callbacks."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import anyio
import pytest

import gantrymq
import gantrymq.sync
from gantrymq import MessageQueue, Sql
from gantrymq.client.allocation import ConsistentHash, FixedQueues, MachineRooms, NearestRoom, allocate, circle
from gantrymq.remoting.bodies.clients import CheckClientConfig, HeartbeatData
from gantrymq.remoting.bodies.routes import BrokerData, QueueData, TopicRouteData
from gantrymq.remoting.command import Command

pytestmark = pytest.mark.anyio

Cluster = Callable[..., Any]


def queue(number: int, broker: str = "broker-a") -> MessageQueue:
    return MessageQueue(topic="T", broker_name=broker, queue_id=number)


async def take(messages: gantrymq.Consumer[gantrymq.ReceivedMessage], count: int) -> list[gantrymq.ReceivedMessage]:
    with anyio.fail_after(20):
        return [await anext(messages) for _ in range(count)]


async def test_an_sql_expression_is_sent_unchanged(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1, U=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.store("T", 0, b"x", "TAGS\x01b")
        async with client.consumer({"T": Sql("n > 3"), "U": "a"}, "g", start="first") as messages:
            assert (await take(messages, 1))[0].body == b"x"
            await cluster.broker.wait_for(11, 2)
        (asked,) = cluster.broker.seen(46)
        heartbeat = HeartbeatData.from_bytes(cluster.broker.seen(34)[0].body).consumer_data_set[0]
        kinds = {pull.ext["topic"]: pull.ext["expressionType"] for pull in cluster.broker.seen(11)}
    assert kinds == {"T": "SQL92", "U": "TAG"}
    wanted = {each.topic: each for each in heartbeat.subscription_data_set}
    assert (wanted["T"].sub_string, wanted["T"].expression_type, wanted["T"].tags_set) == ("n > 3", "SQL92", set())
    assert (wanted["U"].expression_type, wanted["%RETRY%g"].expression_type) == ("TAG", "TAG")
    question = CheckClientConfig.from_bytes(asked.body)
    assert question.group == "g"
    assert question.subscription_data == wanted["T"]


async def test_an_sql_expression_is_checked_where_a_broker_of_the_topic_has_no_address(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        datas = [BrokerData(cluster="C", broker_name="gone", broker_addrs={}), *cluster.nameserver.broker_datas()]
        queues = [QueueData(broker_name="broker-a", read_queue_nums=1, write_queue_nums=1, perm=6)]
        body = TopicRouteData(queue_datas=queues, broker_datas=datas).to_bytes(quoted_keys=True)
        cluster.nameserver.answers[105] = lambda request: request.answer(0, body=body)
        async with client.consumer("T", "g", tags=Sql("n > 3")):
            assert len(cluster.broker.seen(46)) == 1


@pytest.mark.parametrize(
    ("code", "error"), [(23, gantrymq.InvalidName), (1, gantrymq.BrokerError), (3, None), (0, None)]
)
async def test_an_expression_that_the_broker_refuses_is_reported_at_once(
    fake_cluster: Cluster, code: int, error: type[Exception] | None
) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.answers[46] = lambda request: request.answer(code, "parse error in line 1")
        if error is None:
            async with client.consumer("T", "g", tags=Sql("n >")):
                pass
            return
        with pytest.raises(error, match="parse error in line 1"):
            async with client.consumer("T", "g", tags=Sql("n >")):
                pytest.fail("refused")
        assert not cluster.broker.seen(11)


@pytest.mark.parametrize("code", [27, 28])
async def test_a_broker_that_lost_the_expression_gets_it_again(
    fake_cluster: Cluster, no_pause: None, code: int
) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.store("T", 0, b"x")

        def refuse(request: Command) -> Command:
            del cluster.broker.answers[11]
            return request.answer(code, "the consumer's subscription not latest")

        cluster.broker.answers[11] = refuse
        async with client.consumer("T", "g", tags=Sql("n > 3"), start="first") as messages:
            assert (await take(messages, 1))[0].body == b"x"
        codes = [request.code for request in cluster.broker.requests]
        assert 34 in codes[codes.index(11) :]


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"tags": Sql("  ")}, "Sql expression of topic T is empty"),
        ({"tags": 5}, "tags of topic T are a str"),
        ({"max_retries": -1}, "max_retries -1"),
        ({"pull_batch": 0}, "pull_batch 0 is not a number from 1 to 1024"),
        ({"pull_batch": 1025}, "pull_batch 1025"),
        ({"prefetch": 65_536}, "prefetch 65536 is not a number from 1 to 65535"),
        ({"prefetch": True}, "prefetch True"),
        ({"consume_timeout": 0}, "consume_timeout 0"),
        ({"consume_timeout": timedelta(seconds=-1)}, "consume_timeout -1.0"),
        ({"consume_timeout": 1.0, "ordered": True}, "not with ordered"),
        ({"ordered": "keys"}, "ordered 'keys'"),
        ({"allocation": "nearest"}, "neither one of average, circle, consistent_hash"),
        ({"offsets_file": "x"}, "offsets_file is for broadcast=True"),
    ],
)
async def test_invalid_options_are_rejected_before_any_request(
    fake_cluster: Cluster, arguments: dict[str, Any], match: str
) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        with pytest.raises(ValueError, match=match):
            async with client.consumer("T", "g", **arguments):
                pytest.fail("refused")
        assert not cluster.nameserver.requests


async def test_batch_and_prefetch_bound_what_is_fetched(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        for number in range(100):
            cluster.broker.store("T", 0, b"%d" % number)
        async with client.consumer("T", "g", start="first", pull_batch=7, prefetch=20) as messages:
            got = await take(messages, 21)
            with anyio.move_on_after(0.05) as scope:
                await anext(messages)
            assert scope.cancelled_caught
            assert messages.statistics().outstanding == 21
            assert {pull.ext["maxMsgNums"] for pull in cluster.broker.seen(11)} == {"7"}
            for message in got:
                await message.ack()
            assert (await take(messages, 1))[0].body == b"21"


async def test_a_pull_asks_for_512_messages_and_for_no_more_than_may_be_outstanding(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        for number in range(100):
            cluster.broker.store("T", 0, b"%d" % number)
        async with client.consumer("T", "g", start="first") as messages:
            await take(messages, 100)
        assert {pull.ext["maxMsgNums"] for pull in cluster.broker.seen(11)} == {"512"}
        async with client.consumer("T", "few", start="first", prefetch=20) as messages:
            await take(messages, 20)
            assert messages.statistics().outstanding == 20
        pulls = [pull for pull in cluster.broker.seen(11) if pull.ext["consumerGroup"] == "few"]
        assert {pull.ext["maxMsgNums"] for pull in pulls if pull.ext["topic"] == "T"} == {"20"}


async def test_max_retries_is_sent_with_messages_sent_back(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.answers[36] = lambda request: request.answer(0)
        for number in range(2):
            cluster.broker.store("T", 0, b"%d" % number)
        async with client.consumer("T", "g", start="first", max_retries=3) as messages:
            await (await take(messages, 1))[0].retry()
        async with client.consumer("T", "g") as messages:
            await (await take(messages, 1))[0].retry()
        first, second = cluster.broker.seen(36)
        assert first.ext["maxReconsumeTimes"] == "3"
        assert "maxReconsumeTimes" not in second.ext, "then the group's configuration counts"


async def test_a_message_processed_for_too_long_is_sent_back(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.answers[36] = lambda request: request.answer(0)
        for number in range(3):
            cluster.broker.store("T", 0, b"%d" % number)
        timeout = timedelta(seconds=0.2)
        async with client.consumer("T", "g", start="first", consume_timeout=timeout) as messages:
            done, late = await take(messages, 2)
            await done.ack()
            (back,) = await cluster.broker.wait_for(36)
            assert (back.ext["offset"], back.ext["delayLevel"]) == (str(late.commit_log_offset), "3")
            with anyio.fail_after(20):
                while messages.statistics().outstanding != 1:  # noqa: ASYNC110 - the one that nobody has taken yet
                    await anyio.sleep(0.01)
            await late.ack()
            assert messages.statistics().acknowledged == 2
        assert cluster.broker.offsets["g", "T", 0] == 2
        assert len(cluster.broker.seen(36)) == 1


async def test_a_message_is_sent_back_once_however_often_and_by_whom(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        proceed = anyio.Event()

        async def answer(request: Command) -> Command:
            await proceed.wait()
            return request.answer(0)

        cluster.broker.answers[36] = answer
        for number in range(2):
            cluster.broker.store("T", 0, b"%d" % number)
        async with client.consumer("T", "g", start="first", consume_timeout=0.2) as messages:
            late, done = await take(messages, 2)
            await done.ack()
            await cluster.broker.wait_for(36)  # because of the timeout
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(late.retry)
                await anyio.wait_all_tasks_blocked()
                proceed.set()
            await late.retry(-1)
            await done.retry()
            assert messages.statistics().returned == 1
        assert len(cluster.broker.seen(36)) == 1
        assert cluster.broker.offsets["g", "T", 0] == 2


async def test_a_send_back_is_sent_by_the_next_one_where_it_fails(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        proceed = anyio.Event()

        async def answer(request: Command) -> Command:
            await proceed.wait()
            return request.answer(14 if request is cluster.broker.seen(36)[0] else 0, "the disk is full")

        cluster.broker.answers[36] = answer
        cluster.broker.store("T", 0, b"x")
        failures: list[gantrymq.BrokerError] = []

        async def retry(message: gantrymq.ReceivedMessage) -> None:
            try:
                await message.retry()
            except gantrymq.BrokerError as error:
                failures.append(error)

        async with client.consumer("T", "g", start="first") as messages:
            (message,) = await take(messages, 1)
            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(retry, message)
                await cluster.broker.wait_for(36)
                proceed.set()
        assert (len(failures), len(cluster.broker.seen(36))) == (1, 2)
        assert cluster.broker.offsets["g", "T", 0] == 1


async def test_a_message_of_a_revoked_queue_is_not_sent_back(fake_cluster: Cluster, no_pause: None) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.answers[36] = lambda request: request.answer(0)
        cluster.broker.store("T", 0, b"x")
        async with client.consumer("T", "g", start="first") as messages:
            (message,) = await take(messages, 1)
            cluster.broker.groups["g"] = ["0-another-member"]
            await cluster.broker.notify("g")
            with anyio.fail_after(20):
                while messages.queues:
                    await cluster.broker.changed.wait()
            await message.retry()
        assert not cluster.broker.seen(36), "the new member gets it from the queue"
        assert not cluster.broker.offsets.get(("g", "T", 0))


async def test_a_message_that_retention_has_overtaken_is_sent_back(fake_cluster: Cluster, no_pause: None) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.answers[36] = lambda request: request.answer(0)
        cluster.broker.store("T", 0, b"x")
        async with client.consumer("T", "g", start="first") as messages:
            (message,) = await take(messages, 1)
            cluster.broker.answers[11] = lambda request: cluster.broker.pulled(request, 21, b"", 7)
            cluster.broker.store("T", 0, b"y")  # ends the pull that is under way
            with anyio.fail_after(20):
                while messages.offsets("T")[queue(0)] != 7:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
            await message.retry()
            await message.retry()
        assert len(cluster.broker.seen(36)) == 1


@pytest.mark.parametrize("kind", ["functions", "coroutines"])
async def test_callbacks_get_assigned_and_revoked_queues_and_may_acknowledge(fake_cluster: Cluster, kind: str) -> None:
    reported: list[tuple[str, list[int]]] = []
    held: list[gantrymq.ReceivedMessage] = []

    def assigned(queues: Sequence[MessageQueue]) -> None:
        reported.append(("assigned", [each.queue_id for each in queues]))

    async def assigned_later(queues: Sequence[MessageQueue]) -> None:
        assigned(queues)

    async def revoked(queues: Sequence[MessageQueue]) -> None:
        reported.append(("revoked", [each.queue_id for each in queues]))
        for message in held:
            if message.queue in queues:
                await message.ack()

    async with fake_cluster(T=2) as cluster, gantrymq.connect(cluster.address) as client:
        for number in range(2):
            cluster.broker.store("T", number, b"x")
        first = assigned if kind == "functions" else assigned_later
        async with client.consumer("T", "g", start="first", on_assigned=first, on_revoked=revoked) as messages:
            assert reported == [("assigned", [0, 1])]
            held += await take(messages, 2)
            cluster.broker.groups["g"].append("0-another-member")  # sorts first, so it gets queue 0
            await cluster.broker.notify("g")
            with anyio.fail_after(20):
                while ("g", "T", 0) not in cluster.broker.offsets:
                    await cluster.broker.changed.wait()
            assert reported[1:] == [("revoked", [0])]
            assert cluster.broker.offsets["g", "T", 0] == 1
        assert reported[2:] == [("revoked", [1])]
        assert cluster.broker.offsets["g", "T", 1] == 1


@pytest.mark.parametrize("way", ["ack", "batch", "commit"])
def test_callbacks_of_a_blocking_consumer_may_acknowledge_at_a_rebalance_and_at_the_end(
    fake_in_thread: Any, way: str
) -> None:
    broker, held, reported = fake_in_thread.broker, [], []

    def revoked(queues: Sequence[MessageQueue]) -> None:
        reported.extend(each.queue_id for each in queues)
        for batch in held:
            if batch[0].queue in queues:
                batch.ack() if way == "batch" else batch[0].ack()
                if way == "commit":
                    messages.commit()
                    assert broker.offsets["g", "T", batch[0].queue_id] == 1

    async def add_member() -> None:
        broker.groups["g"].append("0-another-member")  # sorts first, so it gets queue 0
        await broker.notify("g")
        with anyio.fail_after(20):
            while ("g", "T", 0) not in broker.offsets:
                await broker.changed.wait()

    for number in range(2):
        broker.store("T", number, b"x")
    with gantrymq.sync.connect(fake_in_thread.address) as client:
        with client.consumer("T", "g", start="first", on_revoked=revoked) as messages:
            held += [messages.next_batch(1), messages.next_batch(1)]
            fake_in_thread.portal.call(add_member)
            assert (reported, broker.offsets["g", "T", 0]) == ([0], 1), "a commit may cover the other queue as well"
        assert (reported, broker.offsets) == ([0, 1], {("g", "T", 0): 1, ("g", "T", 1): 1})
        with pytest.raises(gantrymq.ClientClosed):
            held[0].ack()


def test_acknowledgments_that_were_not_handed_over_count_when_a_queue_is_revoked(fake_in_thread: Any) -> None:
    broker = fake_in_thread.broker

    async def add_member() -> None:
        broker.groups["g"].append("0-another-member")  # sorts first, so it gets queue 0
        await broker.notify("g")
        with anyio.fail_after(20):
            while ("g", "T", 0) not in broker.offsets:
                await broker.changed.wait()

    broker.store("T", 0, b"x")
    with gantrymq.sync.connect(fake_in_thread.address) as client:
        with client.consumer("T", "g", start="first") as messages:
            next(messages).ack()
            fake_in_thread.portal.call(add_member)
            assert broker.offsets == {("g", "T", 0): 1}


def test_acknowledgments_of_redelivered_messages_count_when_only_the_retry_queue_is_revoked(
    fake_in_thread: Any,
) -> None:
    broker, retries = fake_in_thread.broker, "%RETRY%g"

    async def prepare() -> None:
        fake_in_thread.nameserver.topics[retries] = 1

    async def add_member() -> None:
        broker.groups["g"].append("0-another-member")  # sorts first, so it gets the retry queue
        await broker.notify("g")
        with anyio.fail_after(20):
            while ("g", retries, 0) not in broker.offsets:
                await broker.changed.wait()

    fake_in_thread.portal.call(prepare)
    broker.store(retries, 0, b"x", "RETRY_TOPIC\x01T")
    with gantrymq.sync.connect(fake_in_thread.address) as client:
        with client.consumer("T", "g", start="first", allocation=FixedQueues([queue(0)])) as messages:
            next(messages).ack()
            fake_in_thread.portal.call(add_member)
            assert broker.offsets["g", retries, 0] == 1


async def test_an_error_in_a_callback_is_logged_only(fake_cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    def fail(queues: Sequence[MessageQueue]) -> None:
        raise ZeroDivisionError

    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.store("T", 0, b"x")
        async with client.consumer("T", "g", start="first", on_assigned=fail, on_revoked=fail) as messages:
            await (await take(messages, 1))[0].ack()
        assert cluster.broker.offsets["g", "T", 0] == 1
    assert [record.getMessage() for record in caplog.records if "rebalance_callback_failed" in record.getMessage()]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_callback_that_awaits_something_cancelled_does_not_end_the_rebalancing(
    fake_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(queues: Sequence[MessageQueue]) -> None:
        task = asyncio.ensure_future(asyncio.sleep(20))
        asyncio.get_running_loop().call_soon(task.cancel)
        await task

    async with fake_cluster(T=2) as cluster, gantrymq.connect(cluster.address) as client:
        async with client.consumer("T", "g", on_assigned=fail, on_revoked=fail) as messages:
            for members in (["0-another-member"], []):
                cluster.broker.groups["g"] = [*members, client._cluster.client_id]
                await cluster.broker.notify("g")
                with anyio.fail_after(20):
                    while len(messages.queues) != 2 - len(members):  # noqa: ASYNC110
                        await anyio.sleep(0.01)
    assert "rebalance_callback_failed" in caplog.text


async def test_the_chosen_strategy_allocates_the_queues(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=4) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.groups["g"] = ["zzz"]
        async with client.consumer("T", "g", allocation="circle") as messages:
            assert [each.queue_id for each in messages.queues] == [0, 2]
        async with client.consumer("T", "g", allocation=FixedQueues([queue(3)])) as messages:
            assert messages.queues == [queue(3)]


async def test_a_consumer_keeps_its_queues_while_its_strategy_fails(
    fake_cluster: Cluster, no_pause: None, caplog: pytest.LogCaptureFixture
) -> None:
    def known_only(queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:
        if "stranger" in members:
            raise KeyError("stranger")
        return list(queues)

    async with fake_cluster(T=2) as cluster, gantrymq.connect(cluster.address) as client, client.producer() as producer:
        async with client.consumer("T", "g", start="first", allocation=known_only) as messages:
            members = cluster.broker.groups["g"]
            members.append("stranger")
            asked = len(cluster.broker.seen(38))
            await cluster.broker.notify("g")
            await cluster.broker.wait_for(38, asked + 2)
            assert [each.queue_id for each in messages.queues] == [0, 1]
            assert "known_only" in str(messages.statistics().last_error)
            assert "KeyError('stranger')" in caplog.text
            await producer.send("T", b"x")
            await (await take(messages, 1))[0].ack()
            members.remove("stranger")
            cluster.nameserver.topics["T"] = 3
            await client._cluster.routes.refresh()
            with anyio.fail_after(20):
                while len(messages.queues) != 3:
                    await cluster.broker.changed.wait()


async def test_a_strategy_that_fails_at_the_beginning_is_reported_at_once(fake_cluster: Cluster) -> None:
    nearest = NearestRoom(lambda _: "a", lambda member: "")
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        with pytest.raises(gantrymq.AllocationFailed, match=r"NearestRoom.*topic T.*no room"):
            async with client.consumer("T", "g", allocation=nearest):
                pytest.fail("no queues can be had")
        with pytest.raises(gantrymq.AllocationFailed, match=r"lambda.*topic T.*TypeError"):
            async with client.consumer("T", "g", allocation=lambda queues, members, me: None):  # type: ignore[arg-type, return-value]
                pytest.fail("that is not a list")


def test_allocation_strategies_equal_those_of_rocketmq() -> None:
    queues = [queue(number, broker) for broker in ("hz@a", "sh@b") for number in range(3)]
    members = ["hz-1", "hz-2", "sh-1"]
    for strategy in (circle, ConsistentHash(), ConsistentHash(1), NearestRoom(
        lambda each: each.broker_name[:2], lambda member: member[:2]
    )):  # fmt: skip
        shares = [allocate(queues, members, member, strategy) for member in members]
        assert sorted(itertools.chain.from_iterable(shares)) == queues, strategy
        assert allocate(queues, members, "stranger", strategy) == []
    assert allocate(queues, members, "hz-2", circle) == [queues[1], queues[4]]
    assert allocate(queues, members, "hz-1", MachineRooms(["sh"])) == [queue(0, "sh@b")]
    nearest = NearestRoom(lambda each: each.broker_name[:2], lambda member: member[:2])
    assert allocate(queues, members, "sh-1", nearest) == queues[3:]
    assert allocate(queues, ["hz-1"], "hz-1", nearest) == queues
    with pytest.raises(ValueError, match="no room"):
        allocate(queues, members, "hz-1", NearestRoom(lambda _: "", lambda member: member))
    with pytest.raises(ValueError, match="virtual node"):
        ConsistentHash(0)


def test_the_blocking_consumer_has_the_same_options(fake_in_thread: Any) -> None:
    reported: list[int] = []
    fake_in_thread.broker.store("T", 1, b"x")
    with (
        gantrymq.sync.connect(fake_in_thread.address) as client,
        client.consumer(
            {"T": Sql("n > 3")}, "g", start="first", allocation=FixedQueues([queue(1)]), pull_batch=3,
            on_assigned=lambda queues: reported.append(len(queues)),
        ) as messages,
    ):  # fmt: skip
        assert next(messages).body == b"x"
    assert reported == [1]
    assert {pull.ext["maxMsgNums"] for pull in fake_in_thread.broker.seen(11)} == {"3"}

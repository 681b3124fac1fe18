"""Options of a send: order keys, queue numbers, delays, delivery times, recall, split batches, durability."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import anyio
import pytest

import gantrymq
import gantrymq.sync
from gantrymq import Message, MessageQueue, SendStatus
from gantrymq.client.outgoing import encode_plain_row, prepare_batches
from gantrymq.client.row_sender import RowSender
from gantrymq.client.sender import choose_queue, java_hash_of
from gantrymq.remoting.command import Command
from gantrymq.remoting.properties import decode_properties
from gantrymq.remoting.recall_handles import encode_handle

pytestmark = pytest.mark.anyio

Cluster = Callable[..., Any]
RECALL = 370


def properties_of(request: Command) -> dict[str, str]:
    return decode_properties(request.ext["i"])


@pytest.mark.parametrize(
    ("key", "code"),
    [
        # as Java has them: "".hashCode(), Integer.hashCode(), Long.hashCode()
        ("customer-7", -1581185528), ("", 0), ("grün", 3185949), ("😀", 1772899), (7, 7), (-7, -7),
        (2**31 - 1, 2**31 - 1),
        (2**31, -(2**31)), (2**40 + 5, 261), (-(2**40), -256),
    ],
)  # fmt: skip
def test_an_order_key_has_the_hash_code_of_java(key: str | int, code: int) -> None:
    assert java_hash_of(key) == code


async def test_equal_order_keys_select_one_queue_in_every_way_of_sending(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(brokers=2, T=4) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer() as producer,
    ):
        queues = await producer.queues("T")
        for key in ("a", "customer-7", 12, -12):
            wanted = queues[abs(java_hash_of(key)) % 8]
            assert (await producer.send("T", b"x", order_key=key)).queue == wanted
            assert (await producer.send(Message("T", b"x", order_key=key))).queue == wanted
            assert (await (await producer.enqueue("T", b"x", order_key=key))).queue == wanted
            batch = [Message("T", b"x", order_key=key), Message("T", b"y", order_key=key)]
            assert {result.queue for result in await producer.send_batch(batch)} == {wanted}
            await producer.send_oneway("T", b"oneway", order_key=key)
            broker = next(one for one in cluster.brokers if one.name == wanted.broker_name)
            request = (await broker.wait_for(310))[-1]
            assert properties_of(request)["__SHARDINGKEY"] == str(key)
        with pytest.raises(gantrymq.InvalidMessage, match="not both"):
            await producer.send("T", b"x", order_key="a", queue=1)
        with pytest.raises(gantrymq.InvalidMessage, match="one order_key"):
            await producer.send_batch([Message("T", b"x", order_key="a"), Message("T", b"x", order_key="b")])
        for bad in (True, 1.5, b"key", 2**64):
            with pytest.raises(gantrymq.InvalidMessage, match="order_key"):
                await producer.send("T", b"x", order_key=bad)  # type: ignore[arg-type]


async def test_a_queue_can_be_given_by_its_index(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(brokers=2, T=2) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer() as producer,
    ):
        queues = await producer.queues("T")
        for place, queue in enumerate(queues):
            assert (await producer.send("T", b"x", queue=place)).queue == queue
            assert (await (await producer.enqueue("T", b"x", queue=place))).queue == queue
        for bad in (-1, 4):
            with pytest.raises(gantrymq.InvalidMessage, match="4 can be sent to"):
                await producer.send("T", b"x", queue=bad)
            with pytest.raises(gantrymq.InvalidMessage, match="4 can be sent to"):
                await producer.enqueue("T", b"x", queue=bad)


async def test_a_queue_of_another_topic_is_refused_in_every_way_of_sending(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(T=1, U=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer() as producer,
        client.transactional_producer("g", check=lambda half: gantrymq.Outcome.COMMIT) as transactional,
    ):
        other = (await producer.queues("U"))[0]
        ways: list[Any] = [producer.send, producer.enqueue, producer.request, producer.send_oneway]
        ways.append(partial(transactional.send, local=lambda *_: gantrymq.Outcome.COMMIT))
        for queue in (other, lambda _: other):
            for send in ways:
                with pytest.raises(gantrymq.InvalidMessage, match="belongs to topic U, the message to topic T"):
                    await send("T", b"x", queue=queue)
            with pytest.raises(gantrymq.InvalidMessage, match="belongs to topic U"):
                await producer.send_batch([Message("T", b"x")], queue=queue)
        with pytest.raises(gantrymq.InvalidMessage, match="belongs to topic U"):
            await RowSender(producer).send("T", encode_plain_row(b"x", "key"), ["key"], other)
        await producer.flush()
        assert not cluster.broker.sent()
        assert not cluster.broker.queues
        assert (await producer.send("U", b"x", queue=other)).queue == other


async def test_a_queue_may_have_its_topic_with_or_without_the_namespace(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(**{"eu%T": 2}) as cluster,
        gantrymq.connect(cluster.address, namespace="eu") as client,
        client.producer() as producer,
    ):
        queue = (await producer.queues("T"))[1]
        assert queue.topic == "T"
        await producer.send("eu%T", b"x", queue=queue)
        await producer.send("T", b"y", queue=MessageQueue("eu%T", queue.broker_name, queue.queue_id))
        assert len(cluster.broker.queues["eu%T", 1]) == 2


async def test_delays_and_times_become_properties_of_timed_messages(fake_cluster: Cluster) -> None:
    at = datetime(2030, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer() as producer,
    ):
        wanted: list[tuple[dict[str, Any], dict[str, str]]] = [
            ({"delay": timedelta(seconds=30)}, {"TIMER_DELAY_MS": "30000"}),
            ({"delay": 1.5}, {"TIMER_DELAY_MS": "1500"}),
            ({"delay": 0}, {}),
            ({"deliver_at": at}, {"TIMER_DELIVER_MS": "1893553445678"}),
            ({"deliver_at": at.astimezone().replace(tzinfo=None)}, {"TIMER_DELIVER_MS": "1893553445678"}),
            ({"delay_level": 3}, {"DELAY": "3"}),
        ]
        for options, properties in wanted:
            results = [
                await producer.send("T", b"x", **options),
                await producer.send(Message("T", b"x", **options)),
                await (await producer.enqueue("T", b"x", **options)),
            ]
            for sent, request in zip(results, cluster.broker.seen(310)[-3:], strict=True):
                assert properties_of(request) == {**properties, "UNIQ_KEY": sent.message_id}
        bad: list[dict[str, Any]] = [
            {"delay": -1}, {"delay": timedelta(seconds=-1)}, {"delay": "soon"}, {"delay": float("nan")},
            {"deliver_at": 5}, {"delay": 1, "delay_level": 1}, {"delay": 1, "deliver_at": at},
        ]  # fmt: skip
        for options in bad:
            with pytest.raises(gantrymq.InvalidMessage):
                await producer.send("T", b"x", **options)
            with pytest.raises(gantrymq.InvalidMessage):
                await producer.enqueue("T", b"x", **options)
        with pytest.raises(gantrymq.InvalidMessage, match="not both"):
            await producer.send(Message("T", b"x"), delay=1)
        with pytest.raises(gantrymq.InvalidMessage, match="enqueue it"):
            await producer.send_batch([Message("T", b"x", delay=1)])


@pytest.mark.parametrize("early", [True, False], ids=["connected before", "connected by the send"])
async def test_a_timed_message_is_not_sent_to_a_broker_that_would_deliver_it_at_once(
    fake_cluster: Cluster, early: bool
) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        version = 407

        def beat(request: Command) -> Command:
            answer = request.answer(0)
            answer.language, answer.version = "JAVA", version
            return answer

        cluster.broker.answers[34] = beat
        if early:
            await client.admin.max_offset((await client.admin.queues("T"))[0])
        async with client.producer() as producer:
            with pytest.raises(gantrymq.UnsupportedByBroker, match=r"RocketMQ 4.9.7.*delay_level"):
                await producer.send("T", b"x", delay=1)
            with pytest.raises(gantrymq.UnsupportedByBroker):
                await (await producer.enqueue("T", b"x", deliver_at=datetime.now(UTC)))
            with pytest.raises(gantrymq.UnsupportedByBroker):
                await producer.send_oneway("T", b"x", delay=1)
            assert not cluster.broker.seen(310)
            await producer.send("T", b"TIMER_DELAY_MS", delay_level=1, properties={"a": "TIMER_DELAY_MS"})


async def test_a_message_is_recalled_by_its_result_or_handle(fake_cluster: Cluster) -> None:
    handle = encode_handle("T", "broker-b", 5, "ID")
    async with (
        fake_cluster(brokers=2, T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer("senders") as producer,
    ):
        second = cluster.brokers[1]
        second.answers[RECALL] = lambda request: request.answer(0, ext={"msgId": "ID"})
        result = await producer.send("T", b"x", queue=1)
        with pytest.raises(gantrymq.UnsupportedByBroker, match="no handle"):
            await producer.recall(result)
        assert await producer.recall(handle) == "ID"
        (request,) = second.seen(RECALL)
        assert request.ext == {"producerGroup": "senders", "topic": "T", "recallHandle": handle}
        with pytest.raises(gantrymq.InvalidMessage, match="not a recall handle"):
            await producer.recall("something else")
        second.answers[RECALL] = lambda request: request.answer(16, "recall failed, operation is forbidden")
        with pytest.raises(gantrymq.BrokerError, match="forbidden"):
            await producer.recall(handle)


def test_a_batch_over_the_limit_is_split_into_several_requests() -> None:
    numbers = iter(range(100))
    messages = [Message("T", b"%02d" % number * 50) for number in range(10)]
    requests = prepare_batches(messages, lambda: f"K{next(numbers):02}", limit=400)
    assert len(requests) == 5
    assert [key for request in requests for key in request.keys] == [f"K{number:02}" for number in range(10)]
    assert all(len(request.body) <= 400 for request in requests)


async def test_parts_of_a_batch_use_one_queue_and_a_failure_names_the_stored_ones(fake_cluster: Cluster) -> None:
    body = b"x" * (1024 * 1024)
    async with (
        fake_cluster(T=4) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer() as producer,
    ):
        results = await producer.send_batch([Message("T", body) for _ in range(9)])
        assert len({result.queue for result in results}) == 1
        assert [result.queue_offset for result in results] == list(range(9))
        assert len(cluster.broker.seen(320)) == 3
        asked = 0

        def second_fails(request: Command) -> Command:
            nonlocal asked
            asked += 1
            return request.answer(13, "no") if asked == 2 else cluster.broker.on_send_batch_message(request)

        cluster.broker.answers[320] = second_fails
        with pytest.raises(gantrymq.BrokerError) as caught:
            await producer.send_batch([Message("T", body) for _ in range(9)])
        assert caught.value.__notes__ == ["the first 3 of 9 messages are stored"]
        with pytest.raises(gantrymq.InvalidMessage, match="send it alone"):
            await producer.send_batch([Message("T", body * 4)])


@pytest.mark.parametrize("way", ["send", "enqueue"])
@pytest.mark.slow
async def test_a_send_with_an_unmet_guarantee_is_retried_on_another_broker_on_request(
    fake_cluster: Cluster, way: str
) -> None:
    async with fake_cluster(brokers=2, T=1) as cluster, gantrymq.connect(cluster.address) as client:

        def unsafe(request: Command) -> Command:
            answer = cluster.brokers[0].on_send_message_v2(request)
            answer.code = 12
            return answer

        cluster.brokers[0].answers[310] = unsafe

        async def sent(producer: gantrymq.Producer) -> gantrymq.SendResult:
            return await producer.send("T", b"x") if way == "send" else await (await producer.enqueue("T", b"x"))

        async with client.producer() as producer:
            statuses = {(await sent(producer)).status for _ in range(4)}
            assert statuses == {SendStatus.OK, SendStatus.FLUSH_SLAVE_TIMEOUT}
        async with client.producer(retry_when_not_stored=True) as producer:
            assert {(await sent(producer)).queue.broker_name for _ in range(4)} == {"broker-b"}
            cluster.brokers[1].answers[310] = lambda request: request.answer(2, "busy")
            cluster.brokers[1].answers[320] = cluster.brokers[1].answers[310]
            results = []
            for _ in range(4):
                with suppress(gantrymq.BrokerError):
                    results.append(await sent(producer))
            assert {result.status for result in results} == {SendStatus.FLUSH_SLAVE_TIMEOUT}  # stored all the same


def test_the_blocking_producer_has_the_send_options(fake_in_thread: Any) -> None:
    fake_in_thread.broker.answers[RECALL] = lambda request: request.answer(0, ext={"msgId": "ID"})
    with (
        gantrymq.sync.connect(fake_in_thread.address) as client,
        client.producer(retry_when_not_stored=True) as producer,
    ):
        keyed = {
            producer.send("T", b"x", order_key="a").queue,
            producer.enqueue("T", b"x", order_key="a").result().queue,
        }
        assert len(keyed) == 1
        producer.send("T", b"x", delay=timedelta(seconds=1), queue=0)
        producer.enqueue("T", b"x", deliver_at=datetime.now(UTC)).result()
        producer.send_oneway("T", b"x", delay_level=2)
        assert producer.recall(encode_handle("T", "broker-a", 5, "ID")) == "ID"


def test_a_given_queue_is_used() -> None:
    assert choose_queue(None, None) is None
    assert choose_queue(3, None) == 3


async def test_half_messages_accept_no_delay(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        opened = client.transactional_producer("g", check=lambda half: gantrymq.Outcome.COMMIT)
        async with opened as producer:
            with anyio.fail_after(10), pytest.raises(gantrymq.InvalidMessage, match="when it is committed"):
                await producer.send(Message("T", b"x", delay=1), local=lambda *_: gantrymq.Outcome.COMMIT)

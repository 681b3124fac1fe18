"""Interceptors, serializers and deserializers at producers, consumers, readers and workers."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import anyio
import attrs
import msgspec
import pytest

import gantrymq
import gantrymq.sync
from gantrymq import ConsumeContext, Interceptor, Message, Outcome, SendContext
from gantrymq.remoting.codes import RequestCode
from support.routes import wait_routed

pytestmark = pytest.mark.anyio

Cluster = Callable[..., Any]
PATIENCE_SECONDS = 60
SEND = RequestCode.SEND_MESSAGE_V2


class Order(msgspec.Struct):
    id: int


class Recorder(Interceptor):
    """Records its calls, and adds a mark to messages."""

    def __init__(self, name: str = "", calls: list[tuple[Any, ...]] | None = None) -> None:
        self.name = name
        self.calls: list[tuple[Any, ...]] = [] if calls is None else calls

    def before_send(self, context: SendContext) -> None:
        context.message = attrs.evolve(
            context.message, properties={**context.message.properties, f"mark{self.name}": context.kind}
        )
        context.data[f"began{self.name}"] = True

    def after_send(self, context: SendContext) -> None:
        assert context.data[f"began{self.name}"]
        error = None if context.error is None else type(context.error).__name__
        self.calls.append((f"sent{self.name}", context.kind, bytes(context.message.body), context.result, error))

    def before_consume(self, context: ConsumeContext) -> None:
        assert context.acknowledged is None
        context.message.properties["seen"] = context.group
        self.calls.append((f"given{self.name}", context.message.body))

    def after_consume(self, context: ConsumeContext) -> None:
        self.calls.append((f"settled{self.name}", context.message.body, context.acknowledged))


class Broken(Interceptor):
    """Fails at everything."""

    def before_send(self, context: SendContext) -> None:
        context.message = Message("another", b"lost")
        raise RuntimeError("before_send")

    def after_send(self, context: SendContext) -> None:
        raise RuntimeError("after_send")

    def before_consume(self, context: ConsumeContext) -> None:
        raise RuntimeError("before_consume")

    def after_consume(self, context: ConsumeContext) -> None:
        raise RuntimeError("after_consume")


class Diverting(Interceptor):
    def before_send(self, context: SendContext) -> None:
        context.message = Message("another", b"lost")


@pytest.fixture
def topic() -> str:
    return f"T-{uuid.uuid4().hex}"


async def test_each_way_of_sending_is_intercepted(fake_cluster: Cluster) -> None:
    recorder = Recorder()
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address, interceptors=[recorder]) as client,
        client.producer("p") as producer,
        client.transactional_producer(
            "tp", check=lambda _: Outcome.UNKNOWN, local=lambda *_: Outcome.COMMIT
        ) as transactional,
    ):
        sent = await producer.send("T", b"1", properties={"own": "x"})
        pending = await producer.enqueue("T", b"2")
        await producer.flush()
        batch = await producer.send_batch([Message("T", b"3"), Message("T", b"4")])
        await producer.send_oneway("T", b"5")
        half = await transactional.send("T", b"6")
        cluster.broker.answers[SEND] = lambda request: request.answer(13, "no")
        with pytest.raises(gantrymq.BrokerError):
            await producer.request("T", b"7", timeout=PATIENCE_SECONDS)
        with pytest.raises(gantrymq.InvalidMessage):
            await producer.send("T", b"")
        assert recorder.calls == [
            ("sent", "send", b"1", sent, None),
            ("sent", "enqueue", b"2", await pending, None),
            ("sent", "batch", b"3", batch[0], None),
            ("sent", "batch", b"4", batch[1], None),
            ("sent", "oneway", b"5", None, None),
            ("sent", "half", b"6", half.sent, None),
            ("sent", "request", b"7", None, "BrokerError"),
            ("sent", "send", b"", None, "InvalidMessage"),
        ]
        async with client.reader("T", until="end") as reader:
            marks = {message.body: message.properties["mark"] async for message in reader}
        kinds = ["send", "enqueue", "batch", "batch", "oneway", "half"]
        assert marks == {b"%d" % (number + 1): kind for number, kind in enumerate(kinds)}


async def test_an_enqueued_message_that_fails_is_reported(fake_cluster: Cluster) -> None:
    recorder = Recorder()
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address, interceptors=[recorder]) as client,
        client.producer("p", retries=0) as producer,
    ):
        cluster.broker.answers[SEND] = lambda request: request.answer(13, "no")
        pending = await producer.enqueue("T", b"1")
        await producer.flush()
        with pytest.raises(gantrymq.BrokerError):
            await pending
        assert recorder.calls == [("sent", "enqueue", b"1", None, "BrokerError")]
        results: list[bool] = []
        pending.when_done(lambda one: results.append(one.done))
        assert results == [True]


async def test_interceptors_see_consumed_messages_until_they_are_settled(fake_cluster: Cluster) -> None:
    recorder = Recorder()
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address, interceptors=[recorder]) as client:
        for number in range(4):
            cluster.broker.store("T", 0, b"%d" % number)
        cluster.broker.answers[RequestCode.CONSUMER_SEND_MSG_BACK] = lambda request: request.answer(0)
        async with client.consumer("T", "g", start="first") as messages:
            first = await anext(messages)
            assert first.properties["seen"] == "g"
            await first.ack()
            await first.ack()
            await (await anext(messages)).retry()
            batch = await messages.next_batch(2)
            await batch[0].ack()
            await batch.ack()
        assert recorder.calls == [
            ("given", b"0"), ("settled", b"0", True), ("given", b"1"), ("settled", b"1", False),
            ("given", b"2"), ("given", b"3"), ("settled", b"2", True), ("settled", b"3", True),
        ]  # fmt: skip
        assert cluster.broker.offsets["g", "T", 0] == 4


async def test_an_ordered_message_is_reported_again_at_redelivery(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gantrymq.client.consumer.SUSPEND_SECONDS", 0.01)
    recorder = Recorder()
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address, interceptors=[recorder]) as client,
        client.consumer("T", "g", start="first", ordered=True) as messages,
    ):
        cluster.broker.store("T", 0, b"x")
        await (await anext(messages)).retry()
        await (await anext(messages)).ack()
        assert recorder.calls == [("given", b"x"), ("settled", b"x", False), ("given", b"x"), ("settled", b"x", True)]


@pytest.mark.parametrize("settle", ["ack", "retry"])
async def test_a_message_sent_back_because_of_the_consume_timeout_is_not_reported_when_it_is_settled(
    fake_cluster: Cluster, settle: str
) -> None:
    recorder = Recorder()
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address, interceptors=[recorder]) as client,
        client.consumer("T", "g", start="first", consume_timeout=0.1) as messages,
    ):
        cluster.broker.answers[RequestCode.CONSUMER_SEND_MSG_BACK] = lambda request: request.answer(0)
        cluster.broker.store("T", 0, b"x")
        with anyio.fail_after(PATIENCE_SECONDS):
            message = await anext(messages)
            while not messages.statistics().returned:  # noqa: ASYNC110
                await anyio.sleep(0.01)
        await (message.ack() if settle == "ack" else message.retry())
        assert recorder.calls == [("given", b"x")]


async def test_errors_of_interceptors_lose_no_message(
    fake_cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[tuple[Any, ...]] = []
    chain = [Recorder("1", calls), Broken(), Diverting(), Recorder("2", calls)]
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address, interceptors=chain) as client,
        client.producer("p") as producer,
        client.consumer("T", "g", start="first") as messages,
    ):
        await producer.send("T", b"1")
        message = await anext(messages)
        assert (message.body, message.properties["mark1"], message.properties["mark2"]) == (b"1", "send", "send")
        await message.ack()
        await messages.commit()
        assert cluster.broker.offsets["g", "T", 0] == 1
    assert [one[0] for one in calls] == ["sent2", "sent1", "given1", "given2", "settled2", "settled1"]
    for bad in (object(), Recorder):
        with pytest.raises(TypeError, match="an interceptor is an object of a class made from Interceptor"):
            gantrymq.connect("127.0.0.1:1", interceptors=[bad])  # type: ignore[list-item]


async def test_messages_pass_directly_without_serializers_and_interceptors(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        assert type(client.producer()) is gantrymq.Producer
        assert type(client.consumer("T", "g")) is gantrymq.Consumer
        assert type(client.transactional_producer("p", check=lambda _: Outcome.COMMIT)) is (
            gantrymq.TransactionalProducer
        )


async def test_a_body_that_cannot_be_serialized_is_not_sent(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer("p", serializer="json") as producer,
    ):
        with pytest.raises(gantrymq.InvalidMessage, match="serializer json cannot encode object"):
            await producer.send("T", object())
        with pytest.raises(gantrymq.InvalidMessage, match="bytes"):
            await producer.send_batch([Message("T", {"id": 1}), Message("T", b"x")])
        assert not cluster.broker.seen(SEND)
        with pytest.raises(ValueError, match="serializer 'xml' is neither one of"):
            client.producer(serializer="xml")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="deserializer 'xml' is neither one of"):
            client.consumer("T", "g", deserializer="xml")
        with pytest.raises(ValueError, match="bad_bodies 'raise' is neither"):
            client.consumer("T", "g", bad_bodies="raise")  # type: ignore[arg-type]


async def test_a_bad_body_that_cannot_be_sent_back_at_once_is_sent_back_later(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gantrymq.client.intercepted.SEND_BACK_PAUSE_SECONDS", 0.01)
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.consumer("T", "g", start="first", deserializer="json") as messages,
    ):
        broker = cluster.broker
        refused = [lambda request: request.answer(14, "the disk is full")] * 2

        def answer(request: Any) -> Any:
            return refused.pop()(request) if refused else request.answer(0)

        broker.answers[RequestCode.CONSUMER_SEND_MSG_BACK] = answer
        broker.store("T", 0, b"{")
        broker.store("T", 0, b"[1]")
        message = await anext(messages)
        assert message.value == [1]
        await message.ack()
        sent_back = await broker.wait_for(RequestCode.CONSUMER_SEND_MSG_BACK, 3)
        assert {request.ext["delayLevel"] for request in sent_back} == {"-1"}
        statistics = messages.statistics()
        assert statistics.last_error is not None
        assert "cannot be read as json" in statistics.last_error


async def test_a_bad_body_that_its_broker_no_longer_has_becomes_a_dead_letter(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        broker = cluster.broker
        broker.answers[RequestCode.CONSUMER_SEND_MSG_BACK] = lambda request: request.answer(
            1, "look message by offset failed, 0"
        )
        broker.store("T", 0, b"{")
        broker.store("T", 0, b"[1]")
        async with client.consumer("T", "g", start="first", deserializer="json") as messages:
            await (await anext(messages)).ack()
            (sent,) = await broker.wait_for(RequestCode.SEND_MESSAGE_V2)
            assert (sent.body, sent.ext["b"], sent.ext["l"]) == (b"{", "%RETRY%g", "0")
            with anyio.fail_after(PATIENCE_SECONDS):
                while messages.statistics().acknowledged < 2:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
        assert broker.offsets["g", "T", 0] == 2


@pytest.mark.twins
async def test_objects_pass_a_real_cluster_and_bad_bodies_become_dead_letters(cluster: str, topic: str) -> None:
    group = f"{topic}-g"
    recorder = Recorder()
    async with (
        gantrymq.connect(cluster, interceptors=[recorder]) as client,
        client.producer("p", serializer="json") as producer,
        client.producer("raw") as raw,
    ):
        await client.admin.create_topic(topic, queues=1)
        await producer.send(topic, Order(1))
        await producer.send_batch([Message(topic, Order(2)), Message(topic, Order(3))])
        await raw.send(topic, b'{"id": "x"}')
        await (await producer.enqueue(topic, {"id": 4}))
        handled: list[int] = []
        with anyio.fail_after(PATIENCE_SECONDS):
            async with client.consumer(topic, group, start="first", deserializer=Order) as messages:
                while len(handled) < 4:
                    for message in await messages.next_batch(4):
                        handled.append(message.value.id)
                        assert message.properties["mark"]
                        await message.ack()
            assert handled == [1, 2, 3, 4]
            assert [one[0] for one in recorder.calls].count("settled") == 4
            await wait_routed(client, f"%DLQ%{group}")
            async with client.reader(f"%DLQ%{group}") as reader:
                assert (await anext(reader)).body == b'{"id": "x"}'
            async with client.reader(topic, until="end", deserializer=Order) as reader:
                values: list[Any] = []
                async for record in reader:
                    try:
                        values.append(record.value.id)
                    except gantrymq.BodyError as error:
                        values.append(str(error))
        assert values[:3] == [1, 2, 3]
        assert "the body cannot be read as Order: ValidationError" in values[3]


async def test_a_worker_gets_decoded_values_and_bad_bodies_are_redelivered(fake_cluster: Cluster) -> None:
    handled: list[int] = []
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        broker = cluster.broker
        broker.answers[RequestCode.CONSUMER_SEND_MSG_BACK] = lambda request: request.answer(0)
        for body in (b"{", b'{"id":7}'):
            broker.store("T", 0, body)
        async with anyio.create_task_group() as tasks:

            async def handle(message: gantrymq.ReceivedMessage) -> None:
                handled.append(message.value.id)
                (request,) = await broker.wait_for(RequestCode.CONSUMER_SEND_MSG_BACK)
                assert (request.ext["delayLevel"], request.ext["maxReconsumeTimes"]) == ("0", "3")
                tasks.cancel_scope.cancel()

            with anyio.fail_after(PATIENCE_SECONDS):
                await client.run(
                    handle, "T", "g", start="first", deserializer=Order, bad_bodies="retry", max_retries=3,
                    signals=False,
                )  # fmt: skip
        assert handled == [7]


def test_the_blocking_client_supports_serializers_and_interceptors(cluster: str, topic: str) -> None:
    recorder = Recorder()
    with gantrymq.sync.connect(cluster, interceptors=[recorder]) as client:
        client.admin.create_topic(topic, queues=1)
        with client.producer(serializer="json") as producer:
            producer.send(topic, Order(1))
            producer.enqueue(topic, Order(2)).result(PATIENCE_SECONDS)
        with client.consumer(topic, f"{topic}-g", start="first", deserializer=Order) as messages:
            for number in (1, 2):
                message = next(messages)
                assert message.value == Order(number)
                message.ack()
            messages.commit()
        with client.reader(topic, until="end", deserializer="json") as reader:
            values = [record.value for record in reader]
        assert values == [{"id": 1}, {"id": 2}]
        with client.reader(topic, until="end") as reader, pytest.raises(gantrymq.GantryError, match="no value without"):
            print(next(reader).value)
    kinds = [one[0] for one in recorder.calls]
    assert kinds.count("sent") == kinds.count("settled") == 2

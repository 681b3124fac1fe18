"""OpenTelemetry: spans of producers and consumers in one trace, their attributes, and the current span of a handler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import anyio
import pytest

import gantrymq
import gantrymq.sync
from gantrymq.remoting.codes import RequestCode

trace = pytest.importorskip("opentelemetry.trace")
sdk = pytest.importorskip("opentelemetry.sdk.trace")
export = pytest.importorskip("opentelemetry.sdk.trace.export")
memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")

pytestmark = pytest.mark.anyio

Cluster = Callable[..., Any]


@pytest.fixture
def spans() -> Any:
    return memory.InMemorySpanExporter()


@pytest.fixture
def provider(spans: Any) -> Iterator[Any]:
    made = sdk.TracerProvider()
    made.add_span_processor(export.SimpleSpanProcessor(spans))
    yield made
    made.shutdown()


@pytest.fixture
def telemetry(provider: Any) -> Any:
    from gantrymq.client.otel import OpenTelemetry

    return OpenTelemetry(provider)


async def test_a_message_has_one_trace_from_its_sender_to_its_consumer(
    fake_cluster: Cluster, telemetry: Any, provider: Any, spans: Any
) -> None:
    tracer = provider.get_tracer("application")
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address, interceptors=[telemetry]) as client,
        client.producer("p") as producer,
        client.consumer("T", "g", start="first") as messages,
    ):
        with tracer.start_as_current_span("order"):
            sent = await producer.send("T", b"123", tags="a", keys=["k"], order_key="o")
        message = await anext(messages)
        assert trace.get_current_span() is telemetry.span(message)
        assert telemetry.span(message).is_recording()
        with tracer.start_as_current_span("work"):
            pass
        await message.ack()
        assert telemetry.span(message) is trace.INVALID_SPAN
        assert not trace.get_current_span().is_recording()
    order, send, work, process = (
        next(span for span in spans.get_finished_spans() if span.name == name)
        for name in ("order", "send T", "work", "process T")
    )
    assert {span.context.trace_id for span in (send, work, process)} == {order.context.trace_id}
    assert send.parent.span_id == order.context.span_id
    assert process.parent.span_id == send.context.span_id
    assert work.parent.span_id == process.context.span_id
    assert [link.context.span_id for link in process.links] == [send.context.span_id]
    assert (send.kind, process.kind) == (trace.SpanKind.PRODUCER, trace.SpanKind.CONSUMER)
    common = {
        "messaging.system": "rocketmq", "messaging.destination.name": "T", "messaging.message.body.size": 3,
        "messaging.client.id": client_id(send), "messaging.message.id": sent.message_id,
        "messaging.destination.partition.id": "0", "messaging.rocketmq.message.tag": "a",
        "messaging.rocketmq.message.keys": ("k",),
    }  # fmt: skip
    assert dict(send.attributes) == common | {
        "messaging.operation.name": "send", "messaging.operation.type": "send",
        "messaging.rocketmq.producer.group": "p", "messaging.rocketmq.message.type": "fifo",
        "messaging.rocketmq.message.group": "o",
    }  # fmt: skip
    assert dict(process.attributes) == common | {
        "messaging.operation.name": "process", "messaging.operation.type": "process",
        "messaging.consumer.group.name": "g", "messaging.rocketmq.queue_offset": 0,
    }  # fmt: skip


def client_id(span: Any) -> str:
    return str(span.attributes["messaging.client.id"])


async def test_failed_and_sent_back_messages_have_error_status(
    fake_cluster: Cluster, telemetry: Any, spans: Any
) -> None:
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address, interceptors=[telemetry]) as client,
        client.producer("p") as producer,
        client.consumer("T", "g", start="first") as messages,
    ):
        cluster.broker.answers[RequestCode.CONSUMER_SEND_MSG_BACK] = lambda request: request.answer(0)
        cluster.broker.store("T", 0, b"from a client without spans")
        await (await anext(messages)).retry()
        cluster.broker.answers[RequestCode.SEND_MESSAGE_V2] = lambda request: request.answer(13, "no")
        with pytest.raises(gantrymq.BrokerError):
            await producer.send("T", b"x")
    process, send = spans.get_finished_spans()
    assert (process.parent, process.links, process.status.description) == (None, (), "sent back")
    assert send.attributes["error.type"] == "BrokerError"
    assert not send.status.is_ok
    assert send.events[0].name == "exception"


async def test_messages_of_a_batch_have_spans_of_their_own(fake_cluster: Cluster, telemetry: Any, spans: Any) -> None:
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address, interceptors=[telemetry]) as client,
        client.producer("p") as producer,
    ):
        for delivery in [await producer.enqueue("T", b"%d" % number) for number in range(3)]:
            await delivery
        async with client.consumer("T", "g", start="first") as messages:
            with anyio.fail_after(60):
                batch: list[gantrymq.ReceivedMessage] = []
                while len(batch) < 3:
                    batch += await messages.next_batch()
            assert len({telemetry.span(message).get_span_context().trace_id for message in batch}) == 3
            for message in batch:
                await message.ack()
    assert sorted(span.name for span in spans.get_finished_spans()) == ["process T"] * 3 + ["send T"] * 3


def test_the_blocking_client_has_spans(fake_in_thread: Any, telemetry: Any, spans: Any) -> None:
    with gantrymq.sync.connect(fake_in_thread.address, interceptors=[telemetry]) as client:
        with client.producer() as producer:
            producer.send("T", b"x")
        with client.consumer("T", "g", start="first") as messages:
            message = next(messages)
            with trace.use_span(telemetry.span(message)):
                assert trace.get_current_span().is_recording()
            message.ack()
    send, process = spans.get_finished_spans()
    assert process.context.trace_id == send.context.trace_id

"""OpenTelemetry spans of messages, with the context in their properties. Needs the extra ``otel``.

Names are those of OpenTelemetry's semantic conventions for messaging and for RocketMQ.
"""

from __future__ import annotations

from typing import Any, Final
from weakref import WeakKeyDictionary

import attrs
from opentelemetry import context as contexts
from opentelemetry import propagate, trace
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider

from gantrymq._version import __version__
from gantrymq.client.checks import deliver_milliseconds, is_timed
from gantrymq.client.interceptors import ConsumeContext, Interceptor, SendContext
from gantrymq.message import DeliveredRecord, Message, SendStatus

_SPAN: Final = "gantrymq.otel.span"
_BEFORE: Final = "gantrymq.otel.before"


class OpenTelemetry(Interceptor):
    """An interceptor for ``connect(interceptors=[...])``: a span for each message that is sent, and one for each that a
    consumer gives out, until it is settled. The producer's context travels in the properties ``traceparent`` and
    ``tracestate``, also to and from clients in other languages.

    A consumer's span belongs to the trace of its producer and has a link to the producer's span. While a message is the
    only one that was given out, its span is the current one of the task: ``async for``, handlers of ``client.run``.
    """

    def __init__(
        self, tracer_provider: TracerProvider | None = None, propagator: TextMapPropagator | None = None
    ) -> None:
        """The global provider and propagator by default."""
        self._tracer = trace.get_tracer("gantrymq", __version__, tracer_provider)
        self._propagator = propagator or propagate.get_global_textmap()
        self._spans: WeakKeyDictionary[DeliveredRecord, Span] = WeakKeyDictionary()

    def span(self, message: DeliveredRecord) -> Span:
        """The span of a message that a consumer gave out: for messages of a batch, and for ``gantrymq.sync``, as in
        ``with trace.use_span(telemetry.span(message)):``. A span without effect for other messages."""
        return self._spans.get(message, trace.INVALID_SPAN)

    def before_send(self, context: SendContext) -> None:
        """Begin the span, and put its context into the properties."""
        message = context.message
        span = self._tracer.start_span(
            f"send {message.topic}", kind=SpanKind.PRODUCER, attributes=_sent(message, context)
        )
        context.data[_SPAN] = span
        properties = dict(message.properties)
        self._propagator.inject(properties, trace.set_span_in_context(span))
        context.message = attrs.evolve(message, properties=properties)

    def after_send(self, context: SendContext) -> None:
        """End the span."""
        span = context.data.get(_SPAN)
        if span is None:
            return
        if context.result is not None:
            span.set_attribute("messaging.message.id", context.result.message_id)
            span.set_attribute("messaging.destination.partition.id", str(context.result.queue.queue_id))
            if context.result.status is not SendStatus.OK:
                span.set_attribute("messaging.rocketmq.send_status", context.result.status.name)
        if context.error is not None:
            _fail(span, context.error)
        span.end()

    def before_consume(self, context: ConsumeContext) -> None:
        """Begin the span, within the trace of the message's producer."""
        message = context.message
        parent = self._propagator.extract(message.properties)
        creation = trace.get_current_span(parent).get_span_context()
        span = self._tracer.start_span(
            f"process {message.topic}", parent, SpanKind.CONSUMER, _consumed(message, context),
            [Link(creation)] if creation.is_valid else (),
        )  # fmt: skip
        context.data[_SPAN] = span
        self._spans[message] = span
        if context.alone:
            context.data[_BEFORE] = contexts.get_current()
            contexts.attach(trace.set_span_in_context(span))

    def after_consume(self, context: ConsumeContext) -> None:
        """End the span."""
        span = context.data.get(_SPAN)
        if span is None:
            return
        if not context.acknowledged:
            span.set_status(Status(StatusCode.ERROR, "sent back"))
        span.end()
        self._spans.pop(context.message, None)
        before = context.data.get(_BEFORE)
        if before is not None and trace.get_current_span() is span:
            contexts.attach(before)


def _fail(span: Span, error: BaseException) -> None:
    if isinstance(error, Exception):
        span.record_exception(error)
    span.set_attribute("error.type", type(error).__name__)
    span.set_status(Status(StatusCode.ERROR, str(error)))


def _sent(message: Message, context: SendContext) -> dict[str, Any]:
    found = _common("send", message.topic, len(message.body), message.tags, message.keys, context.client_id)
    found["messaging.rocketmq.producer.group"] = context.group
    found["messaging.rocketmq.message.type"] = _type_of(message, context)
    if message.order_key is not None:
        found["messaging.rocketmq.message.group"] = str(message.order_key)
    if message.delay_level:
        found["messaging.rocketmq.message.delay_time_level"] = message.delay_level
    if message.deliver_at is not None:
        found["messaging.rocketmq.message.delivery_timestamp"] = deliver_milliseconds(message.deliver_at)
    return found


def _type_of(message: Message, context: SendContext) -> str:
    if context.kind == "half":
        return "transaction"
    if message.delay_level or is_timed(message):
        return "delay"
    return "fifo" if message.order_key is not None else "normal"


def _consumed(message: DeliveredRecord, context: ConsumeContext) -> dict[str, Any]:
    size = len(message.stored_body)
    found = _common("process", message.topic, size, message.tags, message.keys, context.client_id)
    found["messaging.consumer.group.name"] = context.group
    found["messaging.message.id"] = message.message_id
    found["messaging.destination.partition.id"] = str(message.queue_id)
    found["messaging.rocketmq.queue_offset"] = message.queue_offset
    if message.reconsume_times:
        found["messaging.rocketmq.reconsume_times"] = message.reconsume_times
    return found


def _common(
    operation: str, topic: str, size: int, tag: str | None, keys: tuple[str, ...], client_id: str
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "messaging.system": "rocketmq",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": topic,
        "messaging.message.body.size": size,
        "messaging.client.id": client_id,
    }
    if tag:
        found["messaging.rocketmq.message.tag"] = tag
    if keys:
        found["messaging.rocketmq.message.keys"] = keys
    return found

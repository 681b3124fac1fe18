"""Producers and consumers with serializers and interceptors; those without have nothing of them on their way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Generic, Literal, TypeVar, Unpack

import anyio
import attrs

from gantrymq.client.accumulator import Accumulator, PendingSend
from gantrymq.client.batches import MessageBatch
from gantrymq.client.cluster import Cluster
from gantrymq.client.consumer import Consumer
from gantrymq.client.deliveries import DeliveryToThread
from gantrymq.client.direct import is_direct
from gantrymq.client.errors import BodyError, ClientClosed, CompressorMissing, GantryError
from gantrymq.client.interceptors import (
    ConsumeContext,
    Interceptors,
    RecallContext,
    SendContext,
    TransactionContext,
    now_ms,
)
from gantrymq.client.options import ConsumerOptions
from gantrymq.client.producer import REPLY_TIMEOUT_SECONDS, MessageParts, Producer, as_message
from gantrymq.client.puller import Puller
from gantrymq.client.sender import QueueChoice, Sender
from gantrymq.client.serializers import Serializer
from gantrymq.client.transactions import TransactionalProducer
from gantrymq.message import DeliveredRecord, Delivery, Message, Outcome, SendResult

SEND_BACK_PAUSE_SECONDS: Final = 1.0
SEND_BACK_LONGEST_PAUSE_SECONDS: Final = 30.0
"""Between attempts to return a message whose body cannot be read."""

Kind = Literal["send", "enqueue", "batch", "oneway", "request", "half"]
R = TypeVar("R", bound=DeliveredRecord)


class Outbound:
    """What happens to messages before and after they are sent."""

    def __init__(
        self, cluster: Cluster, group: str, serialize: Serializer | None, interceptors: Interceptors | None
    ) -> None:
        self._cluster = cluster
        self._group = group
        self._serialize = serialize
        self._interceptors = interceptors

    def begin(self, kind: Kind, message: Message) -> SendContext:
        """The context of a message, as it is to be sent; :class:`InvalidMessage` for a body with no serialized form."""
        if self._serialize is not None:
            message = attrs.evolve(message, body=self._serialize(message.body))
        context = SendContext(message, kind, self._group, self._cluster.client_id)
        if self._interceptors is not None:
            self._interceptors.before_send(context)
        return context

    def end(self, context: SendContext, result: SendResult | None = None, error: BaseException | None = None) -> None:
        """What became of it."""
        if result is not None:
            self.stored(context, result)
        if self._interceptors is not None:
            context.error = error
            self._interceptors.after_send(context)

    def stored(self, context: SendContext, result: SendResult) -> None:
        """A broker has it, now unless that was said before."""
        context.result = result
        if context.stored is None:
            context.stored = now_ms()

    def transaction_ended(
        self, message: Message | DeliveredRecord, transaction_id: str, outcome: Outcome, broker: str, *, checked: bool
    ) -> None:
        """The outcome of a transaction is about to be sent to ``broker``."""
        if self._interceptors is not None:
            client_id = self._cluster.client_id
            context = TransactionContext(message, transaction_id, outcome, self._group, client_id, broker, checked)
            self._interceptors.after_transaction(context)

    def recalled(self, topic: str, message_id: str, region: str | None) -> None:
        """A message was recalled."""
        if self._interceptors is not None:
            context = RecallContext(topic, message_id, self._group, self._cluster.client_id, region)
            self._interceptors.after_recall(context)

    @contextmanager
    def sending(self, kind: Kind, message: Message) -> Iterator[SendContext]:
        """:meth:`begin`, and :meth:`end` after the block: with its error, or with the result that it left."""
        context = self.begin(kind, message)
        try:
            yield context
        except BaseException as error:
            self.end(context, error=error)
            raise
        self.end(context, context.result)


class InterceptedProducer(Producer):
    """A :class:`Producer` whose messages are serialized and intercepted."""

    def __init__(self, cluster: Cluster, sender: Sender, accumulator: Accumulator, outbound: Outbound) -> None:
        super().__init__(cluster, sender, accumulator)
        self._outbound = outbound

    async def send(
        self,
        message: Message | str,
        body: Any = None,
        *,
        queue: QueueChoice | None = None,
        timeout: float | None = None,
        **parts: Unpack[MessageParts],
    ) -> SendResult:
        self._ensure_open()
        given = as_message(message, body, **parts)
        with self._outbound.sending("send", given) as context:
            result = context.result = await super().send(context.message, queue=queue, timeout=timeout)
        return result

    async def enqueue(
        self,
        message: Message | str,
        body: Any = None,
        *,
        queue: QueueChoice | None = None,
        **parts: Unpack[MessageParts],
    ) -> PendingSend:
        self._ensure_open()
        given = as_message(message, body, **parts)
        context = self._outbound.begin("enqueue", given)
        try:
            pending = await super().enqueue(context.message, queue=queue)
        except BaseException as error:
            self._outbound.end(context, error=error)
            raise
        pending.when_done(partial(self._enqueued, context))
        return pending

    def _enqueued(self, context: SendContext, pending: PendingSend) -> None:
        try:
            result = pending.result()
        except GantryError as error:
            self._outbound.end(context, error=error)
        else:
            self._outbound.end(context, result)

    async def send_batch(
        self, messages: Iterable[Message], *, queue: QueueChoice | None = None, timeout: float | None = None
    ) -> list[SendResult]:
        self._ensure_open()
        contexts = [self._outbound.begin("batch", as_message(message, None)) for message in messages]
        try:
            results = await super().send_batch([each.message for each in contexts], queue=queue, timeout=timeout)
        except BaseException as error:
            for context in contexts:
                self._outbound.end(context, error=error)
            raise
        for context, result in zip(contexts, results, strict=True):
            self._outbound.end(context, result)
        return results

    async def request(
        self,
        message: Message | str,
        body: Any = None,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        order_key: str | int | None = None,
        queue: QueueChoice | None = None,
        timeout: float = REPLY_TIMEOUT_SECONDS,
    ) -> DeliveredRecord:
        self._ensure_open()
        given = as_message(message, body, tags, keys, properties, order_key)
        with self._outbound.sending("request", given) as context:
            return await self._request(context.message, queue, timeout, partial(self._outbound.stored, context))

    def _recalled(self, topic: str, message_id: str, region: str | None) -> None:
        self._outbound.recalled(topic, message_id, region)

    async def send_oneway(
        self,
        message: Message | str,
        body: Any = None,
        *,
        queue: QueueChoice | None = None,
        **parts: Unpack[MessageParts],
    ) -> None:
        self._ensure_open()
        given = as_message(message, body, **parts)
        with self._outbound.sending("oneway", given) as context:
            await super().send_oneway(context.message, queue=queue)


class InterceptedTransactionalProducer(TransactionalProducer):
    """A :class:`TransactionalProducer` whose messages are serialized and intercepted. The local branch gets a message
    as it was given."""

    outbound: Outbound

    async def send_half(
        self, message: Message, *, queue: QueueChoice | None = None, timeout: float | None = None
    ) -> SendResult:
        self._ensure_open()
        with self.outbound.sending("half", message) as context:
            result = context.result = await super().send_half(context.message, queue=queue, timeout=timeout)
        return result

    def _ended(
        self, message: Message | DeliveredRecord, transaction_id: str, outcome: Outcome, broker: str, *, checked: bool
    ) -> None:
        self.outbound.transaction_ended(message, transaction_id, outcome, broker, checked=checked)


class WatchedDelivery:
    """A message's delivery that calls the interceptors when the message is settled."""

    __slots__ = ("_context", "_interceptors", "inner")

    def __init__(self, inner: Delivery, interceptors: Interceptors, context: ConsumeContext) -> None:
        self.inner: Delivery = inner
        self._interceptors = interceptors
        self._context = context

    @property
    def dropped(self) -> bool:
        """Whether the inner delivery is dropped."""
        return self.inner.dropped

    def acknowledge(self, queue_offset: int) -> None:
        """Acknowledge the message at the inner delivery."""
        self.inner.acknowledge(queue_offset)
        self._settle(True)

    async def send_back(self, record: DeliveredRecord, delay_level: int) -> None:
        """As of the delivery within."""
        await self.inner.send_back(record, delay_level)
        self._settle(False)

    async def reply(self, record: DeliveredRecord, body: bytes) -> None:
        """As of the delivery within."""
        await self.inner.reply(record, body)

    def forget(self) -> None:
        """The client has sent the message back: the interceptors are not called when the application settles it."""
        self._context.acknowledged = False

    def _settle(self, acknowledged: bool) -> None:
        if self._context.acknowledged is None:
            self._context.acknowledged = acknowledged
            self._interceptors.after_consume(self._context)


class InterceptedConsumer(Consumer[R], Generic[R]):
    """A :class:`Consumer` whose messages are deserialized and intercepted."""

    def __init__(self, cluster: Cluster, options: list[ConsumerOptions[R]], interceptors: Interceptors | None) -> None:
        super().__init__(cluster, options)
        self._interceptors = interceptors
        self._deserialize = self._settings.deserialize

    async def __anext__(self) -> R:
        while True:
            message = await super().__anext__()
            try:
                if self._accepts(message, True):
                    return message
            except CompressorMissing as error:
                self._keep([message], error)
                raise

    async def _next_batch(self, max: int) -> MessageBatch[R]:
        while True:
            taken = await super()._next_batch(max)
            accepted: list[R] = []
            for number, message in enumerate(taken):
                try:
                    if self._accepts(message, len(taken) == 1):
                        accepted.append(message)
                except CompressorMissing as error:
                    self._keep(taken[number:], error)
                    if not accepted:
                        raise
                    break
            if accepted:
                return MessageBatch(accepted)

    def _put_back(self, batch: MessageBatch[R]) -> None:
        for message in batch:
            if isinstance(message.delivery, WatchedDelivery):
                message.delivery = message.delivery.inner
        super()._put_back(MessageBatch(batch))

    async def _send_back_expired(self, puller: Puller[R], message: R, timeout: float) -> bool:
        is_sent = await super()._send_back_expired(puller, message, timeout)
        delivery = message.delivery
        while is_sent and isinstance(delivery, WatchedDelivery | DeliveryToThread):
            if isinstance(delivery, WatchedDelivery):
                delivery.forget()
            delivery = delivery.inner
        return is_sent

    def _accepts(self, message: R, alone: bool) -> bool:
        """Whether the application gets the message, which is ready for it then; :class:`CompressorMissing`."""
        delivery = message.delivery
        assert delivery is not None  # the consumer has set it
        while isinstance(delivery, WatchedDelivery | DeliveryToThread):
            delivery = delivery.inner  # an ordered message that is redelivered is the same object
        if self._deserialize is not None:
            try:
                message.decoded = (self._deserialize(message.body),)
            except BodyError as error:
                if isinstance(error, CompressorMissing) and not is_direct(delivery):
                    raise
                self._refuse(message, delivery, error)
                return False
        if self._interceptors is not None:
            context = ConsumeContext(message, self.group, self._cluster.client_id, alone)
            message.delivery = WatchedDelivery(delivery, self._interceptors, context)
            self._interceptors.before_consume(context)
        return True

    def _keep(self, messages: Sequence[R], error: CompressorMissing) -> None:
        """Return ``messages`` to the consumer: members with the compressor, or a later start, can read them."""
        self.failed(error)
        self._put_back(MessageBatch(messages))

    def _refuse(self, message: R, delivery: Delivery, error: BodyError) -> None:
        outcome = self._settings.bad_bodies
        self.failed(error)
        self._cluster.rare.warning(
            "message_body_unreadable", self.group, message.topic, group=self.group, topic=message.topic,
            message_id=message.message_id, queue=message.queue_id, offset=message.queue_offset, outcome=outcome,
            reason=str(error),
        )  # fmt: skip
        # in a task of its own: the caller may be cancelled, and others' messages must not wait for this broker
        self._puller_tasks().start_soon(self._send_back, message, delivery, 0 if outcome == "retry" else -1)

    async def _send_back(self, message: R, delivery: Delivery, delay_level: int) -> None:
        pause = SEND_BACK_PAUSE_SECONDS
        while not delivery.dropped:
            try:
                await delivery.send_back(message, delay_level)
                return
            except ClientClosed:
                return
            except GantryError as error:
                # it is not done, so the group gets it again from its offset should this member end
                self._cluster.rare.warning("send_back_failed", message.broker_name, self.group, reason=str(error))
            await anyio.sleep(pause)
            pause = min(pause * 2, SEND_BACK_LONGEST_PAUSE_SECONDS)
        # another member gets the queue, and the message with it: an ordered queue waits for that
        if self.ordered:
            message.delivery = delivery
            self._put_back(MessageBatch([message]))

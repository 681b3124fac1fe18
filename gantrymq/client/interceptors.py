"""Functions of users around each message that is sent or consumed. An error of one is logged and changes nothing."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Literal

import attrs

from gantrymq.message import DeliveredRecord, Message, Outcome, SendResult
from gantrymq.remoting.logs import LibraryLog

log: LibraryLog = LibraryLog()


def now_ms() -> int:
    """The time, in ms since 1970."""
    return int(time.time() * 1000)


@attrs.define
class SendContext:
    """One message on its way to a broker, before and after."""

    message: Message
    """What is sent; ``before_send`` may put another one here (``attrs.evolve(message, properties=...)``). The topic
    stays the same. Its body is serialized already."""
    kind: Literal["send", "enqueue", "batch", "oneway", "request", "half"]
    """By which method; ``half``: in a transaction."""
    group: str
    """The producer group."""
    client_id: str
    """The id of the client."""
    started: int = attrs.field(factory=now_ms)
    """When it began, in ms since 1970."""
    result: SendResult | None = None
    """Where it is stored; None before, after a failure, and with ``oneway``."""
    stored: int | None = None
    """When the broker had it, in ms since 1970; a ``request`` waits for its reply after that. None without a result."""
    error: BaseException | None = None
    """What the sender gets in place of a result; a ``request`` whose reply does not come has both."""
    data: dict[str, Any] = attrs.field(factory=dict)
    """What interceptors keep here in ``before_send`` for ``after_send``."""


@attrs.define
class ConsumeContext:
    """One message with a consumer's application, before and after."""

    message: DeliveredRecord
    """What the application gets; its ``properties`` may be changed."""
    group: str
    """The consumer group."""
    client_id: str
    """The id of the client."""
    alone: bool = True
    """Whether it is given out by itself, and not in a batch."""
    started: int = attrs.field(factory=now_ms)
    """When the application got it, in ms since 1970."""
    acknowledged: bool | None = None
    """The result: True if it was acknowledged, False if it was returned for redelivery, None before."""
    data: dict[str, Any] = attrs.field(factory=dict)
    """What interceptors keep here in ``before_consume`` for ``after_consume``."""


@attrs.define
class TransactionContext:
    """The outcome of a transaction, which is about to be sent to the broker."""

    message: Message | DeliveredRecord
    """As it was given to the producer, or as the broker checked back with it (``checked``)."""
    transaction_id: str
    """The id of the transaction."""
    outcome: Outcome
    """The outcome that the broker gets."""
    group: str
    """The producer group."""
    client_id: str
    """The id of the client."""
    broker: str
    """The address of the broker, ``host:port``."""
    checked: bool
    """Whether the broker asked, because it had no outcome yet."""


@attrs.define
class RecallContext:
    """A message that a producer has recalled."""

    topic: str
    """The topic of the message."""
    message_id: str
    """The producer's id of the message."""
    group: str
    """The producer group."""
    client_id: str
    """The id of the client."""
    region: str | None
    """The region of the broker, if it names one: RocketMQ's from 5.3 on, and GantryMQ's."""


class Interceptor:
    """The base of what ``connect(interceptors=[...])`` takes: override what you need.

    The functions are called in the client's event loop and must not block. Those *before* run in the order of the list,
    those *after* in the opposite one. What one raises is logged as ``interceptor_failed``, and the message continues as
    it was.
    """

    def before_send(self, context: SendContext) -> None:
        """A message is about to be sent; set ``context.message`` to change it."""

    def after_send(self, context: SendContext) -> None:
        """It is stored (``context.result``), or has failed (``context.error``)."""

    def after_transaction(self, context: TransactionContext) -> None:
        """The local branch of a transaction, or the check of one, has ended with ``context.outcome``."""

    def after_recall(self, context: RecallContext) -> None:
        """The message ``context.message_id`` was recalled."""

    def before_consume(self, context: ConsumeContext) -> None:
        """A consumer is about to return ``context.message``, whose ``properties`` are a dict that may be changed."""

    def after_consume(self, context: ConsumeContext) -> None:
        """The message was acknowledged (``context.acknowledged``) or sent back. Not called if it was neither."""


class Interceptors:
    """The interceptors of one client."""

    def __init__(self, members: Iterable[Interceptor]) -> None:
        """TypeError for what is no :class:`Interceptor`."""
        self._members = tuple(members)
        for one in self._members:
            if not isinstance(one, Interceptor):
                raise TypeError(f"an interceptor is an object of a class made from Interceptor, not {one!r}"[:200])
        self._reversed = self._members[::-1]

    def __bool__(self) -> bool:
        return bool(self._members)

    def before_send(self, context: SendContext) -> None:
        """Call all; a message for another topic does not count."""
        for one in self._members:
            message = context.message
            try:
                one.before_send(context)
                if not isinstance(context.message, Message) or context.message.topic != message.topic:
                    raise ValueError("context.message is no longer a message of the same topic")
            except Exception:
                context.message = message
                self._log(one, "before_send", message.topic)

    def after_send(self, context: SendContext) -> None:
        """Call all."""
        for one in self._reversed:
            try:
                one.after_send(context)
            except Exception:
                self._log(one, "after_send", context.message.topic)

    def after_transaction(self, context: TransactionContext) -> None:
        """Call all."""
        for one in self._reversed:
            try:
                one.after_transaction(context)
            except Exception:
                self._log(one, "after_transaction", context.message.topic)

    def after_recall(self, context: RecallContext) -> None:
        """Call all."""
        for one in self._reversed:
            try:
                one.after_recall(context)
            except Exception:
                self._log(one, "after_recall", context.topic)

    def before_consume(self, context: ConsumeContext) -> None:
        """Call all."""
        for one in self._members:
            try:
                one.before_consume(context)
            except Exception:
                self._log(one, "before_consume", context.message.topic)

    def after_consume(self, context: ConsumeContext) -> None:
        """Call all."""
        for one in self._reversed:
            try:
                one.after_consume(context)
            except Exception:
                self._log(one, "after_consume", context.message.topic)

    def _log(self, one: Interceptor, function: str, topic: str) -> None:
        log.exception("interceptor_failed", interceptor=type(one).__name__, function=function, topic=topic)

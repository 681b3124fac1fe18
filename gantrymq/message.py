"""The messages that users of the client send and receive, and the results of sends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, Protocol

import attrs
import msgspec

from gantrymq.remoting.bodies.queues import MessageQueue
from gantrymq.remoting.errors import GantryError
from gantrymq.remoting.records import BodyError, Record

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    V_co = TypeVar("V_co", covariant=True, default=Any)
    """What :attr:`DeliveredRecord.value` is."""
else:
    from typing import TypeVar

    V_co = TypeVar("V_co", covariant=True)  # defaults are for type checkers, and of the standard library from 3.13 on

__all__ = [
    "BodyError",
    "DeliveredRecord",
    "Delivery",
    "Message",
    "MessageQueue",
    "Outcome",
    "ReceivedMessage",
    "SendResult",
    "SendStatus",
    "TransactionResult",
]


def _as_keys(keys: str | Iterable[str]) -> tuple[str, ...]:
    return tuple(keys.split()) if isinstance(keys, str) else tuple(keys)


@attrs.frozen
class Message:
    """A message to send.

    ``tags`` is the one tag that consumers can select by; ``keys`` are what it can be found by (none may hold a space);
    ``properties`` go along as they are; ``flag`` is a number of the user's own. It arrives later with one of
    ``delay`` (a timedelta, or seconds), ``deliver_at`` (a datetime, of local time without a zone) and ``delay_level``
    (from 1 on, by the brokers' table of levels). Messages of a topic with the same ``order_key``, a str or an int, go
    to one queue. Checked when it is sent.
    """

    topic: str
    body: Any
    """Bytes, or what the producer's serializer takes."""
    tags: str | None = None
    keys: tuple[str, ...] = attrs.field(default=(), converter=_as_keys)
    properties: Mapping[str, str] = attrs.field(factory=dict)
    flag: int = 0
    delay_level: int = 0
    order_key: str | int | None = attrs.field(default=None, kw_only=True)
    delay: timedelta | float | None = attrs.field(default=None, kw_only=True)
    deliver_at: datetime | None = attrs.field(default=None, kw_only=True)


class SendStatus(Enum):
    """Which guarantees a stored message has. All but OK: stored, but a guarantee was not met in time."""

    OK = 0
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12


class SendResult(msgspec.Struct, frozen=True):
    """Where a message was stored. ``message_id`` is the client's id, ``offset_message_id`` the broker's.

    ``recall_handle``: the handle to recall a timed message; None where the broker returns none.
    """

    status: SendStatus
    message_id: str
    offset_message_id: str
    queue: MessageQueue
    queue_offset: int
    recall_handle: str | None = None


class Outcome(Enum):
    """The outcome of a transaction. UNKNOWN: not known yet; the broker checks back later, a limited number of times."""

    UNKNOWN = 0
    COMMIT = 8
    ROLLBACK = 12


@attrs.frozen
class TransactionResult:
    """How a transactional send ended: the status of the half message, and the ``outcome`` that was sent to the broker.

    ``error`` is what the local branch raised; the outcome is UNKNOWN then.
    """

    sent: SendResult
    outcome: Outcome
    error: Exception | None = None

    @property
    def transaction_id(self) -> str:
        """The transaction's id, which is the message's."""
        return self.sent.message_id


class Delivery(Protocol):
    """Where acknowledgments go: the consumer's side of one queue."""

    @property
    def dropped(self) -> bool:
        """Whether the queue has gone to another consumer."""

    def acknowledge(self, queue_offset: int) -> None:
        """Mark one message as done."""

    async def give_back(self, record: DeliveredRecord, delay_level: int) -> None:
        """Let the broker bring the message again, and mark this one as done."""

    async def reply(self, record: DeliveredRecord, body: bytes) -> None:
        """Send the reply to a request."""


class DeliveredRecord(Record, Generic[V_co]):
    """A stored message that a consumer was given. ``delivery`` is set by the consumer.

    ``topic`` is the one it was sent to, also on redelivery; ``reconsume_times`` is the number of earlier deliveries.
    """

    __slots__ = ()

    if TYPE_CHECKING:
        delivery: Delivery | None
        retry_topic: str | None
        """The topic of its redelivery, None at the first delivery."""
        decoded: tuple[Any] | BodyError | None
        """Behind :attr:`value`: what the deserializer made, or the error of it; None without one."""

    @property
    def value(self) -> V_co:
        """What the ``deserializer`` of the consumer or reader made of the body.

        Raises :class:`BodyError` if the body cannot be decoded (only readers deliver such messages), and
        :class:`GantryError` without a deserializer.
        """
        decoded = self.decoded
        if decoded is None:
            raise GantryError("there is no value without a deserializer: read the body, or give deserializer=")
        if isinstance(decoded, BodyError):
            raise decoded
        value: V_co = decoded[0]
        return value

    @property
    def queue(self) -> MessageQueue:
        """The queue it came from; ``queue_offset`` is its place there."""
        return MessageQueue(topic=self.retry_topic or self.topic, broker_name=self.broker_name, queue_id=self.queue_id)

    def _acknowledge(self) -> None:
        self._delivered().acknowledge(self.queue_offset)

    def _delivered(self) -> Delivery:
        if self.delivery is None:
            raise GantryError(f"{self!r} did not come from a consumer, so there is nobody to acknowledge it to")
        return self.delivery


class ReceivedMessage(DeliveredRecord[V_co]):
    """A message from a consumer: everything that is stored of it, and :meth:`ack`.

    In annotations ``ReceivedMessage[Order]`` is one whose :attr:`value` is an ``Order``.
    """

    __slots__ = ()

    async def ack(self) -> None:
        """Mark the message as done, so that its group does not get it again. Calling it twice is harmless.

        The group's offset moves up to the oldest message that is not done; the consumer commits it every five
        seconds and when it closes. Without effect if another consumer has the queue meanwhile, which gets the message
        again. :class:`ClientClosed` when the consumer is closed.
        """
        delivery = self.delivery
        if delivery is None:
            delivery = self._delivered()
        delivery.acknowledge(self.queue_offset)

    async def retry(self, delay_level: int = 0) -> None:
        """Send the message back: the group gets it again later, with ``reconsume_times`` one higher.

        ``delay_level`` 0 leaves the wait to the broker, which makes it longer each time; -1 makes it a dead letter at
        once. After the group's last attempt it becomes a dead letter. Without effect if the message is done, or if
        another consumer has the queue meanwhile, which gets the message again. Raises :class:`BrokerError`,
        :class:`ConnectError`, :class:`NoRoute`; then the message is not done. :class:`ClientClosed` when the consumer
        is closed.
        """
        await self._delivered().give_back(self, delay_level)

    async def reply(self, body: bytes) -> None:
        """Send the reply to a message that was requested, in Python or another language; :meth:`ack` it all the same.

        Returns when the requester has the reply. Raises :class:`InvalidMessage` where no reply is asked for,
        :class:`BrokerError` (code 1) when the requester is gone, :class:`ConnectError`, :class:`NoRoute`.
        """
        await self._delivered().reply(self, body)

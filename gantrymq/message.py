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
    """The keys as a tuple; what cannot be keys is its only item, which is refused when the message is sent."""
    given: Any = keys
    if isinstance(given, str):
        return tuple(given.split())
    if given is None:
        return ()
    return tuple(given) if isinstance(given, Iterable) and not isinstance(given, bytes) else (given,)


@attrs.frozen
class Message:
    """A message to send.

    It is checked when it is sent. At most one of ``delay``, ``deliver_at`` and ``delay_level`` lets it arrive later.
    """

    topic: str
    """At most 127 characters: letters, digits, ``_``, ``-``, ``%`` and ``|``."""
    body: Any
    """Bytes, 1 byte to 4 MiB, or what the producer's serializer takes."""
    tags: str | None = None
    """The one tag that consumers can select by."""
    keys: tuple[str, ...] = attrs.field(default=(), converter=_as_keys)
    """What the message can be found by: several keys without spaces, or one str with spaces between them."""
    properties: Mapping[str, str] = attrs.field(factory=dict)
    """The user's own properties. Names that RocketMQ reserves are refused."""
    flag: int = 0
    """A number of the user's own."""
    delay_level: int = 0
    """The delay by the brokers' table of levels, from 1 on; 0 means no delay."""
    order_key: str | int | None = attrs.field(default=None, kw_only=True)
    """Messages of a topic with the same key go to one queue, and consumers can take them in order."""
    delay: timedelta | float | None = attrs.field(default=None, kw_only=True)
    """How much later the message arrives: a timedelta, or seconds."""
    deliver_at: datetime | None = attrs.field(default=None, kw_only=True)
    """When the message arrives; without a time zone it is local time."""


class SendStatus(Enum):
    """Which guarantees a stored message has. All but OK: stored, but a guarantee was not met in time."""

    OK = 0
    """The message has the guarantees that the broker is configured for."""
    FLUSH_DISK_TIMEOUT = 10
    """The flush to the disk did not end in time."""
    SLAVE_NOT_AVAILABLE = 11
    """Too few slaves are in sync."""
    FLUSH_SLAVE_TIMEOUT = 12
    """No slave confirmed the message in time."""


class SendResult(msgspec.Struct, frozen=True):
    """Where a message was stored."""

    status: SendStatus
    """Whether a guarantee was not met in time."""
    message_id: str
    """The client's id of the message, which consumers see."""
    offset_message_id: str
    """The broker's id of the message."""
    queue: MessageQueue
    """The queue that has the message."""
    queue_offset: int
    """The place of the message in the queue."""
    recall_handle: str | None = None
    """The handle to recall a timed message; None where the broker returns none."""


class Outcome(Enum):
    """The outcome of a transaction."""

    UNKNOWN = 0
    """Not known yet: the broker checks back later, a limited number of times."""
    COMMIT = 8
    """Consumers get the message."""
    ROLLBACK = 12
    """The message is dropped."""


@attrs.frozen
class TransactionResult:
    """How a transactional send ended."""

    sent: SendResult
    """Where the half message was stored, and its status."""
    outcome: Outcome
    """The outcome that was sent to the broker."""
    error: Exception | None = None
    """What the local branch raised; the outcome is UNKNOWN then."""

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

    async def send_back(self, record: DeliveredRecord, delay_level: int) -> None:
        """Let the broker bring the message again, and mark this one as done."""

    async def reply(self, record: DeliveredRecord, body: bytes) -> None:
        """Send the reply to a request."""


class DeliveredRecord(Record, Generic[V_co]):
    """A stored message, as consumers, readers, ``client.admin`` and check-backs have it.

    Do not set attributes of other names: the compiled class has no room for them.
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

        Raises :class:`BodyError` if the body cannot be read (only readers return such messages), and
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
        """The queue that the message came from."""
        return MessageQueue(topic=self.retry_topic or self.topic, broker_name=self.broker_name, queue_id=self.queue_id)

    def _acknowledge(self) -> None:
        self._delivered().acknowledge(self.queue_offset)

    def _delivered(self) -> Delivery:
        if self.delivery is None:
            raise GantryError(f"{self!r} did not come from a consumer, so there is nobody to acknowledge it to")
        return self.delivery


class ReceivedMessage(DeliveredRecord[V_co]):
    """A message from a consumer: a :class:`DeliveredRecord` that is acknowledged or sent back.

    In annotations ``ReceivedMessage[Order]`` is one whose :attr:`value` is an ``Order``. In a plain handler of a worker
    the methods block, as those of :class:`gantrymq.sync.ReceivedMessage`.
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

        ``delay_level`` 0 leaves the wait to the broker, which makes it longer each time; from 1 on it chooses the wait
        by the brokers' table of levels; -1 makes the message a dead letter at once. After the group's last attempt it
        becomes a dead letter. An ordered consumer gets it again after a second, whatever the level; a broadcast
        consumer skips it. Without effect if the message is done, or if another consumer has the queue meanwhile, which
        gets the message again.

        Raises :class:`BrokerError`, :class:`ConnectError`, :class:`NoRoute`; then the message is not done.
        :class:`ClientClosed` when the consumer is closed.
        """
        await self._delivered().send_back(self, delay_level)

    async def reply(self, body: bytes) -> None:
        """Send the reply to a message that was requested, in Python or another language; :meth:`ack` it all the same.

        Returns when the requester has the reply; ``body`` has 1 byte to 4 MiB. Raises :class:`InvalidMessage` for
        another body and where no reply is asked for, :class:`BrokerError` (code 1) when the requester is gone,
        :class:`ConnectError`, :class:`NoRoute`, and :class:`ClientClosed` when the consumer is closed.
        """
        await self._delivered().reply(self, body)

"""What the broker notes about a message for a span, without OpenTelemetry: it runs in the broker's loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NamedTuple

from gantrymq.kernel.batch import Source
from gantrymq.remoting.names import DLQ_PREFIX, RETRY_PREFIX, SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC
from gantrymq.remoting.properties import find_property
from gantrymq.remoting.property_bytes import KEYS, REAL_TOPIC, RETRY_TOPIC, TAGS, UNIQ_KEY

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.plugins.otel.config import OtelConfig

TRACEPARENT: Final = b"traceparent"
TRACESTATE: Final = b"tracestate"
_TRACEPARENT_BYTES: Final = 55
VALUE_MAX: Final = 512
"""The most bytes of a property in a span: a message may have 32 KiB of properties, and 10,000 spans may wait."""
_SAMPLED: Final = frozenset(b"13579bdfBDF")
"""Hexadecimal digits of odd numbers: the lowest bit of the flags is *sampled*."""
_RATIO_BITS: Final = 1 << 64
_WAITING_TOPICS: Final = frozenset((SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC))
"""Topics of messages that wait; the property REAL_TOPIC has the topic that they are for."""


class Note(NamedTuple):
    """A span to be made; times are ns since 1970. ``span_id`` 0: any id."""

    operation: str
    topic: str
    traceparent: bytes
    tracestate: bytes | None
    parent_id: int
    """The id of the parent's span; 0: the producer's, in ``traceparent``."""
    span_id: int
    start_ns: int
    end_ns: int
    attributes: dict[str, str | int | float]
    error: str | None = None


class Notes:
    """A bounded queue of notes. What does not fit, or comes too often, is counted in ``dropped``."""

    def __init__(self, broker: Broker, config: OtelConfig) -> None:
        self._env = broker.env
        self._name = broker.name.encode()
        self._config = config
        self._bound = int(config.sample * _RATIO_BITS)
        self._waiting: deque[Note] = deque()
        self._second = 0
        self._left = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, count: int) -> list[Note]:
        """Return and remove the oldest notes, at most ``count``."""
        return [self._waiting.popleft() for _ in range(min(count, len(self._waiting)))]

    def is_sampled(self, traceparent: bytes) -> bool:
        """Return whether the producer has sampled this trace, and the share of this broker has it too."""
        if len(traceparent) < _TRACEPARENT_BYTES or traceparent[54] not in _SAMPLED:
            return False
        if self._bound == _RATIO_BITS:
            return True
        try:
            return int(traceparent[19:35], 16) < self._bound
        except ValueError:
            return False

    def has_room(self) -> bool:
        """Return whether one more span may be noted now; if not, it counts as dropped."""
        second = int(self._env.monotonic())
        if second != self._second:
            self._second, self._left = second, self._config.spans_per_second
        if self._left <= 0 or len(self._waiting) >= self._config.queue_max:
            self.dropped += 1
            return False
        self._left -= 1
        return True

    def add(self, note: Note) -> None:
        """Call it after :meth:`has_room`. A ``tracestate`` beyond :data:`VALUE_MAX`, the least that the standard
        demands, is left out, as a part of it would mean something else."""
        tracestate = note.tracestate if note.tracestate and len(note.tracestate) <= VALUE_MAX else None
        self._waiting.append(note._replace(traceparent=note.traceparent[:_TRACEPARENT_BYTES], tracestate=tracestate))

    def span_of(self, offset: int) -> int:
        """Return the id of the span of storing the message at the log offset ``offset``: the same for each call and on
        each replica, so that a later delivery can name it as its parent."""
        return int.from_bytes(blake2b(b"%d" % offset, digest_size=8, key=self._name[:64]).digest()) or 1


def operation_of(source: str, topic: str) -> str:
    """Return what storing a message of this source in ``topic`` means."""
    if topic == TRANS_HALF_TOPIC:
        return "half"
    if topic.startswith(DLQ_PREFIX):
        return "dead_letter"
    if source in (Source.RETRY, Source.RESEND):
        return "retry"
    if topic in (SCHEDULE_TOPIC, TIMER_TOPIC):
        return "delay"
    return "commit" if source == Source.TRANSACTION else "store"


def target_of(topic: str, property_of: Callable[[bytes], bytes | None]) -> str:
    """Return the topic that a message is for, which may wait in another one."""
    if topic not in _WAITING_TOPICS:
        return topic
    return (property_of(REAL_TOPIC) or topic.encode()).decode("utf-8", "replace")


def common_attributes(
    operation: str, topic: str, queue_id: int, property_of: Callable[[bytes], bytes | None]
) -> dict[str, str | int | float]:
    """Attributes with the names of OpenTelemetry's conventions for messaging and RocketMQ."""
    found: dict[str, str | int | float] = {
        "messaging.system": "rocketmq",
        "messaging.operation.name": operation,
        "messaging.destination.name": topic,
        "messaging.destination.partition.id": str(queue_id),
    }
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if topic.startswith(prefix):
            found["messaging.consumer.group.name"] = topic[len(prefix) :]
    for name, attribute in _PROPERTIES:
        value = property_of(name)
        if value is not None:
            found[attribute] = value[:VALUE_MAX].decode("utf-8", "replace")
    return found


_PROPERTIES: Final = (
    (UNIQ_KEY, "messaging.message.id"),
    (TAGS, "messaging.rocketmq.message.tag"),
    (KEYS, "messaging.rocketmq.message.keys"),
    (RETRY_TOPIC, "gantrymq.retry_topic"),
)


def property_reader(properties: bytes) -> Callable[[bytes], bytes | None]:
    """Return a function that finds properties in their encoded form."""
    return lambda name: find_property(properties, name)

"""The checks of a send request, with the codes and in the order of RocketMQ 4.9.7
(``AbstractSendMessageProcessor``)."""

from __future__ import annotations

from collections.abc import Iterator

from gantrymq.kernel.batch import BATCH_MAX_MESSAGES, BATCH_STORED_FACTOR, AppendBatch, Trait
from gantrymq.kernel.store.log.record import LEAST_BYTES
from gantrymq.plugins.interfaces import GroupTable, TopicTable
from gantrymq.remoting.bodies.topics import TopicConfig
from gantrymq.remoting.codes import PERM_WRITE, ResponseCode
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.headers.send import SendMessageHeader
from gantrymq.remoting.names import RETRY_PREFIX, validate_topic
from gantrymq.remoting.properties import NO_DELAY, find_property
from gantrymq.remoting.property_bytes import (
    DELAY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_PREFIX,
    TRAN_MSG,
)
from gantrymq.remoting.records import BATCH_ROW

_TIMES = (TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)


def check_topic(header: SendMessageHeader, topics: TopicTable, groups: GroupTable, broker: str) -> TopicConfig:
    """Return the topic of the request, created on first use if that is allowed; ``RemoteFault`` otherwise."""
    topic = header.topic
    config = topics.get(topic)
    if config is not None and config.order and not topics.broker_perm & PERM_WRITE:
        # Other clients learn from the nameserver to use another broker; ordered messages have no other broker.
        raise RemoteFault(ResponseCode.NO_PERMISSION, f"the broker[{broker}] sending message is forbidden")
    if config is None:
        validate_topic(topic)
    if topics.refuses_sends(topic):
        raise RemoteFault(ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden.")
    if config is None:
        config = topics.for_send(topic, header.default_topic, header.default_topic_queue_nums, bool(header.unit_mode))
    if config is None:
        raise RemoteFault(
            ResponseCode.TOPIC_NOT_EXIST,
            f"topic[{topic}] not exist, apply first please! (gantrymq topic create {topic}, or allow creation on first "
            "send with [plugin.topics] auto_create)",
        )
    queues = max(config.read_queue_nums, config.write_queue_nums)
    if header.queue_id >= queues:
        raise RemoteFault(
            ResponseCode.SYSTEM_ERROR,
            f"request queueId[{header.queue_id}] is illegal, topic[{topic}] has {queues} queues",
        )
    if topic.startswith(RETRY_PREFIX) and groups.find(topic[len(RETRY_PREFIX) :]) is None:
        raise RemoteFault(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {topic[len(RETRY_PREFIX) :]}"
        )
    return config


def split_batch(body: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield flag, body and properties of each message in a batch; ``RemoteFault`` (13) for inconsistent lengths.

    Per message: i32 size, i32 magic, i32 CRC, i32 flag, i32 body length, body, i16 properties length, properties
    (``MessageDecoder.encodeMessage``). All lengths are checked before the body is split.
    """
    position = 0
    total = len(body)
    while position < total:
        if total - position < BATCH_ROW.size + 2:
            raise RemoteFault(ResponseCode.MESSAGE_ILLEGAL, "the batch ends inside a message")
        size, _, _, flag, length = BATCH_ROW.unpack_from(body, position)
        end = position + size
        properties_at = position + BATCH_ROW.size + length
        if size < BATCH_ROW.size + 2 or end > total or length < 0 or properties_at + 2 > end:
            raise RemoteFault(ResponseCode.MESSAGE_ILLEGAL, "a message of the batch has lengths that do not add up")
        properties_length = int.from_bytes(body[properties_at : properties_at + 2], "big", signed=True)
        if properties_length < 0 or properties_at + 2 + properties_length != end:
            raise RemoteFault(ResponseCode.MESSAGE_ILLEGAL, "a message of the batch has lengths that do not add up")
        yield flag, body[position + BATCH_ROW.size : properties_at], body[properties_at + 2 : end]
        position = end


class StoredSize:
    """The stored size of the messages of one batch, each of which also gets the batch's properties.

    Without this check a small request could become gigabytes of log. ``topic_size`` in bytes.
    """

    def __init__(self, max_message_bytes: int, topic_size: int) -> None:
        self._limit = BATCH_STORED_FACTOR * max_message_bytes
        self._each = LEAST_BYTES + topic_size
        self.total = 0
        self._count = 0

    def add(self, body: int, properties: int) -> None:
        """Add one message with its bytes of body and properties; ``RemoteFault`` (13) beyond the limit."""
        self._count += 1
        self.total += self._each + body + properties
        if self._count > BATCH_MAX_MESSAGES:
            raise RemoteFault(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the batch has more than {BATCH_MAX_MESSAGES} messages: send it in parts",
            )
        if self.total > self._limit:
            raise RemoteFault(
                ResponseCode.MESSAGE_ILLEGAL,
                "the batch as it is stored, each message with the batch's properties, has more than "
                f"{self._limit} bytes ({BATCH_STORED_FACTOR} times store.max_message_bytes): send it in parts, or "
                "with fewer properties",
            )


def traits_of(properties: bytes) -> int:
    """Return the traits that the properties request."""
    traits = 0
    if DELAY in properties and not NO_DELAY.fullmatch(find_property(properties, DELAY) or b"0"):
        traits |= Trait.DELAY
    if TIMER_PREFIX in properties and any(find_property(properties, name) is not None for name in _TIMES):
        traits |= Trait.DELAY
    if TRAN_MSG in properties and (find_property(properties, TRAN_MSG) or b"").lower() == b"true":
        traits |= Trait.PREPARED
    return traits


def refuse_all(batch: AppendBatch, broker_id: int) -> None:
    """Refuse every row: this broker is a slave."""
    batch.refuse_all(
        ResponseCode.SERVICE_NOT_AVAILABLE,
        f"service not available now: this broker is a slave (id {broker_id}), messages go to the master",
    )


def refuse_unhandled(batch: AppendBatch) -> None:
    """Refuse rows whose trait is still set: the plugin that implements it is not enabled."""
    for row in batch.live:
        traits = traits_of(batch.properties[row]) & batch.traits
        if traits & Trait.PREPARED:
            batch.refuse(row, ResponseCode.NO_PERMISSION, "this broker takes no transaction messages")
        elif traits & Trait.DELAY:
            batch.refuse(row, ResponseCode.MESSAGE_ILLEGAL, "this broker takes no delayed messages")

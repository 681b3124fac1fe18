"""CONSUMER_SEND_MSG_BACK (36): a consumer sends a message back that it could not consume.

The request has the log offset of the message, and not its content. Source of the codes and of the order of checks:
RocketMQ 4.9.7 ``SendMessageProcessor.asyncConsumerSendMsgBack``.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from gantrymq.kernel.batch import STORED, AppendBatch, Source, Trait
from gantrymq.kernel.errors import CorruptRange, OutOfLog
from gantrymq.kernel.processors import Request, take_each
from gantrymq.kernel.store.log.record import BadRecord, Record
from gantrymq.kernel.store.reading import find_named
from gantrymq.plugins.interfaces import GroupTable, Statistics, TopicTable
from gantrymq.plugins.retry.deadletter import DeadLetters
from gantrymq.remoting.bodies.groups import SubscriptionGroupConfig
from gantrymq.remoting.bodies.topics import TopicConfig
from gantrymq.remoting.codes import PERM_READ, PERM_WRITE, ResponseCode
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.headers.header import read_header
from gantrymq.remoting.headers.send import SendBackHeader
from gantrymq.remoting.names import TRANS_HALF_TOPIC, retry_topic
from gantrymq.remoting.properties import find_property, replace_properties
from gantrymq.remoting.property_bytes import DELAY, ORIGIN_MESSAGE_ID, RETRY_TOPIC, WAIT

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker

FIRST_LEVEL = 3
"""The delay level of the first retry if the consumer leaves it to the broker; each further retry uses the next level.
Level 3 is 10 s by default."""
TURN_BYTES = 4 * 1024 * 1024
"""The most bytes of messages that are stored again in one turn."""
REQUEST_BYTES = 4096
"""The least size that a request counts for: finding a small message takes as long as copying this many bytes."""
LIMITS_SINCE = 121
"""The first version of clients (3.4.9, ``MQVersion``) whose limit of attempts is used."""
UNIT_SUBSCRIPTION = 2
"""Flag of a topic that a consumer in unit mode subscribes to (``TopicSysFlag``)."""


class SendBackProcessor:
    """Batch processor of 36: all requests of a turn become one batch."""

    def __init__(self, broker: Broker, topics: TopicTable, groups: GroupTable, dead_letters: DeadLetters) -> None:
        self._broker = broker
        self._topics = topics
        self._groups = groups
        self._dead_letters = dead_letters
        self._statistics = broker.registry.find(Statistics)

    def handle(self, requests: list[Request]) -> int:
        """Store each message again, and answer when that is durable; an invalid request is answered at once.

        A small request can refer to a message of megabytes: requests beyond :data:`TURN_BYTES` are left for a later
        turn. Returns how many were taken.
        """
        # The batch does not have the trait RETRY, because this method checks the number of attempts itself.
        batch = AppendBatch(done=self._reply, source=Source.RETRY)
        taken = size = 0
        while taken < len(requests) and size < TURN_BYTES:
            before = len(batch)
            take_each(requests[taken : taken + 1], partial(self._add, batch))
            size += REQUEST_BYTES + sum(len(body) for body in batch.bodies[before:])
            taken += 1
        if len(batch):
            self._broker.append(batch)
        return taken

    def _add(self, batch: AppendBatch, request: Request) -> None:
        header = read_header(SendBackHeader, request.command.ext)
        group = self._groups.find(header.group)
        if group is None:
            raise RemoteFault(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {header.group}"
            )
        if not self._topics.broker_perm & PERM_WRITE:
            raise RemoteFault(
                ResponseCode.NO_PERMISSION, f"the broker[{self._broker.name}] sending message is forbidden"
            )
        if group.retry_queue_nums <= 0:
            # A group without retry queues wants no retries.
            request.answer(ResponseCode.SUCCESS)
            return
        target = self._retry_topic(header, group)
        record = self._read(header.offset)
        limit = header.max_reconsume_times if request.command.version >= LIMITS_SINCE else None
        if limit is None:
            limit = group.retry_max_times
        level = header.delay_level
        if record.reconsume_times >= limit or level < 0:
            target, level = self._dead_letters.topic(header.group), 0
            queue_id = 0
        else:
            level = level or FIRST_LEVEL + record.reconsume_times
            queue_id = self._broker.env.random_int(group.retry_queue_nums)
            batch.traits |= Trait.DELAY
        batch.add(
            target.topic_name,
            queue_id,
            record.body,
            _properties(record, level),
            flag=record.flag,
            sys_flag=record.sys_flag,
            born_timestamp=record.born_timestamp,
            born_host=record.born_host,
            reconsume_times=record.reconsume_times + 1,
            origin=request,
        )

    def _retry_topic(self, header: SendBackHeader, group: SubscriptionGroupConfig) -> TopicConfig:
        name = retry_topic(header.group)
        queues = group.retry_queue_nums
        flag = UNIT_SUBSCRIPTION if header.unit_mode else 0
        # A topic that is older than the group's number of queues gets the missing ones, or nobody would read them.
        topic = self._topics.ensure_queues(
            TopicConfig(name, queues, queues, PERM_READ | PERM_WRITE, topic_sys_flag=flag)
        )
        if not topic.perm & PERM_WRITE:
            raise RemoteFault(ResponseCode.NO_PERMISSION, f"the topic[{name}] sending message is forbidden")
        return topic

    def _read(self, offset: int) -> Record:
        """Return the message at ``offset``. A queue entry must refer to it, because consumers read no other
        messages."""
        try:
            named = find_named(self._broker.store, offset)
            if named is not None and named.topic != TRANS_HALF_TOPIC:
                return self._broker.log.read_record(offset)
        except (OutOfLog, CorruptRange, BadRecord):
            pass
        raise RemoteFault(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {offset}")

    def _reply(self, batch: AppendBatch) -> None:
        for row, request in enumerate(batch.origins):
            status = batch.statuses[row]
            # As RocketMQ, which does not wait for slaves here: after an error the client would send it once more.
            if status in STORED:
                request.answer(ResponseCode.SUCCESS)
                self._count(request, batch.properties[row])
            else:
                # After this code, the only failure that clients expect here, the client sends the message itself.
                remark = batch.remarks.get(row) or f"not stored, code {status}"
                request.answer(ResponseCode.SYSTEM_ERROR, remark)
        self._dead_letters.report(batch)

    def _count(self, request: Request, properties: bytes) -> None:
        if self._statistics is not None:
            group = read_header(SendBackHeader, request.command.ext).group
            topic = (find_property(properties, RETRY_TOPIC) or b"").decode("utf-8", "replace")
            self._statistics.add("SNDBCK_PUT_NUMS", f"{topic}@{group}", 1)


def _properties(record: Record, level: int) -> bytes:
    """Return the message's properties, with those of the retry."""
    changes: dict[bytes, bytes | None] = {WAIT: b"false", DELAY: b"%d" % level}
    if find_property(record.properties, RETRY_TOPIC) is None:
        changes[RETRY_TOPIC] = record.topic.encode()
    if not (find_property(record.properties, ORIGIN_MESSAGE_ID) or b"").strip():
        changes[ORIGIN_MESSAGE_ID] = record.message_id.encode()
    return replace_properties(record.properties, changes)

"""Turns send requests into one batch, and its statuses into replies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import structlog

from gantrymq.kernel.batch import STORED, AppendBatch, Earlier, Source, Trait
from gantrymq.kernel.fast import new_batch
from gantrymq.kernel.processors import Request
from gantrymq.kernel.store.log.record import BLANK_BYTES, TOPIC_MAX_BYTES
from gantrymq.plugins.interfaces import GroupTable, TopicTable
from gantrymq.plugins.produce.fast import READERS, add_sends, answer_sends
from gantrymq.plugins.produce.plain import reply_form
from gantrymq.plugins.produce.validate import StoredSize, check_topic, split_batch, traits_of
from gantrymq.remoting.bodies.topics import TopicConfig
from gantrymq.remoting.codes import PERM_WRITE, RequestCode, ResponseCode
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.headers.send import SendMessageHeader, read_send_header
from gantrymq.remoting.headers.transactions import TransactionState
from gantrymq.remoting.message_ids import id_at, id_prefix
from gantrymq.remoting.names import RETRY_PREFIX
from gantrymq.remoting.properties import PROPERTIES_MAX_BYTES
from gantrymq.remoting.property_bytes import CLUSTER, WAIT
from gantrymq.remoting.rare_warnings import RareWarnings
from gantrymq.remoting.records import HEADS, STORE_HOST_V6

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker

LIMITS_SINCE = 121
"""The first version of clients (3.4.9, ``MQVersion``) whose limit of attempts is used."""

_WAIT, _CLUSTER = WAIT + b"\x01", CLUSTER + b"\x01"
_NO_WAIT = _WAIT + b"false"
_BORN_HOST_V6 = 0x10
_HOST_V4_BYTES, _HOST_V6_BYTES = 8, 20
_MULTI_TAGS = 0x2

log = structlog.get_logger("gantrymq.produce")


@attrs.frozen
class Origin:
    """The rows of one request, if it has several rows, or one that a plugin may divert."""

    request: Request
    first: int
    rows: int
    queue_id: int | None = None
    """The queue id of the request, which the reply has even if the message is diverted."""


class SendProcessor:
    """Batch processor of the send codes."""

    readers = READERS

    def __init__(self, broker: Broker, topics: TopicTable, groups: GroupTable, reply_fields: dict[str, str]) -> None:
        self._broker = broker
        self._topics = topics
        self._groups = groups
        self._reply_fields = reply_fields
        self._cluster = _CLUSTER + broker.cluster.encode()
        self._max_bytes = broker.config.store.max_message_bytes
        self._turn_bytes = broker.config.limits.unacknowledged_bytes
        self._id_prefix = id_prefix(broker.store.config.store_host)
        self._warnings = RareWarnings(broker.env.monotonic)
        self._resent: AppendBatch | None = None
        self._form = reply_form(reply_fields, self._id_prefix)

    def handle(self, requests: list[Request]) -> int:
        """Append one batch for all requests, and another for those to retry topics; answer invalid ones at once.

        Returns the number of requests that were handled. The others are handled in a later turn: the batches of this
        one have as many bytes in the log as one turn may append.
        """
        batch = new_batch(self._reply, Source.CLIENT)
        taken = add_sends(
            batch, requests, self._terms, self._cluster, self._max_bytes, Origin, self._take, self._turn_bytes
        )
        resent, self._resent = self._resent, None
        if len(batch):
            self._broker.append(batch)
        if resent is not None:
            self._broker.append(resent)
        return taken

    def _terms(self, topic: str) -> tuple[int, int] | None:
        """Return the number of queues and the sys flag bits of a topic; None if a send to it needs further checks."""
        config = self._topics.get(topic)
        if config is None or self._topics.refuses_sends(topic) or topic.startswith(RETRY_PREFIX):
            return None
        if config.order and not self._topics.broker_perm & PERM_WRITE:
            return None
        return max(config.read_queue_nums, config.write_queue_nums), _topic_bits(config)

    def _take(self, batch: AppendBatch, request: Request) -> int:
        try:
            return self._add(batch, request)
        except RemoteFault as fault:
            request.answer(fault.code, fault.remark, self._reply_fields)
            return 0

    def _add(self, batch: AppendBatch, request: Request) -> int:
        """Returns the bytes of the records of a batch."""
        command = request.command
        header = read_send_header(command.code, command.ext)
        config = check_topic(header, self._topics, self._groups, self._broker.name)
        if len(command.body) > self._max_bytes:
            remark = f"message body size exceeded: {len(command.body)} bytes, at most {self._max_bytes} are accepted"
            raise self._too_large(request, header.topic, remark)
        queue_id = header.queue_id
        if queue_id < 0:
            queue_id = self._broker.env.random_int(max(1, config.write_queue_nums))
        if header.topic.startswith(RETRY_PREFIX):
            if self._resent is None:
                self._resent = new_batch(self._reply, Source.RESEND)
            batch = self._resent
        if header.batch or command.code == RequestCode.SEND_BATCH_MESSAGE:
            return self._add_many(batch, request, header, config, queue_id)
        self._add_one(batch, request, header, config, queue_id)
        return 0

    def _add_one(
        self, batch: AppendBatch, request: Request, header: SendMessageHeader, config: TopicConfig, queue_id: int
    ) -> None:
        given = (header.properties or "").encode()
        traits = traits_of(given)
        # RocketMQ removes WAIT, except from messages that are stored in another queue first.
        properties, wait = self._stored(given, keep_wait=bool(traits))
        self._check_properties(request, header.topic, properties)
        if header.topic.startswith(RETRY_PREFIX):
            traits |= Trait.RETRY
            if header.max_reconsume_times is not None and request.command.version >= LIMITS_SINCE:
                batch.attempts_max[len(batch)] = header.max_reconsume_times
        batch.traits |= traits
        origin = Origin(request, len(batch), 1, queue_id) if traits else request
        self._row(batch, request, header, config, queue_id, header.flag, request.command.body, properties, wait,
                  origin)  # fmt: skip

    def _add_many(
        self, batch: AppendBatch, request: Request, header: SendMessageHeader, config: TopicConfig, queue_id: int
    ) -> int:
        given = (header.properties or "").encode()
        common = given.rstrip(b"\x02") + b"\x02" + self._cluster if given else self._cluster
        if traits_of(given) or header.sys_flag & TransactionState.ROLLBACK:
            raise RemoteFault(ResponseCode.MESSAGE_ILLEGAL, "a batch can be neither delayed nor a transaction")
        messages = []
        size = StoredSize(self._max_bytes, len(header.topic.encode()))
        for flag, body, own in split_batch(request.command.body):
            properties = own.rstrip(b"\x02") + b"\x02" + common if own else common
            self._check_properties(request, header.topic, properties)
            if b"\0" in properties:
                # The log would refuse this message alone, when the others are stored.
                raise RemoteFault(
                    ResponseCode.MESSAGE_ILLEGAL, "there is a zero byte in the properties of a message of the batch"
                )
            size.add(len(body), len(properties))
            if traits_of(own):
                raise RemoteFault(ResponseCode.MESSAGE_ILLEGAL, "a batch can hold no delayed or half message")
            messages.append((flag, body, properties))
        if not messages:
            raise RemoteFault(ResponseCode.MESSAGE_ILLEGAL, "the batch is empty")
        wait = _NO_WAIT not in given
        origin = Origin(request, len(batch), len(messages))
        batch.traits |= Trait.BATCH
        for flag, body, properties in messages:
            self._row(batch, request, header, config, queue_id, flag, body, properties, wait, origin)
        return size.total

    def _check_properties(self, request: Request, topic: str, properties: bytes) -> None:
        if len(properties) > PROPERTIES_MAX_BYTES:
            remark = f"the message is illegal, maybe msg properties length limit 32k ({len(properties)} bytes)"
            raise self._too_large(request, topic, remark)

    def _too_large(self, request: Request, topic: str, remark: str) -> RemoteFault:
        """Return the answer to a message beyond a limit, and log it once an hour for each topic."""
        if self._warnings.is_due(topic):
            log.warning("message_too_large", topic=topic, peer=request.connection.address, reason=remark)
        return RemoteFault(ResponseCode.MESSAGE_ILLEGAL, remark)

    def _row(
        self,
        batch: AppendBatch,
        request: Request,
        header: SendMessageHeader,
        config: TopicConfig,
        queue_id: int,
        flag: int,
        body: bytes,
        properties: bytes,
        wait: bool,
        origin: Request | Origin,
    ) -> None:
        sys_flag = header.sys_flag & ~_BORN_HOST_V6 | _topic_bits(config)
        host = request.connection.host
        if len(host) > 8:
            sys_flag |= _BORN_HOST_V6
        batch.add(
            header.topic,
            queue_id,
            body,
            properties,
            flag=flag,
            sys_flag=sys_flag,
            born_timestamp=header.born_timestamp,
            born_host=host,
            reconsume_times=header.reconsume_times or 0,
            wait=wait,
            origin=origin,
        )

    def _stored(self, given: bytes, *, keep_wait: bool) -> tuple[bytes, bool]:
        """Return the properties as stored (with CLUSTER, mostly without WAIT), and whether the sender waits for
        guarantees."""
        wait = True
        if _WAIT in given:
            pieces = given.split(b"\x02")
            wait = _NO_WAIT not in pieces
            if not keep_wait:
                given = b"\x02".join(piece for piece in pieces if not piece.startswith(_WAIT))
        if given.endswith(b"\x02"):
            given = given.rstrip(b"\x02")
        if _CLUSTER in given:
            given = b"\x02".join(piece for piece in given.split(b"\x02") if not piece.startswith(_CLUSTER))
        return (given + b"\x02" + self._cluster if given else self._cluster), wait

    def _reply(self, batch: AppendBatch) -> None:
        answer_sends(batch, self._form, self._reply_one)

    def _reply_one(self, batch: AppendBatch, first: int) -> int:
        origin = batch.origins[first]
        request, count, queue_id = origin, 1, None
        if isinstance(origin, Origin):
            request, count, queue_id = origin.request, origin.rows, origin.queue_id
        rows, statuses = range(first, first + count), batch.statuses
        worst = next((row for row in rows if statuses[row] not in STORED), None)
        if worst is None:
            worst = next((row for row in rows if statuses[row] != ResponseCode.SUCCESS), first)
        status = statuses[worst]
        fields = self._reply_fields
        if status in STORED:
            prefix = self._id_prefix
            ids = ",".join([id_at(prefix, _offset_of(batch, row)) for row in rows])
            place = batch.settled.get(first)
            if place is not None:
                told, queue_offset, more = _settled_queue(batch, place), place.queue_offset, {}
            else:
                told = batch.queue_ids[first] if queue_id is None else queue_id
                queue_offset, more = batch.queue_offsets[first], batch.response_fields.get(first, {})
            fields = {
                **fields, "msgId": ids, "queueId": str(int(told)), "queueOffset": str(queue_offset), **more,
            }  # fmt: skip
        request.answer(status, batch.remarks.get(worst), fields)
        return first + count


def record_room(broker: Broker) -> int | None:
    """Return how many bytes of a file of the log a record has for its topic, body, properties and the address of its
    producer; None if any message fits."""
    config = broker.config.store
    fixed = HEADS[STORE_HOST_V6 if len(broker.store.config.store_host) > 8 else 0].size + 3 - _HOST_V4_BYTES
    room = config.commit_log_file_bytes - BLANK_BYTES - fixed
    longest = TOPIC_MAX_BYTES + config.max_message_bytes + PROPERTIES_MAX_BYTES + _HOST_V6_BYTES
    return room if room < longest else None


def refuse_large_rows(batch: AppendBatch, room: int) -> None:
    """Refuse the messages with more than :func:`record_room`: the log would refuse them alone, when the others of
    their request are stored."""
    for row in batch.live:
        body, properties = batch.sizes_of(row)
        if len(batch.born_hosts[row]) + len(batch.topics[row].encode()) + body + properties > room:
            batch.refuse(row, ResponseCode.MESSAGE_ILLEGAL, "the message is larger than a file of the log")


def refuse_whole_requests(batch: AppendBatch) -> None:
    """Refuse all messages of each request of which a message is refused.

    The sender gets one response for all of them, and sends all of them again: stored ones would be stored twice.
    """
    for first, origin in enumerate(batch.origins):
        if not isinstance(origin, Origin) or origin.first != first or origin.rows == 1:
            continue
        rows = [row for row in range(first, first + origin.rows) if row not in batch.settled]
        cause = next((row for row in rows if batch.statuses[row] != ResponseCode.SUCCESS), None)
        if cause is not None:
            for row in rows:
                batch.refuse(row, batch.statuses[cause], batch.remarks[cause])


def _offset_of(batch: AppendBatch, row: int) -> int:
    """Return the log offset of the row's message: its own, or the earlier one's that it is settled with."""
    earlier = batch.settled.get(row)
    return batch.offsets[row] if earlier is None else earlier.offset


def _settled_queue(batch: AppendBatch, earlier: Earlier) -> int:
    """Return the queue in the answer to a settled row: an earlier row of the same batch may be in another queue."""
    if earlier.row is not None:
        origin = batch.origins[earlier.row]
        if isinstance(origin, Origin) and origin.queue_id is not None:
            return origin.queue_id
    return earlier.queue_id


def _topic_bits(config: TopicConfig) -> int:
    return _MULTI_TAGS if config.topic_filter_type == "MULTI_TAG" else 0

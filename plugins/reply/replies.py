"""SEND_REPLY_MESSAGE (324), SEND_REPLY_MESSAGE_V2 (325): push a reply to the requester, store it, answer the replier.

Source: RocketMQ 4.9.7 ``ReplyMessageProcessor``, whose codes, remarks and order of checks these are; 5.3.3 differs in
none of them. The response has a code for whether the requester got the reply, and fields with its stored position.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final

import attrs
import structlog

from gantrymq.kernel.batch import STORED, AppendBatch, Source, Trait
from gantrymq.kernel.processors import Request
from gantrymq.plugins.interfaces import ProducerGroups, SendRules
from gantrymq.plugins.reply.config import ReplyConfig
from gantrymq.plugins.reply.push import Pusher
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.headers.send import ReplyMessageHeader, SendMessageHeader, SendMessageResponse, read_send_header
from gantrymq.remoting.message_ids import id_at, id_prefix
from gantrymq.remoting.outages import Outages
from gantrymq.remoting.properties import (
    PROPERTIES_MAX_BYTES,
    PUSH_REPLY_TIME,
    REPLY_TO_CLIENT,
    decode_properties,
    encode_properties,
)
from gantrymq.remoting.property_bytes import WAIT
from gantrymq.remoting.records import COMPRESSED, COMPRESSION_MASK

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker

NOT_STORED: Final = "0"
"""The message id in the answer for a reply that was pushed and is not stored: clients read one in any case."""
_BORN_HOST_V6 = 0x10
_NO_WAIT = WAIT + b"\x01false"

log = structlog.get_logger("gantrymq.reply")


@attrs.define(eq=False)
class _Reply:
    """A reply that is being pushed and stored. Its sender is answered when ``open``, the unfinished steps, is 0."""

    request: Request
    queue_id: int
    open: int
    remark: str | None = None
    place: SendMessageResponse | None = None


class ReplyProcessor:
    """Batch processor of 324 and 325: the replies of a turn are stored as one batch, and pushed meanwhile."""

    def __init__(self, broker: Broker, config: ReplyConfig, pusher: Pusher) -> None:
        self.store = config.store
        """Whether replies are stored; may change at any time."""
        self._broker = broker
        self._config = config
        self._pusher = pusher
        self._rules = broker.registry.get(SendRules)
        self._producers = broker.registry.get(ProducerGroups)
        self._max_bytes = broker.config.store.max_message_bytes
        host = broker.store.config.store_host
        self._id_prefix = id_prefix(host)
        self._store_host = _format_host(host)
        self._outages = Outages(log, broker.env.monotonic)

    def handle(self, requests: list[Request]) -> None:
        """Process all replies of the turn; an invalid one is answered at once and does not affect others."""
        batch = AppendBatch(done=self._stored, source=Source.CLIENT)
        for request in requests:
            try:
                self._take(batch, request)
            except RemoteFault as fault:
                request.answer(fault.code, fault.remark, dict(self._rules.response_fields))
        if len(batch):
            self._broker.append(batch)
        self._broker.yield_to_tasks()  # that push

    def _take(self, batch: AppendBatch, request: Request) -> None:
        command = request.command
        header, body = read_send_header(command.code, command.ext), command.body
        given = header.properties or ""
        raw = given.encode()
        size = len(body) + len(raw)
        if self._pusher.is_full(size):
            raise RemoteFault(
                ResponseCode.SYSTEM_BUSY,
                f"[OVERLOAD]system busy, start flow control for a while: {self._pusher.waiting} replies wait for their "
                "requesters (plugin.reply.max_waiting, .max_waiting_bytes)",
            )
        topic = self._rules.check_topic(header)
        # RocketMQ pushes these and does not store them. A frame of any size would overrun the requester's buffer.
        if len(body) > self._max_bytes:
            raise RemoteFault(
                ResponseCode.MESSAGE_ILLEGAL,
                f"message body size exceeded: {len(body)} bytes, at most {self._max_bytes} are taken "
                "(store.max_message_bytes)",
            )
        if len(raw) > PROPERTIES_MAX_BYTES:
            raise RemoteFault(
                ResponseCode.MESSAGE_ILLEGAL,
                f"message properties size exceeded: {len(raw)} bytes, at most {PROPERTIES_MAX_BYTES} are taken",
            )
        queue_id = header.queue_id
        if queue_id < 0:
            queue_id = self._broker.env.random_int(max(1, topic.write_queue_nums))
        reply = _Reply(request, queue_id, 1 + self.store)
        if self.store:
            self._add(batch, reply, header, body, raw)
        # The way of the request: what has failed at once is answered when the other way has ended.
        self._push(reply, header, decode_properties(given), body, size)
        request.forget()

    def _add(
        self, batch: AppendBatch, reply: _Reply, header: SendMessageHeader, body: bytes, properties: bytes
    ) -> None:
        # A reply with the mark of a half message is an ordinary message, as in RocketMQ.
        batch.traits |= self._rules.traits_of(properties) & Trait.DELAY
        host = reply.request.connection.host
        batch.add(
            header.topic,
            reply.queue_id,
            body,
            properties,
            flag=header.flag,
            # RocketMQ drops the flag of a compressed body, which then no client can read.
            sys_flag=header.sys_flag & (COMPRESSED | COMPRESSION_MASK) | (_BORN_HOST_V6 if len(host) > 8 else 0),
            born_timestamp=header.born_timestamp,
            born_host=host,
            reconsume_times=header.reconsume_times or 0,
            wait=_NO_WAIT not in properties.split(b"\x02"),
            origin=reply,
        )

    def _push(
        self, reply: _Reply, header: SendMessageHeader, properties: dict[str, str], body: bytes, size: int
    ) -> None:
        client_id = properties.get(REPLY_TO_CLIENT)
        if client_id is None:
            self._pushed(reply, f"reply message properties[{REPLY_TO_CLIENT}] is null")
            return
        connection = self._producers.connection_of(client_id)
        if connection is None:
            self._pushed(reply, f"push reply message fail, channel of <{client_id}> not found.")
            return
        now = self._broker.env.wall_ms()
        properties[PUSH_REPLY_TIME] = str(now)
        pushed = ReplyMessageHeader(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=header.queue_id,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            flag=header.flag,
            properties=encode_properties(properties),
            reconsume_times=header.reconsume_times,
            unit_mode=bool(header.unit_mode),
            born_host=reply.request.connection.address,
            store_host=self._store_host,
            store_timestamp=now,
        )
        command = Command(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, pushed.to_ext(), body)
        self._pusher.push(connection, client_id, command, size, lambda remark: self._pushed(reply, remark))

    def _pushed(self, reply: _Reply, remark: str | None) -> None:
        reply.remark = remark
        self._ended(reply)

    def _stored(self, batch: AppendBatch) -> None:
        for row, reply in enumerate(batch.origins):
            status = batch.statuses[row]
            if status in STORED:
                self._outages.over("reply_not_stored")
                earlier = batch.settled.get(row)
                offset, queue_offset = batch.place_of(row)
                if earlier is not None:
                    offset, queue_offset = earlier.offset, earlier.queue_offset
                reply.place = SendMessageResponse(
                    msg_id=id_at(self._id_prefix, offset), queue_id=reply.queue_id, queue_offset=queue_offset
                )
            else:
                self._outages.warning(
                    "reply_not_stored", topic=batch.topics[row], code=status, reason=batch.remarks.get(row)
                )
            self._ended(reply)

    def _ended(self, reply: _Reply) -> None:
        reply.open -= 1
        if reply.open:
            return
        ok, place = reply.remark is None, reply.place
        if ok and place is None:
            place = SendMessageResponse(msg_id=NOT_STORED, queue_id=reply.queue_id, queue_offset=0)
        fields = dict(self._rules.response_fields) | (place.to_ext() if place is not None else {})
        reply.request.answer(ResponseCode.SUCCESS if ok else ResponseCode.SYSTEM_ERROR, reply.remark, fields)


def _format_host(host: bytes) -> str:
    """Address and port as a record stores them, as RocketMQ writes them here: no brackets around IPv6."""
    family = socket.AF_INET if len(host) == 8 else socket.AF_INET6
    return f"{socket.inet_ntop(family, host[:-4])}:{int.from_bytes(host[-4:], 'big')}"

"""Requests and their replies: a message that is answered by a message, through the broker.

The broker pushes a reply to the client that the request names; it is in no topic of a consumer. Source: RocketMQ 4.9.7
``DefaultMQProducerImpl.request``, ``MessageUtil.createReplyMessage``, ``ClientRemotingProcessor.receiveReplyMessage``.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final

import anyio

from gantrymq.client.checks import check_body
from gantrymq.client.connections import call
from gantrymq.client.errors import InvalidMessage, ReplyTimeout
from gantrymq.client.outgoing import Outgoing, compress
from gantrymq.message import DeliveredRecord, MessageQueue
from gantrymq.remoting.address import parse_address
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.headers.header import read_header
from gantrymq.remoting.headers.send import ReplyMessageHeader
from gantrymq.remoting.names import reply_topic
from gantrymq.remoting.properties import (
    CLUSTER,
    CORRELATION_ID,
    MSG_TYPE,
    REPLY_TO_CLIENT,
    TTL,
    UNIQ_KEY,
    decode_properties,
    encode_properties,
)
from gantrymq.remoting.records import BORN_HOST_V6, STORE_HOST_V6

if TYPE_CHECKING:
    from gantrymq.client.cluster import Cluster

REPLIER_GROUP: Final = "CLIENT_INNER_PRODUCER"
"""The producer group of replies: RocketMQ's name for what its clients send by themselves."""


class Replies:
    """The requests of one client that wait for a reply, by their correlation id."""

    def __init__(self) -> None:
        self._waiting: dict[str, PendingReply] = {}

    def expect(self, correlation_id: str) -> PendingReply:
        """The place where the reply will come; :meth:`PendingReply.close` gives it up."""
        pending = self._waiting[correlation_id] = PendingReply(self._waiting, correlation_id)
        return pending

    def take(self, request: Command) -> Command:
        """Take a reply that a broker pushes (326). One without a waiting request is dropped, as in RocketMQ."""
        record = _read_reply(request)
        pending = self._waiting.get(record.properties.get(CORRELATION_ID, ""))
        if pending is not None:
            pending.settle(record)
        return request.answer(ResponseCode.SUCCESS)


class PendingReply:
    """One request's reply."""

    def __init__(self, waiting: dict[str, PendingReply], correlation_id: str) -> None:
        self._waiting = waiting
        self._correlation_id = correlation_id
        self._came = anyio.Event()
        self._record: DeliveredRecord | None = None

    def settle(self, record: DeliveredRecord) -> None:
        """The reply is ``record``; the first one counts."""
        if self._record is None:
            self._record = record
            self._came.set()

    async def wait(self, seconds: float, what: str) -> DeliveredRecord:
        """The reply; :class:`ReplyTimeout` after ``seconds``."""
        with anyio.move_on_after(seconds):
            await self._came.wait()
        if self._record is None:
            raise ReplyTimeout(f"no reply to {what}: the request is stored, and may have been handled")
        return self._record

    def close(self) -> None:
        """Nobody waits any more."""
        self._waiting.pop(self._correlation_id, None)


async def send_reply(cluster: Cluster, request: DeliveredRecord, body: bytes) -> None:
    """Send ``body`` to the client that made ``request``; returns when that client has it.

    Raises :class:`InvalidMessage` where ``request`` asks for no reply, :class:`BrokerError` (code 1) when its client is
    gone or does not answer the broker, :class:`NoRoute`, :class:`ConnectError`.
    """
    check_body(body)
    asked = request.properties
    if CORRELATION_ID not in asked or REPLY_TO_CLIENT not in asked:
        raise InvalidMessage("the message asks for no reply: it was sent, not requested")
    if CLUSTER not in asked:
        raise InvalidMessage("the message does not name its cluster, so that no reply can be sent")
    topic = reply_topic(asked[CLUSTER])
    properties = {name: asked[name] for name in (CORRELATION_ID, REPLY_TO_CLIENT, TTL) if name in asked}
    key = cluster.unique_keys.next()
    text = encode_properties({MSG_TYPE: "reply", **properties, UNIQ_KEY: key})
    outgoing = Outgoing(topic, bytes(body), [key], properties=text)
    await compress(outgoing)
    queue = MessageQueue(topic=topic, broker_name=request.broker_name, queue_id=0)
    command = outgoing.command(REPLIER_GROUP, queue)
    command.code = RequestCode.SEND_REPLY_MESSAGE_V2
    # the broker that has the request is one that the requester is connected to
    channel = await cluster.broker(cluster.routes.master(queue))
    await call(channel, command)


def _read_reply(request: Command) -> DeliveredRecord:
    header = read_header(ReplyMessageHeader, request.ext)
    properties = (header.properties or "").encode()
    born, born_flag = _raw_host(header.born_host, BORN_HOST_V6)
    store, store_flag = _raw_host(header.store_host, STORE_HOST_V6)
    if CORRELATION_ID not in decode_properties(header.properties or ""):
        raise RemoteFault(ResponseCode.SYSTEM_ERROR, f"a reply without {CORRELATION_ID}")
    sys_flag = header.sys_flag & ~(BORN_HOST_V6 | STORE_HOST_V6) | born_flag | store_flag
    return DeliveredRecord(
        header.topic, header.queue_id, header.flag, 0, 0, sys_flag, header.born_timestamp, born,
        header.store_timestamp, store, header.reconsume_times or 0, 0, request.body, properties, len(request.body),
    )  # fmt: skip


def _raw_host(text: str, flag: int) -> tuple[bytes, int]:
    try:
        host, port = parse_address(text.removeprefix("/"))
        if ":" in host:
            return socket.inet_pton(socket.AF_INET6, host) + port.to_bytes(4, "big"), flag
        return socket.inet_aton(host) + port.to_bytes(4, "big"), 0
    except (ValueError, OSError):
        return bytes(8), 0

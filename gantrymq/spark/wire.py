"""A small blocking client of the protocol for a Spark task.

Spark tasks are blocking functions in separate processes, so the client is blocking too: one socket for each address,
one request at a time, closed when the task ends. It joins no group, and commits offsets only for the option
``groupId`` of a stream.
"""

from __future__ import annotations

import itertools
import socket
import ssl
import time
from collections.abc import Sequence
from types import TracebackType

import attrs

from gantrymq.client.namespace import SEPARATOR
from gantrymq.client.puller import PULL_CODES
from gantrymq.remoting.address import format_address, parse_address
from gantrymq.remoting.bodies.clients import SubscriptionData
from gantrymq.remoting.bodies.routes import TopicRouteData
from gantrymq.remoting.bodies.topics import TopicList
from gantrymq.remoting.codes import PERM_READ, RequestCode, ResponseCode
from gantrymq.remoting.command import Command, decode, encode
from gantrymq.remoting.errors import FatalRemoteFault, RemoteFault
from gantrymq.remoting.frame import cut_frames
from gantrymq.remoting.headers.header import read_header
from gantrymq.remoting.headers.nameserver import RouteHeader
from gantrymq.remoting.headers.offsets import (
    OffsetResponse,
    QueueHeader,
    SearchOffsetHeader,
    UpdateConsumerOffsetHeader,
)
from gantrymq.remoting.headers.pull import PullMessageHeader, PullMessageResponse
from gantrymq.spark.errors import Refused, UnknownTopic, Unreachable
from gantrymq.spark.options import Address
from gantrymq.spark.security import NO_SECURITY, Security

GROUP = "CID_GANTRYMQ_SPARK"
"""The group name of pulls without ``groupId``, which the protocol requires; no offset is committed for it."""
MASTER_ID = 0
SUBSCRIPTION_INLINE = 4
PULL_ROWS = 1024
PULL_BYTES = 1_048_576
"""The messages and bytes requested by one pull. A RocketMQ broker ignores the bytes and returns at most 32 messages
(``maxTransferCountOnMessageInMemory``)."""
TIMEOUT_SECONDS = 10.0
"""The longest silence of a server, while connecting and between two parts of a response."""
BUSY_PAUSES_SECONDS = (0.1, 0.2, 0.4, 0.8, 1.6)
"""Pauses before a request is repeated to a broker that answers SYSTEM_BUSY."""
ALL_MESSAGES = SubscriptionData.for_tags("")
_RECEIVE_BYTES = 256 * 1024


@attrs.frozen
class Queue:
    """One queue of a topic, and the address of its broker: of the master, unless ``is_slave``.

    ``slaves`` are addresses to read from while that one does not answer.
    """

    topic: str
    broker: str
    queue_id: int
    address: str
    slaves: tuple[str, ...] = attrs.field(default=(), eq=False)
    is_slave: bool = attrs.field(default=False, eq=False)

    def __str__(self) -> str:
        return f"{self.topic} {self.broker} queue {self.queue_id}"


@attrs.frozen
class Pulled:
    """The response to a pull: the code (0, 19, 20 or 21), the next offset, the queue's bounds, raw records."""

    code: int
    next_offset: int
    min_offset: int
    max_offset: int
    records: bytes


class Wire:
    """Sends requests to any number of servers; use it in a ``with`` block, which closes every socket.

    ``known`` are all queues of some topics: no nameserver is asked for the routes of these topics.
    """

    def __init__(
        self,
        timeout: float = TIMEOUT_SECONDS,
        group: str = GROUP,
        security: Security = NO_SECURITY,
        known: Sequence[Queue] = (),
    ) -> None:
        self._known: dict[str, list[Queue]] = {}
        for queue in known:
            self._known.setdefault(queue.topic, []).append(queue)
        self._timeout = timeout
        self._security = security
        self._group = security.group(group)
        self._tls = security.context()
        self._outgoing = security.outgoing() or _unchanged
        self._prefix = f"{security.namespace}{SEPARATOR}" if security.namespace else ""
        self._connections: dict[Address, _Connection] = {}
        self._ahead: _Ahead | None = None

    def __enter__(self) -> Wire:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every socket; may be called again."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def find_queues(self, nameservers: tuple[Address, ...], topic: str) -> list[Queue]:
        """Every readable queue of ``topic``, by broker name and queue id, from the first nameserver that answers.

        Raises :class:`UnknownTopic`, :class:`Unreachable` with the error of each nameserver, :class:`Refused`.
        """
        if topic in self._known:
            return self._known[topic]
        failures: list[str] = []
        for address in nameservers:
            header = RouteHeader(topic=topic, accept_standard_json_only=True)
            request = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, header.to_ext())
            try:
                answer = self.call(address, request)
            except Unreachable as error:
                failures.append(str(error))
                continue
            if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                raise UnknownTopic(f"topic {topic!r} is not known to the nameserver {format_address(*address)}")
            if answer.code != ResponseCode.SUCCESS:
                raise Refused(format_address(*address), f"the route of {topic!r}", answer.code, answer.remark)
            return _read_queues(topic, format_address(*address), answer.body)
        raise Unreachable("no nameserver answers: " + "; ".join(failures))

    def find_topics(self, nameservers: tuple[Address, ...]) -> list[str]:
        """The names of all topics, in order, from the first nameserver that answers; with a namespace those in it.

        Raises :class:`Unreachable` with the error of each nameserver, :class:`Refused`.
        """
        failures: list[str] = []
        for address in nameservers:
            try:
                answer = self.call(address, Command(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))
            except Unreachable as error:
                failures.append(str(error))
                continue
            nameserver = format_address(*address)
            if answer.code != ResponseCode.SUCCESS:
                raise Refused(nameserver, "the list of topics", answer.code, answer.remark)
            try:
                names = TopicList.from_bytes(answer.body).topic_list
            except RemoteFault as error:
                raise Unreachable(f"{nameserver} answers with topics that cannot be read: {error.remark}") from None
            return sorted(name.removeprefix(self._prefix) for name in names if name.startswith(self._prefix))
        raise Unreachable("no nameserver answers: " + "; ".join(failures))

    def find_bounds(self, queue: Queue) -> tuple[int, int]:
        """The first readable offset and the one after the last; (0, 0) for a queue without any message ever."""
        # The minimum first: it only grows, so the maximum, which is read later, is never below it.
        ext = QueueHeader(topic=queue.topic, queue_id=queue.queue_id).to_ext()
        lowest = self._ask_offset(queue, RequestCode.GET_MIN_OFFSET, ext)
        return max(lowest, 0), self.find_end(queue)

    def find_end(self, queue: Queue) -> int:
        """The offset after the last message; 0 for a queue without any message ever."""
        ext = QueueHeader(topic=queue.topic, queue_id=queue.queue_id).to_ext()
        return max(self._ask_offset(queue, RequestCode.GET_MAX_OFFSET, ext), 0)

    def search_offset(self, queue: Queue, millis: int) -> int:
        """What the broker says about the offset of the first message that was stored at ``millis`` or later.

        Releases of RocketMQ differ where no message has exactly that time: :mod:`gantrymq.spark.times` corrects them.
        """
        header = SearchOffsetHeader(topic=queue.topic, queue_id=queue.queue_id, timestamp=millis)
        return self._ask_offset(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header.to_ext())

    def commit(self, queue: Queue, group: str, offset: int) -> None:
        """Commit ``offset`` for ``group``. Raises :class:`Refused`, :class:`Unreachable`."""
        header = UpdateConsumerOffsetHeader(
            consumer_group=self._security.group(group), topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
        )
        answer = self._call_broker(queue, Command(RequestCode.UPDATE_CONSUMER_OFFSET, header.to_ext()))
        if answer.code != ResponseCode.SUCCESS:
            raise Refused(queue.address, f"offset {offset} of {queue}", answer.code, answer.remark)

    def pull(
        self,
        queue: Queue,
        offset: int,
        rows: int = PULL_ROWS,
        subscription: SubscriptionData = ALL_MESSAGES,
        *,
        until: int = 0,
    ) -> Pulled:
        """Pull up to ``rows`` messages from ``offset`` on; the broker does not hold the pull.

        The broker leaves out messages that ``subscription`` excludes. It compares the hashes of tags, so other tags may
        be among the messages. If the next offset is below ``until``, the pull from there is sent at once, so that the
        broker reads while the caller uses these messages; the caller's next pull takes its answer.
        """
        answer = self._take_ahead(queue, offset, rows, subscription)
        if answer is None or answer.code == ResponseCode.SYSTEM_BUSY:
            answer = self._call_broker(queue, self._pull_request(queue, offset, rows, subscription))
        if answer.code not in PULL_CODES:
            raise Refused(queue.address, f"a pull of {queue} at {offset}", answer.code, answer.remark)
        try:
            bounds = read_header(PullMessageResponse, answer.ext)
        except RemoteFault as error:
            raise Unreachable(f"{queue.address} does not speak the protocol: {error.remark}") from None
        if answer.code != ResponseCode.SUCCESS:
            return Pulled(answer.code, bounds.next_begin_offset, bounds.min_offset, bounds.max_offset, b"")
        if offset < bounds.next_begin_offset < until:
            self._send_ahead(queue, bounds.next_begin_offset, rows, subscription)
        return Pulled(answer.code, bounds.next_begin_offset, bounds.min_offset, bounds.max_offset, answer.body)

    def _pull_request(self, queue: Queue, offset: int, rows: int, subscription: SubscriptionData) -> Command:
        header = PullMessageHeader(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=rows,
            sys_flag=SUBSCRIPTION_INLINE,
            commit_offset=0,
            suspend_timeout_millis=0,
            subscription=subscription.sub_string,
            sub_version=0,
            expression_type=subscription.expression_type,
            gantrymq_max_bytes=PULL_BYTES,
        )
        return Command(RequestCode.PULL_MESSAGE, header.to_ext())

    def _send_ahead(self, queue: Queue, offset: int, rows: int, subscription: SubscriptionData) -> None:
        connection = self._connections.get(parse_address(queue.address))
        if connection is None:
            return
        try:
            opaque = connection.send(self._outgoing(self._pull_request(queue, offset, rows, subscription)))
        except OSError:
            return  # the next call notices it
        self._ahead = _Ahead(queue, queue.address, offset, rows, subscription, connection, opaque)

    def _take_ahead(self, queue: Queue, offset: int, rows: int, subscription: SubscriptionData) -> Command | None:
        """The answer to the pull that was sent ahead, if it was this one and the connection still lives."""
        ahead, self._ahead = self._ahead, None
        wanted = (queue, queue.address, offset, rows, subscription)
        if ahead is None or (ahead.queue, ahead.address, ahead.offset, ahead.rows, ahead.subscription) != wanted:
            return None  # its answer is skipped, because nobody waits for its number
        try:
            return ahead.connection.receive(ahead.opaque)
        except (OSError, FatalRemoteFault):
            self._drop(parse_address(queue.address))
            return None

    def call(self, address: Address, request: Command) -> Command:
        """The response to one request, whatever its code. Raises :class:`Unreachable`.

        If a socket broke since its last use, it reconnects once; that is safe, because all requests only read.
        """
        self._ahead = None  # its answer would be skipped
        request = self._outgoing(request)
        known = self._connections.get(address)
        if known is not None:
            try:
                return known.call(request)
            except (OSError, FatalRemoteFault):
                self._drop(address)
        try:
            fresh = _Connection(address, self._timeout, self._tls)
        except OSError as error:
            raise Unreachable(f"cannot connect to {format_address(*address)}: {_reason(error)}") from None
        try:
            answer = fresh.call(request)
        except (OSError, FatalRemoteFault) as error:
            fresh.close()
            raise Unreachable(f"no answer from {format_address(*address)}: {_reason(error)}") from None
        self._connections[address] = fresh
        return answer

    def _drop(self, address: Address) -> None:
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close()

    def _ask_offset(self, queue: Queue, code: RequestCode, ext: dict[str, str]) -> int:
        answer = self._call_broker(queue, Command(code, ext))
        if answer.code != ResponseCode.SUCCESS:
            raise Refused(queue.address, f"{code.name} of {queue}", answer.code, answer.remark)
        try:
            return read_header(OffsetResponse, answer.ext).offset
        except RemoteFault as error:
            raise Unreachable(f"{queue.address} does not speak the protocol: {error.remark}") from None

    def _call_broker(self, queue: Queue, request: Command) -> Command:
        try:
            address = parse_address(queue.address)
        except ValueError:
            raise Unreachable(f"broker {queue.broker} is registered with {queue.address!r}, no address") from None
        for pause in BUSY_PAUSES_SECONDS:
            answer = self.call(address, request)
            if answer.code != ResponseCode.SYSTEM_BUSY:
                return answer
            time.sleep(pause)
        return self.call(address, request)


class _Connection:
    """One socket and the received bytes of an incomplete frame."""

    def __init__(self, address: Address, timeout: float, tls: ssl.SSLContext | None) -> None:
        plain = socket.create_connection(address, timeout)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket: socket.socket = plain
        if tls is not None:
            try:
                self._socket = tls.wrap_socket(plain, server_hostname=address[0])
            except BaseException:
                plain.close()
                raise
        self._buffer = bytearray()
        self._opaque = itertools.count(1)

    def close(self) -> None:
        self._socket.close()

    def call(self, request: Command) -> Command:
        return self.receive(self.send(request))

    def send(self, request: Command) -> int:
        """Send a request; the number for :meth:`receive`."""
        request.opaque = next(self._opaque) & 0x7FFFFFFF
        self._socket.sendall(encode(request))
        return request.opaque

    def receive(self, opaque: int) -> Command:
        """The answer to that request; answers to requests that were sent before it are skipped."""
        while True:
            frames, taken = cut_frames(self._buffer)
            del self._buffer[:taken]
            for frame in frames:
                answer = decode(frame)
                # A server may send requests (the members of a group have changed); none concerns a reader.
                if answer.is_response and answer.opaque == opaque:
                    return answer
            piece = self._socket.recv(_RECEIVE_BYTES)
            if not piece:
                raise ConnectionResetError("the server closed the connection")
            self._buffer += piece


@attrs.frozen
class _Ahead:
    """A pull whose answer nobody has read yet."""

    queue: Queue
    address: str
    offset: int
    rows: int
    subscription: SubscriptionData
    connection: _Connection
    opaque: int


def _read_queues(topic: str, nameserver: str, body: bytes) -> list[Queue]:
    try:
        route = TopicRouteData.from_bytes(body)
    except RemoteFault as error:
        raise Unreachable(f"{nameserver} answers with a route that cannot be read: {error.remark}") from None
    brokers = {broker.broker_name: broker.broker_addrs for broker in route.broker_datas}
    queues: list[Queue] = []
    for row in sorted(route.queue_datas, key=lambda row: row.broker_name):
        addresses = brokers.get(row.broker_name)
        if not addresses or not row.perm & PERM_READ:
            continue
        # The master (id 0) where there is one, else the slave with the smallest id: both answer pulls.
        address, *slaves = [addresses[broker_id] for broker_id in sorted(addresses)]
        queues += [
            Queue(topic, row.broker_name, queue_id, address, tuple(slaves), MASTER_ID not in addresses)
            for queue_id in range(row.read_queue_nums)
        ]
    if not queues:
        raise UnknownTopic(f"topic {topic!r} has no queue that may be read (nameserver {nameserver})")
    return queues


def _unchanged(request: Command) -> Command:
    return request


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it stays silent"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error)

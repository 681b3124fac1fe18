"""The client's requests from a Spark task.

Spark tasks are blocking functions in separate processes, so their connections block too
(:mod:`gantrymq.remoting.blocking`): one for each address, one request at a time, closed when the task ends. What is
asked, and how routes and answers are read, is the client's (:mod:`gantrymq.client.requests`). A task joins no group,
and offsets are committed only for the option ``groupId`` of a stream.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType

import attrs

from gantrymq.client.errors import BadResponse, BrokerError, NotANameserver
from gantrymq.client.namespace import SEPARATOR
from gantrymq.client.requests import (
    Rotation,
    check_success,
    commit_request,
    max_offset_request,
    min_offset_request,
    next_offset,
    pull_request,
    read_offset,
    read_pull,
    read_route,
    read_topics,
    route_request,
    search_offset_request,
    topics_request,
)
from gantrymq.client.routes import MASTER_ID, addresses_to_read, queues_to_subscribe
from gantrymq.remoting.address import format_address, parse_address
from gantrymq.remoting.blocking import BlockingChannel
from gantrymq.remoting.bodies.clients import SubscriptionData
from gantrymq.remoting.bodies.routes import TopicRouteData
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import FatalRemoteFault
from gantrymq.spark.errors import Refused, UnknownTopic, Unreachable
from gantrymq.spark.options import Address, SourceOptions
from gantrymq.spark.security import NO_SECURITY, Security

GROUP = "CID_GANTRYMQ_SPARK"
"""The group name of pulls without ``groupId``, which the protocol requires; no offset is committed for it."""
PULL_ROWS = 1024
"""The messages requested by one pull; a RocketMQ broker returns at most 32 (``maxTransferCountOnMessageInMemory``)."""
TIMEOUT_SECONDS = 10.0
"""The longest silence of a server, while connecting and between two parts of a response."""
BUSY_PAUSES_SECONDS = (0.1, 0.2, 0.4, 0.8, 1.6)
"""Pauses before a request is repeated to a broker that answers SYSTEM_BUSY."""
ALL_MESSAGES = SubscriptionData.for_tags("")


@attrs.frozen
class Queue:
    """One queue of a topic, and the address of its broker: of the master, unless ``is_slave``.

    ``slaves`` are addresses to read from while that one does not answer. ``cluster`` is the name of the broker's
    cluster, if a route has told it.
    """

    topic: str
    broker: str
    queue_id: int
    address: str
    slaves: tuple[str, ...] = attrs.field(default=(), eq=False)
    is_slave: bool = attrs.field(default=False, eq=False)
    cluster: str = attrs.field(default="", eq=False)

    def __str__(self) -> str:
        return f"{self.topic} {self.broker} queue {self.queue_id}"

    def everywhere(self) -> Iterator[Queue]:
        """The queue as it is, then at each of ``slaves``."""
        yield self
        for slave in self.slaves:
            yield attrs.evolve(self, address=slave, is_slave=True)


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
        self._tls = security.followed_context()
        self._outgoing = security.outgoing() or _unchanged
        self._prefix = f"{security.namespace}{SEPARATOR}" if security.namespace else ""
        self._connections: dict[Address, BlockingChannel] = {}
        self._rotations: dict[tuple[str, ...], Rotation] = {}
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
        """Every readable queue of ``topic``, by broker name and queue id, as a nameserver says.

        Raises :class:`UnknownTopic`, :class:`Unreachable` with the error of each nameserver, :class:`Refused`.
        """
        if topic in self._known:
            return self._known[topic]
        answer, nameserver = self._call_nameserver(nameservers, route_request(topic))
        with _as_spark_errors(f"the route of {topic!r}", answer):
            route = read_route(answer, nameserver)
        if route is None:
            raise UnknownTopic(f"topic {topic!r} is not known to the nameserver {nameserver}")
        return _read_queues(topic, nameserver, route)

    def find_topics(self, nameservers: tuple[Address, ...]) -> list[str]:
        """The names of all topics, in order, as a nameserver says; with a namespace those in it.

        Raises :class:`Unreachable` with the error of each nameserver, :class:`Refused`.
        """
        answer, nameserver = self._call_nameserver(nameservers, topics_request())
        with _as_spark_errors("the list of topics", answer):
            names = read_topics(answer, nameserver)
        return sorted(name.removeprefix(self._prefix) for name in names if name.startswith(self._prefix))

    def _call_nameserver(self, nameservers: tuple[Address, ...], request: Command) -> tuple[Command, str]:
        """The answer of the nameserver that answered last, or of the next one that answers, and its address."""
        addresses = tuple(format_address(*address) for address in nameservers)
        rotation = self._rotations.setdefault(addresses, Rotation(addresses))
        failures: list[str] = []
        for nameserver in rotation.order():
            try:
                answer = self.call(parse_address(nameserver), request)
            except Unreachable as error:
                failures.append(str(error))
                continue
            rotation.use(nameserver)
            return answer, nameserver
        raise Unreachable("no nameserver answers: " + "; ".join(failures))

    def find_bounds(self, queue: Queue) -> tuple[int, int]:
        """The first readable offset and the one after the last; (0, 0) for a queue without any message ever."""
        # The minimum first: it only grows, so the maximum, which is read later, is never below it.
        lowest = self._ask_offset(queue, "the first offset", min_offset_request(queue.topic, queue.queue_id))
        return max(lowest, 0), self.find_end(queue)

    def find_end(self, queue: Queue) -> int:
        """The offset after the last message; 0 for a queue without any message ever."""
        return max(self._ask_offset(queue, "the last offset", max_offset_request(queue.topic, queue.queue_id)), 0)

    def search_offset(self, queue: Queue, millis: int) -> int:
        """What the broker says about the offset of the first message that was stored at ``millis`` or later.

        Releases of RocketMQ differ where no message has exactly that time: :mod:`gantrymq.spark.times` corrects them.
        """
        return self._ask_offset(queue, "a time", search_offset_request(queue.topic, queue.queue_id, millis))

    def commit(self, queue: Queue, group: str, offset: int) -> None:
        """Commit ``offset`` for ``group``. Raises :class:`Refused`, :class:`Unreachable`."""
        request = commit_request(self._security.group(group), queue.topic, queue.queue_id, offset)
        answer = self._call_broker(queue, request)
        with _as_spark_errors(f"offset {offset} of {queue}", answer):
            check_success(answer, queue.address)

    def pull(
        self,
        queue: Queue,
        offset: int,
        rows: int = PULL_ROWS,
        subscription: SubscriptionData = ALL_MESSAGES,
        *,
        until: int = 0,
        patient: bool = True,
    ) -> Pulled:
        """Pull up to ``rows`` messages from ``offset`` on; the broker does not hold the pull.

        The broker leaves out messages that ``subscription`` excludes. It compares the hashes of tags, so other tags may
        be among the messages. If the next offset is below ``until``, the pull from there is sent at once, so that the
        broker reads while the caller uses these messages; the caller's next pull takes its answer. Unless ``patient``,
        a busy broker is not asked again.
        """
        answer = self._take_ahead(queue, offset, rows, subscription)
        if answer is None or answer.code == ResponseCode.SYSTEM_BUSY:
            answer = self._call_broker(queue, self._pull_request(queue, offset, rows, subscription), patient)
        with _as_spark_errors(f"a pull of {queue} at {offset}", answer):
            bounds = read_pull(answer, queue.address)
        if answer.code != ResponseCode.SUCCESS:
            following = next_offset(answer.code, offset, bounds)
            return Pulled(answer.code, following, bounds.min_offset, bounds.max_offset, b"")
        if offset < bounds.next_begin_offset < until:
            self._send_ahead(queue, bounds.next_begin_offset, rows, subscription)
        return Pulled(answer.code, bounds.next_begin_offset, bounds.min_offset, bounds.max_offset, answer.body)

    def _pull_request(self, queue: Queue, offset: int, rows: int, subscription: SubscriptionData) -> Command:
        return pull_request(self._group, queue.topic, queue.queue_id, offset, rows, subscription, suspend_millis=0)

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
            fresh = BlockingChannel(address, self._timeout, self._tls() if self._tls else None)
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

    def _ask_offset(self, queue: Queue, what: str, request: Command) -> int:
        answer = self._call_broker(queue, request)
        with _as_spark_errors(f"{what} of {queue}", answer):
            return read_offset(answer, queue.address)

    def _call_broker(self, queue: Queue, request: Command, patient: bool = True) -> Command:
        try:
            address = parse_address(queue.address)
        except ValueError:
            raise Unreachable(f"broker {queue.broker} is registered with {queue.address!r}, no address") from None
        for pause in BUSY_PAUSES_SECONDS if patient else ():
            answer = self.call(address, request)
            if answer.code != ResponseCode.SYSTEM_BUSY:
                return answer
            time.sleep(pause)
        return self.call(address, request)


def connect(options: SourceOptions, known: Sequence[Queue] = ()) -> Wire:
    """A :class:`Wire` with the group and the security of ``options``."""
    return Wire(group=options.group or GROUP, security=options.security, known=known)


@attrs.frozen
class _Ahead:
    """A pull whose answer nobody has read yet."""

    queue: Queue
    address: str
    offset: int
    rows: int
    subscription: SubscriptionData
    connection: BlockingChannel
    opaque: int


def _read_queues(topic: str, nameserver: str, route: TopicRouteData) -> list[Queue]:
    brokers = {broker.broker_name: addresses_to_read(broker) for broker in route.broker_datas}
    clusters = {broker.broker_name: broker.cluster for broker in route.broker_datas}
    masters = {broker.broker_name for broker in route.broker_datas if MASTER_ID in broker.broker_addrs}
    queues: list[Queue] = []
    for found in queues_to_subscribe(topic, route):
        name = found.broker_name
        if addresses := brokers.get(name):
            slaves = tuple(addresses[1:])
            is_slave = name not in masters
            queues.append(Queue(topic, name, found.queue_id, addresses[0], slaves, is_slave, clusters[name]))
    if not queues:
        raise UnknownTopic(f"topic {topic!r} has no queue that may be read (nameserver {nameserver})")
    return queues


@contextmanager
def _as_spark_errors(what: str, answer: Command) -> Iterator[None]:
    """The client's errors about ``answer``, which was asked for ``what``, come out of the block as ours."""
    try:
        yield
    except (BrokerError, NotANameserver) as error:
        refused = Refused(error.address, what, answer.code, answer.remark)
        raise (Unreachable(str(refused)) if answer.code == ResponseCode.SYSTEM_BUSY else refused) from None
    except BadResponse as error:
        raise Unreachable(f"{what}: {error}") from None


def _unchanged(request: Command) -> Command:
    return request


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it stays silent"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error)

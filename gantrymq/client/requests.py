"""Requests about topics and queues, and what their answers say, without I/O.

The client and the Spark data source send them: the one from an event loop, the other from tasks that block.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from gantrymq.client.errors import BadResponse, NotANameserver, broker_error
from gantrymq.remoting.bodies.body import Body
from gantrymq.remoting.bodies.clients import SubscriptionData
from gantrymq.remoting.bodies.routes import TopicRouteData
from gantrymq.remoting.bodies.topics import TopicList
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import FatalRemoteFault, RemoteFault
from gantrymq.remoting.headers.header import read_header
from gantrymq.remoting.headers.nameserver import RouteHeader
from gantrymq.remoting.headers.offsets import (
    OffsetResponse,
    QueueHeader,
    SearchOffsetHeader,
    UpdateConsumerOffsetHeader,
)
from gantrymq.remoting.headers.pull import PullMessageHeader, PullMessageResponse

PULL_BATCH_BYTES: Final = 1_048_576
"""GantryMQ's brokers give so much in one answer, also from the disk; RocketMQ's apply their own limits."""
PULL_CODES: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)
MAY_SUSPEND: Final = 2
_INLINE_SUBSCRIPTION: Final = 4

B = TypeVar("B", bound=Body)


class Rotation:
    """The order in which nameservers are asked: the one that answered last, then the next ones."""

    def __init__(self, addresses: tuple[str, ...]) -> None:
        self.addresses: tuple[str, ...] = addresses
        self._current = 0

    @property
    def current(self) -> str:
        """The one to ask first."""
        return self.addresses[self._current]

    def order(self) -> list[str]:
        """All of them, the current one first."""
        return [*self.addresses[self._current :], *self.addresses[: self._current]]

    def use(self, address: str) -> None:
        """``address`` answers: ask it first from now on, if it is one of them still."""
        if address in self.addresses:
            self._current = self.addresses.index(address)

    def skip(self, address: str) -> None:
        """``address`` failed: if it is the current one, ask the next one first."""
        if address == self.current:  # otherwise another request has found out before
            self._current = (self._current + 1) % len(self.addresses)

    def update(self, addresses: tuple[str, ...]) -> None:
        """Ask these from now on. The current one stays so where it is among them."""
        used = self.current if self.addresses else ""
        self.addresses = addresses
        self._current = addresses.index(used) if used in addresses else 0


@contextmanager
def reading(address: str) -> Iterator[None]:
    """Faults of an answer's content come out of the block as :class:`BadResponse`."""
    try:
        yield
    except (RemoteFault, FatalRemoteFault) as error:
        raise BadResponse(address, str(error)) from None


def route_request(topic: str) -> Command:
    """To a nameserver: where ``topic`` lies."""
    header = RouteHeader(topic=topic, accept_standard_json_only=True)
    return Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, header.to_ext())


def read_route(answer: Command, address: str) -> TopicRouteData | None:
    """The route of a topic; None when no broker has it. Raises as :func:`read_body`."""
    return None if answer.code == ResponseCode.TOPIC_NOT_EXIST else read_body(TopicRouteData, answer, address)


def topics_request() -> Command:
    """To a nameserver: the names of all topics."""
    return Command(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)


def read_topics(answer: Command, address: str) -> list[str]:
    """The names of all topics, sorted. Raises as :func:`read_body`."""
    return sorted(read_body(TopicList, answer, address).topic_list)


def read_body(kind: type[B], answer: Command, address: str) -> B:
    """What a nameserver answered. Raises :class:`NotANameserver`, :class:`BrokerError`, :class:`BadResponse`."""
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        raise NotANameserver(address)
    check_success(answer, address)
    with reading(address):
        return kind.from_bytes(answer.body)


def min_offset_request(topic: str, queue_id: int) -> Command:
    """The offset of the oldest message; brokers answer -1 for a queue that never had one."""
    return Command(RequestCode.GET_MIN_OFFSET, QueueHeader(topic=topic, queue_id=queue_id).to_ext())


def max_offset_request(topic: str, queue_id: int) -> Command:
    """The offset that the next message will get."""
    return Command(RequestCode.GET_MAX_OFFSET, QueueHeader(topic=topic, queue_id=queue_id).to_ext())


def search_offset_request(topic: str, queue_id: int, timestamp: int) -> Command:
    """The offset of the message stored nearest to ``timestamp`` (ms since 1970)."""
    header = SearchOffsetHeader(topic=topic, queue_id=queue_id, timestamp=timestamp)
    return Command(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header.to_ext())


def commit_request(group: str, topic: str, queue_id: int, offset: int) -> Command:
    """Let ``group`` continue at ``offset``."""
    header = UpdateConsumerOffsetHeader(consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=offset)
    return Command(RequestCode.UPDATE_CONSUMER_OFFSET, header.to_ext())


def read_offset(answer: Command, address: str) -> int:
    """The offset that a broker answered. Raises :class:`BrokerError`, :class:`BadResponse`."""
    check_success(answer, address)
    with reading(address):
        return read_header(OffsetResponse, answer.ext).offset


def pull_request(
    group: str, topic: str, queue_id: int, offset: int, rows: int, subscription: SubscriptionData, suspend_millis: int
) -> Command:
    """Up to ``rows`` messages that ``subscription`` selects; without any, the broker waits ``suspend_millis``."""
    header = PullMessageHeader(
        consumer_group=group, topic=topic, queue_id=queue_id, queue_offset=offset, max_msg_nums=rows,
        sys_flag=_INLINE_SUBSCRIPTION | (MAY_SUSPEND if suspend_millis else 0), commit_offset=0,
        suspend_timeout_millis=suspend_millis, subscription=subscription.sub_string,
        sub_version=subscription.sub_version, expression_type=subscription.expression_type,
        gantrymq_max_bytes=PULL_BATCH_BYTES,
    )  # fmt: skip
    return Command(RequestCode.PULL_MESSAGE, header.to_ext())


def read_pull(answer: Command, address: str) -> PullMessageResponse:
    """The bounds in the answer to a pull. Raises :class:`BrokerError` for other codes, :class:`BadResponse`."""
    check_success(answer, address, PULL_CODES)
    with reading(address):
        return read_header(PullMessageResponse, answer.ext)


def next_offset(code: int, asked: int, bounds: PullMessageResponse) -> int:
    """Where a caller continues that chooses its offsets itself, after a pull from ``asked``.

    RocketMQ 5 answers the first pull after a reset of the group's offsets with PULL_OFFSET_MOVED and the offset of the
    reset, also if the queue has ``asked`` (``PullMessageProcessor``); the next pull gets the messages.
    """
    if code == ResponseCode.PULL_OFFSET_MOVED and asked <= bounds.max_offset:
        return max(asked, min(bounds.min_offset, bounds.next_begin_offset))
    return bounds.next_begin_offset


def check_success(answer: Command, address: str, codes: Collection[int] = (ResponseCode.SUCCESS,)) -> None:
    """Raise :class:`BrokerError` unless the code of ``answer`` is one of ``codes``."""
    if answer.code not in codes:
        raise broker_error(answer, address)

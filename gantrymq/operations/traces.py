"""The traces of a message: who sent it, and which members of which groups got it, as the clients recorded.

Clients with message trace write these to a topic, ``RMQ_SYS_TRACE_TOPIC`` by default, and so do RocketMQ's clients.
Source: RocketMQ 4.9.7 and 5.3.3 ``TraceDataEncoder``, ``TraceView``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

import attrs

from gantrymq.client.errors import BrokerError
from gantrymq.client.message_trace import FIELD_SEPARATOR, NO_VALUE, TRACE_SEPARATOR
from gantrymq.operations.brokers import locate
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.query import ViewMessageHeader
from gantrymq.remoting.names import TRACE_TOPIC
from gantrymq.remoting.records import decode_records

if TYPE_CHECKING:
    from gantrymq.client import Client
    from gantrymq.message import DeliveredRecord

LIMIT: Final = 64
"""The most messages of the trace topic that are read from each broker, the newest ones: brokers answer no more."""

OLD_SENT_FIELDS: Final = 13
"""A sent message's trace of clients before 4.3 has no id of the broker."""
UNFINISHED: Final = "unfinished"
_KINDS: Final = ("normal", "half", "commit", "delayed", "ordered")
"""``MessageType`` by its number."""
_RESULTS: Final = ("success", "timeout", "exception", "null", "failed")
"""``ConsumeReturnType`` by its number; ``null``: the listener returned null."""


@attrs.frozen
class TraceEvent:
    """One event of a message, as a client recorded it. What the client did not record is None.

    ``event``: ``sent``, ``consumed``, ``transaction_ended`` or ``recalled``. ``result``: ``success`` or ``failed``; of
    ``consumed`` also ``timeout``, ``exception``, ``null``, and ``unfinished`` if the client recorded the beginning
    only; of ``transaction_ended`` ``commit``, ``rollback`` or ``unknown``. ``client``: the address of the client.
    ``time_ms``: when the event began. ``retries``: how often the message was delivered to the group before.
    ``kind``: that of a sent message, such as ``normal``, ``half`` or ``delayed``.
    """

    event: str
    message_id: str
    group: str | None
    client: str
    time_ms: int | None
    duration_ms: int | None
    result: str
    retries: int | None = None
    topic: str | None = None
    tags: str | None = None
    keys: str | None = None
    broker: str | None = None
    offset_message_id: str | None = None
    kind: str | None = None
    body_bytes: int | None = None


@attrs.frozen
class MessageTraces:
    """The traces that were found. ``unreadable``: traces in a form that no known client writes; ``complete``: whether
    these are all that the brokers have."""

    events: list[TraceEvent]
    unreadable: int
    complete: bool


async def message_traces(client: Client, message_id: str, trace_topic: str = TRACE_TOPIC) -> MessageTraces:
    """Return the events of the message in the order of their times.

    ``message_id``: the producer's, or the broker's while it has the message. :class:`NoRoute` if the
    cluster has no trace topic.
    """
    messages = await client.admin.find(trace_topic, message_id, limit=LIMIT)
    if not messages and (unique := await _unique_id(client, message_id)):
        message_id = unique
        messages = await client.admin.find(trace_topic, message_id, limit=LIMIT)
    events, unreadable = read_traces(messages, message_id)
    return MessageTraces(events, unreadable, len(messages) < LIMIT)


def read_traces(messages: Iterable[DeliveredRecord], message_id: str) -> tuple[list[TraceEvent], int]:
    """Return the events of one message among ``messages`` of a trace topic, and the number of unreadable traces."""
    events: list[TraceEvent] = []
    consumed: dict[str, TraceEvent] = {}  # by the client's id of the attempt
    unreadable = 0
    for host, fields in _lines(messages):
        try:
            if fields[0] in _ATTEMPT_READERS:
                attempt, event = _ATTEMPT_READERS[fields[0]](host, fields)
                if event.message_id == message_id:
                    before = consumed.get(attempt)
                    consumed[attempt] = event if before is None else _joined(before, event)
            else:
                event = _READERS[fields[0]](host, fields)
                if event.message_id == message_id:
                    events.append(event)
        except (KeyError, IndexError, ValueError):
            unreadable += 1
    events += consumed.values()
    return sorted(events, key=lambda event: (event.time_ms or 0, event.event != "sent")), unreadable


def _lines(messages: Iterable[DeliveredRecord]) -> Iterator[tuple[str, list[str]]]:
    """The fields of each trace, after the address of its client."""
    for message in messages:
        host = message.born_host.rpartition(":")[0]
        for line in message.body.decode("utf-8", "replace").split(TRACE_SEPARATOR):
            if line:
                yield host, line.split(FIELD_SEPARATOR)


def _sent(host: str, fields: list[str]) -> TraceEvent:
    old = len(fields) == OLD_SENT_FIELDS
    return TraceEvent(
        event="sent",
        message_id=fields[5],
        group=_known(fields[3]),
        client=host,
        time_ms=int(fields[1]),
        duration_ms=int(fields[10]),
        result=_success(fields[12] if old else fields[13]),
        topic=_known(fields[4]),
        tags=_known(fields[6]),
        keys=_known(fields[7]),
        broker=_known(fields[8]),
        offset_message_id=None if old else _known(fields[12]),
        kind=_KINDS[int(fields[11])] if int(fields[11]) < len(_KINDS) else "other",
        body_bytes=int(fields[9]),
    )


def _transaction_ended(host: str, fields: list[str]) -> TraceEvent:
    return TraceEvent(
        event="transaction_ended",
        message_id=fields[5],
        group=_known(fields[3]),
        client=host,
        time_ms=int(fields[1]),
        duration_ms=None,
        result=_OUTCOMES[fields[11]],
        topic=_known(fields[4]),
        tags=_known(fields[6]),
        keys=_known(fields[7]),
        broker=_known(fields[8]),
    )


def _recalled(host: str, fields: list[str]) -> TraceEvent:
    return TraceEvent(
        event="recalled",
        message_id=fields[5],
        group=_known(fields[3]),
        client=host,
        time_ms=int(fields[1]),
        duration_ms=None,
        result=_success(fields[6]),
        topic=_known(fields[4]),
    )


def _consumption_began(host: str, fields: list[str]) -> tuple[str, TraceEvent]:
    return fields[4], TraceEvent(
        event="consumed",
        message_id=fields[5],
        group=_known(fields[3]),
        client=host,
        time_ms=int(fields[1]),
        duration_ms=None,
        result=UNFINISHED,
        retries=int(fields[6]),
        keys=_known(fields[7]) if len(fields) > 7 else None,
    )


def _consumption_ended(host: str, fields: list[str]) -> tuple[str, TraceEvent]:
    code = int(fields[6]) if len(fields) > 6 and fields[6] else None
    duration = int(fields[3])
    group = _known(fields[8]) if len(fields) > 8 else None  # neither this nor the time: a client of Alibaba's cloud
    return fields[1], TraceEvent(
        event="consumed",
        message_id=fields[2],
        group=group,
        client=host,
        time_ms=int(fields[7]) - duration if group else None,
        duration_ms=duration,
        result=_RESULTS[code] if code is not None and code < len(_RESULTS) else _success(fields[4]),
        keys=_known(fields[5]),
    )


def _joined(one: TraceEvent, other: TraceEvent) -> TraceEvent:
    """One event of the beginning and the end of an attempt, which may come in any order."""
    began, ended = (one, other) if one.result == UNFINISHED else (other, one)
    return attrs.evolve(began, duration_ms=ended.duration_ms, result=ended.result, group=began.group or ended.group)


def _known(text: str) -> str | None:
    """What a trace says, or None for what Java's and our clients write where they have nothing."""
    return None if text in ("", NO_VALUE) else text


def _success(text: str) -> str:
    return "success" if text.lower() == "true" else "failed"


_READERS: Final[dict[str, Callable[[str, list[str]], TraceEvent]]] = {
    "Pub": _sent,
    "EndTransaction": _transaction_ended,
    "Recall": _recalled,
}
_ATTEMPT_READERS: Final[dict[str, Callable[[str, list[str]], tuple[str, TraceEvent]]]] = {
    "SubBefore": _consumption_began,
    "SubAfter": _consumption_ended,
}
_OUTCOMES: Final = {"COMMIT_MESSAGE": "commit", "ROLLBACK_MESSAGE": "rollback", "UNKNOW": "unknown"}


async def _unique_id(client: Client, message_id: str) -> str | None:
    """The producer's id of the message with this id of the broker; None if no broker of the cluster has it."""
    place = await locate(client, message_id)
    if place is None:
        return None
    address, offset = place
    try:
        answer = await client.admin.request(
            address, Command(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageHeader(offset=offset).to_ext())
        )
    except BrokerError:
        return None
    return next((record.message_id for record in decode_records(answer.body)), None)

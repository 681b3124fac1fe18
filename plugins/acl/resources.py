"""Which permissions a request needs: its topics and groups, as the processor of its code reads them.

Groups are named by their retry topics. Requests that name a message by its log offset need permissions on the topic of
that message: a request can name any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from gantrymq.kernel.errors import CorruptRange, OutOfLog
from gantrymq.kernel.layouts import PLACES
from gantrymq.kernel.processors import Request
from gantrymq.kernel.store.reading import find_named
from gantrymq.plugins.acl.accounts import ANY, PUB, SENDS, SUB
from gantrymq.remoting.bodies.clients import CheckClientConfig, HeartbeatData
from gantrymq.remoting.bodies.queues import LockBatchRequestBody
from gantrymq.remoting.headers.header import read_header
from gantrymq.remoting.headers.query import ViewMessageHeader
from gantrymq.remoting.headers.recall import RecallMessageHeader
from gantrymq.remoting.headers.send import SEND_LETTERS, SendBackHeader
from gantrymq.remoting.headers.table import REQUESTS
from gantrymq.remoting.headers.transactions import EndTransactionHeader
from gantrymq.remoting.names import (
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRANS_HALF_TOPIC,
    is_retry_topic,
    reply_topic,
    retry_topic,
)
from gantrymq.remoting.properties import find_property
from gantrymq.remoting.property_bytes import REAL_TOPIC
from gantrymq.remoting.recall_handles import decode_handle
from gantrymq.remoting.records import HEADS, MAGIC_V1, MAGIC_V2
from gantrymq.remoting.rights import Right

if TYPE_CHECKING:
    from gantrymq.kernel.store.store import Store

OBJECTS_MAX: Final = 16_384
"""The most JSON objects of a body that is read for its names: other clients wait while it is decoded."""
BODY_MAX_BYTES: Final = 1024 * 1024
"""The longest body that is read for its names: as the number of its objects."""

Needs = list[tuple[str, int]]
"""Resources, and the permission that each needs."""
CLIENT_INNER_PRODUCER: Final = "CLIENT_INNER_PRODUCER"
"""The producer group that each RocketMQ client has, also one that only consumes (``MixAll``)."""
TRACE_PRODUCER: Final = "_INNER_TRACE_PRODUCER"
"""How the producer groups begin that send message traces, also those of consumers (``TraceConstants``)."""
TRACE_CLIENT: Final = "PID_CLIENT_INNER_TRACE_PRODUCER"
"""What the ids of their clients contain."""
_GROUP_FIELDS: Final = ("consumerGroup", "group")
_GROUP_FIELD: Final[Mapping[int, str]] = MappingProxyType({
    int(code): next(
        (
            name
            for name in _GROUP_FIELDS
            if spec.header is not None and name in spec.header.__struct_encode_fields__
        ),
        _GROUP_FIELDS[0],
    )
    for code, spec in REQUESTS.items()
})  # fmt: skip
"""By request code, the field that names the group."""

_TOPIC_NAMES: Final = (b"topic", SEND_LETTERS["topic"].encode())
_GROUP_NAMES: Final = tuple(name.encode() for name in _GROUP_FIELDS)
_DECIDING_FIELDS: Final[Mapping[Right, tuple[bytes, ...]]] = MappingProxyType({
    Right.SEND: _TOPIC_NAMES,
    Right.REPLY: _TOPIC_NAMES,
    Right.READ: _TOPIC_NAMES,
    Right.TOPIC: _TOPIC_NAMES,
    Right.CONSUME: _TOPIC_NAMES + _GROUP_NAMES,
    Right.OFFSET: _TOPIC_NAMES + _GROUP_NAMES,
    Right.GROUP: _GROUP_NAMES,
})  # fmt: skip


class Unnamed(Exception):
    """The request does not name what it is about; the text says what is missing."""


def needs_of(right: Right, request: Request, store: Store, cluster: str) -> Needs:
    """What ``request`` needs at a broker of ``cluster``. :class:`Unnamed`, or ``RemoteFault`` for a header or body that
    cannot be read."""
    needs = _READERS[right](request, store)
    return needs_of_reply(needs, cluster) if right is Right.REPLY else needs


def needs_of_reply(needs: Needs, cluster: str) -> Needs:
    """What a reply needs; ``needs``: those of a message to the topic that it names, which can be any other."""
    return list(dict.fromkeys([(reply_topic(cluster), PUB), *needs]))


def topic_and_group_fields(rights: Mapping[int, Right]) -> dict[int, tuple[bytes, ...]]:
    """By request code, the fields that decide which permissions a request needs, if nothing else does."""
    return {code: _DECIDING_FIELDS[right] for code, right in rights.items() if right in _DECIDING_FIELDS}


def record_topic(store: Store, offset: int) -> str | None:
    """The topic for which the record at the log offset ``offset`` was sent: of a half message, and of a delayed message
    that waits, its real one.

    Reads the record's head, topic and properties, not the body. The record need not be in a queue: whoever uses the
    offset checks that.
    """
    log = store.log
    try:
        size, magic, _, _, place, bits = PLACES.unpack(log.view(offset, PLACES.size))
        if place != offset or magic not in (MAGIC_V1, MAGIC_V2):
            return None
        body_at = offset + HEADS[bits & _HOST_BITS].size
        length_bytes = 1 if magic == MAGIC_V1 else 2
        topic_at = body_at + int.from_bytes(log.view(body_at - 4, 4), "big", signed=True) + length_bytes
        if not body_at < topic_at <= offset + size:
            return None
        length = int.from_bytes(log.view(topic_at - length_bytes, length_bytes), "big")
        topic = bytes(log.view(topic_at, length)).decode()
        properties_at = topic_at + length + 2
        properties = bytes(log.view(properties_at, int.from_bytes(log.view(properties_at - 2, 2), "big")))
    except (OutOfLog, CorruptRange, UnicodeDecodeError, OSError):
        return None
    real = find_property(properties, REAL_TOPIC) if topic in _WAITING_TOPICS else None
    return topic if real is None else real.decode("utf-8", "replace")


_HOST_BITS: Final = max(HEADS)
_WAITING_TOPICS: Final = frozenset({TRANS_HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC})
"""Topics of the broker in which messages wait; the property REAL_TOPIC has the topic that they are for."""


def _topic(request: Request) -> str:
    topic = request.topic
    if not topic:
        raise Unnamed("the request names no topic")
    return topic


def _group(request: Request) -> str:
    """The resource of the group, from the field that the typed header of the code has.

    Codes of other plugins have no typed header: there either field may name the group, or both the same one.
    """
    field = _GROUP_FIELD.get(request.code)
    fields = _GROUP_FIELDS if field is None else (field,)
    groups = {group for name in fields if (group := request.ext.get(name))}
    if not groups:
        raise Unnamed("the request names no group")
    if len(groups) > 1:
        raise Unnamed(f"the request names two groups, in {' and '.join(fields)}")
    return retry_topic(groups.pop())


def _send(request: Request, _store: Store) -> Needs:
    topic = _topic(request)
    return [(topic, SUB if is_retry_topic(topic) else PUB)]


def _recall(request: Request, _store: Store) -> Needs:
    try:
        handle = decode_handle(read_header(RecallMessageHeader, request.command.ext).recall_handle)
    except ValueError:
        raise Unnamed("recall handle is invalid") from None
    return [(handle.topic, PUB), (_topic(request), PUB)]


def _consume(request: Request, _store: Store) -> Needs:
    return [(_topic(request), SUB), (_group(request), SUB)]


def _send_back(request: Request, store: Store) -> Needs:
    offset = read_header(SendBackHeader, request.command.ext).offset
    return [(_group(request), SUB), *_topics_at(store, offset)]


def _view(request: Request, store: Store) -> Needs:
    return _topics_at(store, read_header(ViewMessageHeader, request.command.ext).offset)


def _topics_at(store: Store, offset: int) -> Needs:
    """The topic of the message at a log offset, and the one for which it was sent."""
    named = find_named(store, offset)
    sent_for = None if named is None else record_topic(store, offset)
    if named is None or sent_for is None:
        raise Unnamed("there is no message at this offset")
    return [(topic, SUB) for topic in dict.fromkeys((named.topic, sent_for))]


def _end(request: Request, store: Store) -> Needs:
    topic = record_topic(store, read_header(EndTransactionHeader, request.command.ext).commit_log_offset)
    if topic is None:
        raise Unnamed("there is no half message at this offset")
    return [(topic, PUB)]


def _body(request: Request) -> bytes:
    data = request.body
    if len(data) > BODY_MAX_BYTES or data.count(b"{") > OBJECTS_MAX:
        raise Unnamed(f"a body of {len(data)} bytes: at most {BODY_MAX_BYTES}, with {OBJECTS_MAX} objects, are read")
    return data


def _heartbeat(request: Request, _store: Store) -> Needs:
    data = HeartbeatData.from_request(_body(request))
    needs: dict[str, int] = {}
    for consumer in data.consumer_data_set:
        needs[retry_topic(consumer.group_name)] = SUB
        needs.update(dict.fromkeys((each.topic for each in consumer.subscription_data_set), SUB))
    producers = {each.group_name for each in data.producer_data_set} - {CLIENT_INNER_PRODUCER}
    # The client id counts too, because replies are pushed to the producer that registered the requester's id last.
    of_traces = TRACE_CLIENT in data.client_id and all(each.startswith(TRACE_PRODUCER) for each in producers)
    if (producers and not of_traces) or not (producers or needs):
        return [*needs.items(), ("", SENDS)]
    return list(needs.items())


def _unregister(request: Request, _store: Store) -> Needs:
    group = request.ext.get("consumerGroup")
    needs = [(retry_topic(group), SUB)] if group else []
    producer = request.ext.get("producerGroup") or ""
    if producer == CLIENT_INNER_PRODUCER or producer.startswith(TRACE_PRODUCER):
        return needs
    return needs if needs and not producer else [*needs, ("", SENDS)]


def _lock(request: Request, _store: Store) -> Needs:
    body = LockBatchRequestBody.from_request(_body(request))
    return [(retry_topic(body.consumer_group), SUB), *((topic, SUB) for topic in {each.topic for each in body.mq_set})]


def _check(request: Request, _store: Store) -> Needs:
    body = CheckClientConfig.from_request(_body(request))
    subscribed = [] if body.subscription_data is None else [(body.subscription_data.topic, SUB)]
    return [(retry_topic(body.group), SUB), *subscribed]


_READERS: Final[Mapping[Right, Callable[[Request, Store], Needs]]] = MappingProxyType({
    Right.SEND: _send,
    Right.REPLY: _send,
    Right.READ: lambda request, _: [(_topic(request), SUB)],
    Right.TOPIC: lambda request, _: [(_topic(request), ANY)],
    Right.CONSUME: _consume,
    Right.OFFSET: _consume,
    Right.GROUP: lambda request, _: [(_group(request), SUB)],
    Right.SEND_BACK: _send_back,
    Right.VIEW: _view,
    Right.END: _end,
    Right.RECALL: _recall,
    Right.HEARTBEAT: _heartbeat,
    Right.UNREGISTER: _unregister,
    Right.LOCK: _lock,
    Right.CHECK: _check,
})  # fmt: skip

"""What the event of a request to the broker has. Nothing in it is secret."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from gantrymq.remoting.audit_events import BODY_MAX_BYTES, Event, request_name, setting_names, shown
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.signing import ACCESS_KEY

if TYPE_CHECKING:
    from gantrymq.kernel.network.connection import Connection
    from gantrymq.kernel.processors import Request

OBJECT_FIELDS: Final = (
    "topic", "consumerGroup", "group", "groupName", "producerGroup", "srcGroup", "destGroup", "accessKey", "admin",
    "topicPerms", "groupPerms", "defaultTopicPerm", "defaultGroupPerm", "whiteRemoteAddress", "globalWhiteAddrs",
    "readQueueNums", "writeQueueNums", "perm", "timestamp", "offset", "queueId", "isForce", "clientId", "msgId",
    "username", "userType", "userStatus", "subject",
)  # fmt: skip
"""The fields of headers that an event shows; secret keys and passwords are not among them."""
IDENTIFIED: Final = "CONNECTION_IDENTIFIED"
CLOSED: Final = "CONNECTION_CLOSED"
_NAMED_BY_BODY: Final = {
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: "groupName",
}


def event_of(kind: str, request: Request, broker: str, time_ms: int, result: int, remark: str | None) -> Event:
    """The event of ``request``."""
    connection, ext = request.connection, request.ext
    identity = connection.identity
    code = int(request.code)
    return Event(
        time_ms=time_ms,
        kind=kind,
        broker=broker,
        identity=None if identity is None else shown(str(identity)),
        access_key=shown(ext.get(ACCESS_KEY)),
        address=connection.address,
        code=code,
        request=request_name(code),
        about=_object_of(request, ext, code) if kind != "refusal" else _fields_of(request, ext),
        result=int(result),
        remark=shown(remark),
    )


def connection_event(what: str, connection: Connection, broker: str, time_ms: int) -> Event:
    """The event of a connection whose peer is known; ``what``: :data:`IDENTIFIED` or :data:`CLOSED`."""
    return Event(
        time_ms=time_ms, kind="connection", broker=broker, identity=shown(str(connection.identity)), access_key=None,
        address=connection.address, code=0, request=what, about={}, result=0, remark=None,
    )  # fmt: skip


def _fields_of(request: Request, ext: Any) -> dict[str, Any]:
    found: dict[str, Any] = {name: shown(ext[name]) for name in OBJECT_FIELDS if name in ext}
    topic = request.topic
    if topic is not None:
        found["topic"] = shown(topic)
    return found


def _object_of(request: Request, ext: Any, code: int) -> dict[str, Any]:
    """What the request is about, from its header, or from a short body."""
    found = _fields_of(request, ext)
    body = request.body
    if not body or len(body) > BODY_MAX_BYTES:
        return found
    try:
        if code == RequestCode.UPDATE_BROKER_CONFIG:
            found["settings"] = setting_names(body)
        elif code in _NAMED_BY_BODY:
            name = _NAMED_BY_BODY[RequestCode(code)]
            found[name] = shown(str(msgspec.json.decode(body, type=dict).get(name)))
    except ValueError:  # the processor says what is wrong with it
        pass
    return found

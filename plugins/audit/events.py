"""An event of the audit: what it has, and how it is made of a request. Nothing in it is secret."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import attrs
import msgspec

from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.javaproperties import read_properties
from gantrymq.remoting.signing import ACCESS_KEY

if TYPE_CHECKING:
    from gantrymq.kernel.processors import Request

SHOWN_CHARACTERS: Final = 255
"""How much of a value from a request an event has."""
SHOWN_SETTINGS: Final = 32
"""How many names of changed settings an event has."""
BODY_MAX_BYTES: Final = 64 * 1024
"""The longest body that is read for the name of its object."""
OBJECT_FIELDS: Final = (
    "topic", "consumerGroup", "group", "groupName", "producerGroup", "srcGroup", "destGroup", "accessKey", "admin",
    "topicPerms", "groupPerms", "defaultTopicPerm", "defaultGroupPerm", "whiteRemoteAddress", "globalWhiteAddrs",
    "readQueueNums", "writeQueueNums", "perm", "timestamp", "offset", "queueId", "isForce", "clientId", "msgId",
    "username", "userType", "userStatus", "subject",
)  # fmt: skip
"""The fields of headers that an event shows; secret keys and passwords are not among them."""
_NAMED_BY_BODY: Final = {
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: "groupName",
}


@attrs.frozen
class Event:
    """One event. ``count``: how many equal ones it stands for; ``result``: the response's code, 0 for success."""

    time_ms: int
    kind: str
    broker: str
    identity: str | None
    access_key: str | None
    address: str
    code: int
    request: str
    about: dict[str, Any]
    result: int
    remark: str | None
    count: int = 1

    @property
    def same(self) -> tuple[object, ...]:
        """Events with equal values are counted together; the port of the peer and the object may differ."""
        host = self.address.rpartition(":")[0]
        return self.kind, self.identity, self.access_key, host, self.code, self.result

    def ended(self, time_ms: int, result: int, remark: str | None) -> Event:
        """The event with the result."""
        return attrs.evolve(self, time_ms=time_ms, result=int(result), remark=_shown(remark))

    def to_line(self) -> bytes:
        """One line of JSON."""
        time = datetime.fromtimestamp(self.time_ms / 1000, UTC).isoformat(timespec="milliseconds")
        values = attrs.asdict(self)
        del values["time_ms"]
        about = values.pop("about")
        return msgspec.json.encode({"time": time.replace("+00:00", "Z"), **values, "object": about}) + b"\n"


def event_of(kind: str, request: Request, broker: str, time_ms: int, result: int, remark: str | None) -> Event:
    """The event of ``request``."""
    connection, ext = request.connection, request.ext
    identity = connection.identity
    code = int(request.code)
    return Event(
        time_ms=time_ms,
        kind=kind,
        broker=broker,
        identity=None if identity is None else _shown(str(identity)),
        access_key=_shown(ext.get(ACCESS_KEY)),
        address=connection.address,
        code=code,
        request=RequestCode(code).name if code in _CODES else "",
        about=_object_of(request, ext, code) if kind != "refusal" else _fields_of(request, ext),
        result=int(result),
        remark=_shown(remark),
    )


_CODES: Final = frozenset(int(code) for code in RequestCode)


def _fields_of(request: Request, ext: Any) -> dict[str, Any]:
    found: dict[str, Any] = {name: _shown(ext[name]) for name in OBJECT_FIELDS if name in ext}
    topic = request.topic
    if topic is not None:
        found["topic"] = _shown(topic)
    return found


def _object_of(request: Request, ext: Any, code: int) -> dict[str, Any]:
    """What the request is about, from its header, or from a short body."""
    found = _fields_of(request, ext)
    body = request.body
    if not body or len(body) > BODY_MAX_BYTES:
        return found
    try:
        if code == RequestCode.UPDATE_BROKER_CONFIG:
            names = sorted(read_properties(body))
            found["settings"] = [_shown(name) for name in names[:SHOWN_SETTINGS]]
        elif code in _NAMED_BY_BODY:
            name = _NAMED_BY_BODY[RequestCode(code)]
            found[name] = _shown(str(msgspec.json.decode(body, type=dict).get(name)))
    except ValueError:  # the processor says what is wrong with it
        pass
    return found


def _shown(text: str | None) -> str | None:
    """``text`` shortened, without surrogates, which JSON cannot have."""
    return None if text is None else text[:SHOWN_CHARACTERS].encode("utf-8", "replace").decode()

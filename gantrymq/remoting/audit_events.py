"""An event of the audit of a broker or a nameserver. Nothing in it is secret."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import attrs
import msgspec

from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.javaproperties import read_properties

SHOWN_CHARACTERS: Final = 255
"""How much of a value from a request an event has."""
SHOWN_SETTINGS: Final = 32
"""How many names of changed settings an event has."""
BODY_MAX_BYTES: Final = 64 * 1024
"""The longest body that is read for the name of its object."""
TLS_HANDSHAKE: Final = "TLS_HANDSHAKE"
SLAVE_CONNECTION: Final = "SLAVE_CONNECTION"
_CODES: Final = frozenset(int(code) for code in RequestCode)


@attrs.frozen
class Event:
    """One event. ``count``: how many equal ones it stands for; ``result``: the response's code, 0 for success.

    ``code`` is 0 for a refused connection; ``request`` is then :data:`TLS_HANDSHAKE` or :data:`SLAVE_CONNECTION`.
    """

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
        return self.kind, self.identity, self.access_key, host, self.code, self.request, self.result

    def ended(self, time_ms: int, result: int, remark: str | None) -> Event:
        """The event with the result."""
        return attrs.evolve(self, time_ms=time_ms, result=int(result), remark=shown(remark))

    def to_line(self) -> bytes:
        """One line of JSON."""
        time = datetime.fromtimestamp(self.time_ms / 1000, UTC).isoformat(timespec="milliseconds")
        values = attrs.asdict(self)
        del values["time_ms"]
        about = values.pop("about")
        return msgspec.json.encode({"time": time.replace("+00:00", "Z"), **values, "object": about}) + b"\n"


def refused_connection(
    request: str, server: str, address: str, port: str, reason: str, time_ms: int, result: int
) -> Event:
    """The event of a connection that was refused before its first request. ``port``: what the log calls it."""
    return Event(
        time_ms=time_ms, kind="refusal", broker=server, identity=None, access_key=None, address=address, code=0,
        request=request, about={"port": port}, result=int(result), remark=shown(reason),
    )  # fmt: skip


def request_name(code: int) -> str:
    """The name of a request code; empty for codes that RocketMQ does not have."""
    return RequestCode(code).name if code in _CODES else ""


def setting_names(body: bytes) -> list[str | None]:
    """The names of the settings in a body of properties; ValueError if it has none."""
    return [shown(name) for name in sorted(read_properties(body))[:SHOWN_SETTINGS]]


def shown(text: str | None) -> str | None:
    """``text`` shortened, without surrogates, which JSON cannot have."""
    return None if text is None else text[:SHOWN_CHARACTERS].encode("utf-8", "replace").decode()

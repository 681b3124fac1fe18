"""The audit of a nameserver: administrative changes, refused changes and refused TLS handshakes, a line of JSON each.

The file is opened for each write, so a rotation needs no signal: the next event creates it anew.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import structlog
import trio

from gantrymq.remoting.audit_events import (
    BODY_MAX_BYTES,
    TLS_HANDSHAKE,
    Event,
    refused_connection,
    request_name,
    setting_names,
    shown,
)
from gantrymq.remoting.audit_recorder import Recorder
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.signing import ACCESS_KEY

log = structlog.get_logger("gantrymq.nameserver")

MERGE_SECONDS: Final = 10.0
"""Equal refusals within this time are two events: the first one, and one with the number of the others."""
_FIELDS: Final = ("topic", "namespace", "key", "brokerName", "brokerAddr", "clusterName")
"""The fields of headers that an event shows; values of the KV config are not among them."""
_ROUTINE: Final = frozenset(
    {
        RequestCode.REGISTER_BROKER,
        RequestCode.UNREGISTER_BROKER,
        RequestCode.REGISTER_TOPIC_IN_NAMESRV,
        RequestCode.QUERY_DATA_VERSION,
        RequestCode.BROKER_HEARTBEAT,
    }
)
"""What brokers send all the time; only a refusal of these is an event."""


class Audit:
    """Appends events to the file ``path`` while :meth:`run` runs."""

    def __init__(self, path: Path) -> None:
        """Opens the file once, for this user alone if it does not exist; OSError."""
        self._path = path
        self._recorder = Recorder(time.monotonic, MERGE_SECONDS)
        self._is_failing = False
        self._has_ended = False
        self._write(b"")

    def answered(
        self, request: Command, address: str, subject: str | None, identity: str | None, answer: Command, refused: bool
    ) -> None:
        """Record the response to a change of the tables. ``identity``: the sender's, if it is known; ``refused``:
        whether the sender lacks the right to send it."""
        if not refused and request.code in _ROUTINE:
            return
        event = Event(
            time_ms=_now_ms(), kind="refusal" if refused else "action", broker="nameserver",
            identity=shown(identity or subject), access_key=shown((request.ext or {}).get(ACCESS_KEY)), address=address,
            code=int(request.code), request=request_name(request.code), about=_object_of(request),
            result=int(answer.code), remark=shown(answer.remark),
        )  # fmt: skip
        self._record(event, is_repeated=refused)

    def handshake_refused(self, address: str, reason: str) -> None:
        """Record a TLS handshake that failed."""
        now, result = _now_ms(), ResponseCode.NO_PERMISSION
        event = refused_connection(TLS_HANDSHAKE, "nameserver", address, "nameserver", reason, now, result)
        self._record(event, is_repeated=True)

    def _record(self, event: Event, *, is_repeated: bool) -> None:
        (self._recorder.repeated if is_repeated else self._recorder.add)(event)
        if self._has_ended:  # the nameserver stops, and this task is cancelled after the writer
            self._store(self._recorder.take(all_counts=True))

    async def run(self) -> None:
        """Write events until cancelled, and then the rest of them."""
        try:
            while True:
                await self._recorder.wait()
                with trio.CancelScope(shield=True):  # taken events would be lost
                    await trio.to_thread.run_sync(self._store, self._recorder.take())
        finally:
            self._store(self._recorder.take(all_counts=True))
            self._has_ended = True

    def _store(self, events: list[Event]) -> None:
        try:
            self._write(b"".join(event.to_line() for event in events))
        except OSError as error:
            self._recorder.lost += len(events)
            if not self._is_failing:
                log.error("audit_events_lost", events=len(events), reason=error.strerror or str(error))
            self._is_failing = True
        else:
            self._is_failing = False

    def _write(self, data: bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        with open(os.open(self._path, flags, 0o600), "ab", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            try:
                while data:
                    data = data[file.write(data) :]
            except OSError:
                with suppress(OSError):  # a part of a line would spoil the next one as well
                    file.truncate(size)
                raise


def _object_of(request: Command) -> dict[str, Any]:
    ext = request.ext or {}
    found: dict[str, Any] = {name: shown(ext[name]) for name in _FIELDS if name in ext}
    if request.code == RequestCode.UPDATE_NAMESRV_CONFIG and len(request.body) <= BODY_MAX_BYTES:
        with suppress(ValueError):  # the response says what is wrong with it
            found["settings"] = setting_names(request.body)
    return found


def _now_ms() -> int:
    return time.time_ns() // 1_000_000

"""The master's response to COMPARE_LOG (47001): whether both logs have the same record at an offset.

VIEW_MESSAGE_BY_ID does not return all records that the master has: unacknowledged records, half messages, records of
deleted topics, and unreadable ones are missing.
"""

from __future__ import annotations

import hashlib
from enum import Enum
from typing import TYPE_CHECKING

import trio

from gantrymq.kernel.errors import CorruptRange, OutOfLog
from gantrymq.plugins.ha.frames import RECORD_MAX_BYTES
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.headers.replication import CompareLogHeader, CompareLogResponse

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.processors import Request
    from gantrymq.remoting.command import Command
    from gantrymq.remoting.peers import PeerRule


class LogMatch(Enum):
    """The result of the comparison of a slave's record with the master's log."""

    SAME = "same"
    OTHER = "other"
    ABSENT = "absent"
    """The record is not in the log: outside its range, or across the end of a file."""
    UNKNOWN = "unknown"
    """The log cannot be read at this offset now."""


class MatchRequests:
    """Serves 47001 to the peers that ``peers`` admits."""

    def __init__(self, broker: Broker, peers: PeerRule) -> None:
        self._broker = broker
        self._peers = peers

    async def answer(self, request: Request) -> Command:
        """Answer 47001. :class:`RemoteFault` with code 16 for other peers, with code 1 for an invalid record size."""
        host = request.connection.peer[0]
        if not self._peers.admits(host):
            raise RemoteFault(ResponseCode.NO_PERMISSION, f"{host} is not in plugin.ha.peers: it is not a slave")
        header = request.header(CompareLogHeader)
        if not 0 < header.size <= RECORD_MAX_BYTES:
            raise RemoteFault(ResponseCode.SYSTEM_ERROR, f"no record has {header.size} bytes")
        match = await trio.to_thread.run_sync(self._compare, header)
        ext = CompareLogResponse(match=match.value, log_end=self._broker.log.end).to_ext()
        return request.command.answer(ResponseCode.SUCCESS, None, ext)

    def _compare(self, header: CompareLogHeader) -> LogMatch:
        commit_log = self._broker.log
        end = header.offset + header.size
        segment = commit_log.segments.at(header.offset)
        if header.offset < commit_log.min_offset or segment is None or end > min(segment.end, commit_log.end):
            return LogMatch.ABSENT
        try:
            data = commit_log.view(header.offset, header.size)
        except CorruptRange:
            return LogMatch.UNKNOWN
        except OutOfLog:  # not written yet, or just deleted
            return LogMatch.UNKNOWN
        return LogMatch.SAME if hashlib.sha256(data).hexdigest() == header.digest else LogMatch.OTHER

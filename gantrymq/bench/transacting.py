"""The load that sends in transactions: a half message and, once stored, its commit, whose response frees the slot.

RocketMQ's clients send the commit oneway. Here it gets a response, so that only completed transactions are counted: a
broker that drops commits when it is busy would seem fast.
"""

from __future__ import annotations

import re
import struct

from gantrymq.bench.connection import Connection
from gantrymq.bench.frames import commits, halves
from gantrymq.bench.plan import Load
from gantrymq.bench.sending import SendLoad, code_text
from gantrymq.remoting.command import decode
from gantrymq.remoting.errors import FatalRemoteFault
from gantrymq.remoting.frame import cut_frames

_LENGTH = struct.Struct(">i").unpack_from
_opaque = re.compile(rb'"opaque":(\d+)').search
_message_id = re.compile(rb'"msgId":"[0-9A-F]*([0-9A-F]{16})"').search
_queue_offset = re.compile(rb'"queueOffset":"(\d+)"').search
_SUCCESS = b'{"code":0,'


class TransactLoad(SendLoad):
    """As :class:`SendLoad`, two requests a message: the half message has its slot's number as opaque, the commit that
    and ``in_flight``. The time is that of both."""

    def __init__(self, load: Load) -> None:
        super().__init__(load)
        self._lone = self._is_usual = False
        self._frame = halves(load, self._body)
        self._commit = commits(load)

    def take_responses(self, connection: Connection, data: bytes, now: int) -> bytes:
        """Count the answered commits; returns the commits of stored half messages, and new half messages."""
        commit: list[bytes] = []
        ended: list[int] = []
        failed: list[int] = []
        start, size = 0, len(data)
        while start + 4 <= size and (end := start + 4 + _LENGTH(data, start)[0]) <= size:
            header = data[start + 8 : end]
            opaque = _opaque(header)
            slot = int(opaque[1]) if opaque else -1
            if not header.startswith(_SUCCESS):
                failed += self._failed(data[start:end])
            elif slot >= self._slot_count:
                ended.append(slot - self._slot_count)
            else:
                commit.append(self._commit_of(header, slot))
            start = end
        connection.keep(data, start)
        connection.outstanding -= len(ended) + len(failed)
        self.acknowledged += len(ended)
        if self.measuring:
            self.tally.requests += len(ended) + len(failed)
            self.tally.messages += len(ended)
            self.tally.bytes += len(ended) * self.load.body_bytes
            sent = self._sent[connection.fd]
            self.latencies.add([(now - sent[slot]) // 1000 for slot in ended])
        return b"".join((*commit, self._next(connection, ended + failed, now)))

    def _commit_of(self, header: bytes, slot: int) -> bytes:
        message_id, offset = _message_id(header), _queue_offset(header)
        if message_id is None or offset is None:
            raise FatalRemoteFault("the answer to a half message does not say where it lies")
        return self._commit(int(message_id[1], 16), int(offset[1]), slot + self._slot_count)

    def _failed(self, data: bytes) -> list[int]:
        """Return the slot of a failed response; None for the broker's own requests."""
        (frame,), _ = cut_frames(data, len(data) + 1)
        answer = decode(frame)
        if not answer.is_response:
            return []
        if self.measuring:
            self.tally.failed(code_text(answer.code), answer.remark or "")
        return [answer.opaque % self._slot_count]

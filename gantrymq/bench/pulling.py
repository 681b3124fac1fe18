"""The load that pulls: each slot has a cursor that every response advances. It counts records and does not decode
them, unless they are stamped."""

from __future__ import annotations

import re
import struct
import time

from gantrymq.bench.connection import Connection, count_frames
from gantrymq.bench.frames import pulls
from gantrymq.bench.latencies import Latencies
from gantrymq.bench.plan import RUN_BYTES, STAMP_BYTES, Load, Tally, Target
from gantrymq.bench.sending import code_text
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.records import decode_records

_HEAD = struct.Struct(">iI").unpack_from
_SIZE = struct.Struct(">i").unpack_from
_STAMP = struct.Struct(">q").unpack_from
_code = re.compile(rb'"code":(\d+)').search
_opaque = re.compile(rb'"opaque":(\d+)').search
_next = re.compile(rb'"nextBeginOffset":"?(\d+)').search
_most = re.compile(rb'"maxOffset":"?(\d+)').search
EMPTY = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED)


class Cursor:
    """An offset in a queue. It returns to ``begin`` at the end; None: it follows new messages."""

    __slots__ = ("begin", "offset", "queue", "sent")

    def __init__(self, queue: int, offset: int, begin: int | None) -> None:
        self.queue = queue
        self.offset = offset
        self.begin = begin
        self.sent = 0


class PullLoad:
    """Connections with their cursors; the number of a slot is the opaque of its request."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.tally = Tally(kind=load.kind)
        self.latencies = Latencies()
        self.measuring = False
        self.received = 0
        self._frame = pulls(load)
        self._run = load.run.encode()
        self._cursors: dict[int, list[Cursor]] = {}
        self._started = 0

    @property
    def finished(self) -> bool:
        """Whether the wanted number of messages has arrived; False for a load without one."""
        return 0 < self.load.requests <= self.tally.messages

    def start_measuring(self) -> None:
        """End the warm-up: count from now on."""
        self.measuring = True

    def open(self, connection: Connection, target: Target) -> bytes:
        """Return the first requests of a connection; its cursors get the queues in turn."""
        follows = self.load.kind == "follow"
        cursors = []
        now = time.perf_counter_ns()
        # a follower must see each message once
        count = min(self.load.in_flight, len(target.queues)) if follows else self.load.in_flight
        turn = connection.number // len(self.load.targets)
        for slot in range(count):
            place = (turn * count + slot) % len(target.queues)
            offset = target.offsets[place]
            cursors.append(Cursor(target.queues[place], offset, None if follows else offset))
            cursors[-1].sent = now
        self._cursors[connection.fd] = cursors
        connection.outstanding = len(cursors)
        return b"".join(self._frame(cursor.queue, slot, cursor.offset) for slot, cursor in enumerate(cursors))

    def answers(self, connection: Connection, data: bytes, now: int) -> bytes:
        """Count the received messages; returns the next requests."""
        count, end = count_frames(data)
        connection.keep(data, end)
        cursors = self._cursors[connection.fd]
        pieces: list[bytes] = []
        start = 0
        for _ in range(count):
            length, mark = _HEAD(data, start)
            body = start + 8 + (mark & 0xFFFFFF)
            slot = self._take(data, start + 8, body, start + 4 + length, cursors, now)
            start += 4 + length
            if slot is not None and not self.finished:
                cursor = cursors[slot]
                cursor.sent = now
                pieces.append(self._frame(cursor.queue, slot, cursor.offset))
        return b"".join(pieces)

    def lost(self, connection: Connection, reason: str) -> None:
        """Drop a closed connection and its outstanding requests."""
        self.tally.failed("lost", reason, connection.outstanding)

    def _take(self, data: bytes, head: int, body: int, end: int, cursors: list[Cursor], now: int) -> int | None:
        """Return the slot of a response; None for a frame that is no response to a pull."""
        opaque, code = _opaque(data, head, body), _code(data, head, body)
        if opaque is None or code is None or not 0 <= int(opaque[1]) < len(cursors):
            return None
        slot, number = int(opaque[1]), int(code[1])
        cursor = cursors[slot]
        following, most = _next(data, head, body), _most(data, head, body)
        if number == self.load.success and following is not None:
            begin, cursor.offset = cursor.offset, int(following[1])
            self._count(data, body, end, cursor.offset - begin, now, cursor.sent)
            if cursor.begin is not None and most is not None and cursor.offset >= int(most[1]):
                cursor.offset = cursor.begin
        elif number in EMPTY and following is not None:
            cursor.offset = int(following[1]) if cursor.begin is None else cursor.begin
        elif self.measuring:
            self.tally.requests += 1
            self.tally.failed(code_text(number), data[head:body].decode("utf-8", "replace")[:300])
        return slot

    def _count(self, data: bytes, body: int, end: int, expected: int, now: int, sent: int) -> None:
        if self._run:
            self._count_stamped(data[body:end], now)
            return
        count = expected
        if (end - body) != expected * _SIZE(data, body)[0]:
            # records of different sizes: one by one
            count, place = 0, body
            while place + 4 <= end and (size := _SIZE(data, place)[0]) > 0:
                place += size
                count += 1
        self.received += count
        if self.measuring:
            self.tally.requests += 1
            self.tally.messages += count
            self.tally.bytes += end - body
            self.latencies.add([(now - sent) // 1000])

    def _count_stamped(self, records: bytes, now: int) -> None:
        times = []
        size = 0
        for record in decode_records(records, check_crc=False):
            stamp = record.stored_body[:STAMP_BYTES]
            if stamp[:RUN_BYTES] == self._run and len(stamp) == STAMP_BYTES:
                times.append((now - _STAMP(stamp, RUN_BYTES)[0]) // 1000)
                size += len(record.stored_body)
        self.received += len(times)
        if self.measuring:
            self.tally.requests += 1
            self.tally.messages += len(times)
            self.tally.bytes += size
            self.latencies.add(times)

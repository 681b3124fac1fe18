"""The load that pulls: each slot has a cursor that every response advances. It counts records and does not decode
them, unless they are stamped."""

from __future__ import annotations

import re
import struct
import time
from array import array

from gantrymq.bench.connection import Connection, count_frames
from gantrymq.bench.frames import pull_parts, pulls
from gantrymq.bench.latencies import Latencies
from gantrymq.bench.loop import Loop
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


class Cursors:
    """The queue, the offset and the time of the last pull of each slot. At the end of its queue an offset returns to
    ``begins``, unless it follows new messages."""

    def __init__(self, queues: list[int], offsets: list[int], now: int) -> None:
        self.queues = queues
        self.offsets = array("q", offsets)
        self.begins = array("q", offsets)
        self.sent = array("q", [now]) * len(queues)


class PullLoad:
    """Connections with their cursors; the number of a slot is the opaque of its request."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.tally = Tally(kind=load.kind)
        self.latencies = Latencies()
        self.measuring = False
        self.received = 0
        self._refused = 0
        self._frame = pulls(load)
        self._run = load.run.encode()
        self._cursors: dict[int, Cursors] = {}
        self._follows = load.kind == "follow"
        unusual = load.run or load.tls or load.authority or load.access_key or load.requests
        self._parts = None if unusual or self._follows else pull_parts(load)
        self.allowed = 0  # pulls of the loop have no limit

    @property
    def finished(self) -> bool:
        """Whether the wanted number of messages has arrived; False for a load without one. A refused pull counts as a
        message: a broker may refuse each one."""
        return 0 < self.load.requests <= self.tally.messages + self._refused

    def start_measuring(self) -> None:
        """End the warm-up: count from now on."""
        self.measuring = True

    def open(self, connection: Connection, target: Target) -> bytes:
        """Return the first requests of a connection; its cursors get the queues in turn."""
        # a follower must see each message once
        count = min(self.load.in_flight, len(target.queues)) if self._follows else self.load.in_flight
        turn = connection.number // len(self.load.targets)
        places = [(turn * count + slot) % len(target.queues) for slot in range(count)]
        queues, offsets = [target.queues[place] for place in places], [target.offsets[place] for place in places]
        self._cursors[connection.fd] = Cursors(queues, offsets, time.perf_counter_ns())
        connection.outstanding = count
        return b"".join(map(self._frame, queues, range(count), offsets))

    def join(self, loop: Loop, connection: Connection) -> None:
        """Add an open connection to ``loop``, if its responses are usual ones."""
        cursors = self._cursors[connection.fd]
        if self._parts is not None:
            frames = [self._parts(queue, slot) for slot, queue in enumerate(cursors.queues)]
            loop.add_puller(connection.fd, self, frames, cursors.offsets, cursors.begins, cursors.sent)

    def count(self, requests: int, messages: int, size: int) -> None:
        """Count the messages of so many successful responses."""
        self.received += messages
        if self.measuring:
            self.tally.requests += requests
            self.tally.messages += messages
            self.tally.bytes += size

    def take_responses(self, connection: Connection, data: bytes, now: int) -> bytes:
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
                cursors.sent[slot] = now
                pieces.append(self._frame(cursors.queues[slot], slot, cursors.offsets[slot]))
        return b"".join(pieces)

    def lost(self, connection: Connection, reason: str) -> None:
        """Drop a closed connection and its outstanding requests."""
        self.tally.failed("lost", reason, connection.outstanding)

    def _take(self, data: bytes, head: int, body: int, end: int, cursors: Cursors, now: int) -> int | None:
        """Return the slot of a response; None for a frame that is not a response to a pull."""
        opaque, code = _opaque(data, head, body), _code(data, head, body)
        if opaque is None or code is None or not 0 <= int(opaque[1]) < len(cursors.queues):
            return None
        slot, number = int(opaque[1]), int(code[1])
        offsets = cursors.offsets
        following, most = _next(data, head, body), _most(data, head, body)
        if number == self.load.success and following is not None:
            begin, offsets[slot] = offsets[slot], int(following[1])
            self._count(data, body, end, offsets[slot] - begin, now, cursors.sent[slot])
            if not self._follows and most is not None and offsets[slot] >= int(most[1]):
                offsets[slot] = cursors.begins[slot]
        elif number in EMPTY and following is not None:
            if number == ResponseCode.PULL_OFFSET_MOVED:
                cursors.begins[slot] = int(following[1])  # the messages before were deleted
            offsets[slot] = int(following[1]) if self._follows else cursors.begins[slot]
        elif self.measuring:
            self._refused += 1
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
        self.count(1, count, end - body)
        if self.measuring:
            self.latencies.add_one((now - sent) // 1000)

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

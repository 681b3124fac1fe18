"""The load that sends: each response frees its slot, whose frame is sent again at once."""

from __future__ import annotations

import math
import re
import struct
import time
from array import array
from collections.abc import Callable

from gantrymq.bench.connection import Connection, count_frames
from gantrymq.bench.frames import body_of, sends, stamped_sends
from gantrymq.bench.latencies import Latencies
from gantrymq.bench.loop import Loop
from gantrymq.bench.plan import Load, Tally, Target
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.command import decode
from gantrymq.remoting.frame import cut_frames

FRAMES_BYTES = 64 * 1024 * 1024
"""Limit in bytes of the encoded frames of a load; above it all connections share one order of queues."""
_NO_LIMIT = 2**62
_STAMP = struct.Struct(">q")
_LENGTH = struct.Struct(">i").unpack_from
_opaques = re.compile(rb'"opaque":(\d+)').findall


class SendLoad:
    """Connections with their slots. The number of a slot is the opaque of its request, so responses may arrive in any
    order."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.tally = Tally(kind=load.kind)
        self.latencies = Latencies()
        self.measuring = False
        self.acknowledged = 0
        self._tickets: float = load.requests or math.inf
        self._success = b'{"code":%d,' % load.success
        self._body = body_of(load)
        self._frame = sends(load, self._body)
        self._stamped_frame = stamped_sends(load) if load.run else None
        self._stamped: dict[int, list[Callable[[bytes], bytes]]] = {}
        self._slots: dict[int, list[bytes]] = {}
        self._sent: dict[int, array[int]] = {}
        self._places: dict[int, array[int]] = {}
        self._slot_count = load.in_flight
        self._lone = load.in_flight == 1 and not (load.requests or load.run or load.topics)
        self._is_usual = not (load.run or load.tls or load.authority)
        most = load.in_flight * len(self._body) * min(load.connections, len(load.targets[0].queues))
        self._turn = most <= FRAMES_BYTES

    @property
    def finished(self) -> bool:
        """Whether all requests have been sent."""
        return self._tickets <= 0

    @property
    def allowed(self) -> int:
        """The number of requests that may still be sent."""
        return int(min(self._tickets, _NO_LIMIT))

    def start_measuring(self) -> None:
        """End the warm-up: count from now on, and send the wanted number of requests."""
        self.measuring = True
        self._tickets = self.load.requests or math.inf

    def unlimited(self) -> None:
        """Requests of a warm-up are not counted."""
        self._tickets = math.inf

    def open(self, connection: Connection, target: Target) -> bytes:
        """Return the first requests of a connection."""
        turn = connection.number // len(self.load.targets) if self._turn else 0
        load, queues = self.load, target.queues
        if load.topics:
            pairs = [(topic, queue) for queue in queues for topic in load.topics]
            pairs *= -(-load.in_flight // len(pairs))
            slots = [self._frame(topic, queue, slot) for slot, (topic, queue) in enumerate(pairs)]
            self._slot_count = len(slots)
            self._places[connection.fd] = array("q", [connection.number * len(slots) // max(1, load.connections)])
        else:
            slots = [
                self._frame(load.topic, queues[(turn + slot) % len(queues)], slot) for slot in range(load.in_flight)
            ]
        self._slots[connection.fd] = slots
        if self._stamped_frame is not None:
            self._stamped[connection.fd] = [
                self._stamped_frame(load.topic, queues[(turn + slot) % len(queues)], slot)
                for slot in range(load.in_flight)
            ]
        self._sent[connection.fd] = array("q", [0]) * len(slots)
        return self._next(connection, list(range(load.in_flight)), time.perf_counter_ns())

    def join(self, loop: Loop, connection: Connection) -> None:
        """Add an open connection to ``loop``, if its responses are usual ones."""
        fd = connection.fd
        if self._is_usual:
            loop.add_sender(fd, self, self._slots[fd], self._sent[fd], self._places.get(fd, array("q")))

    def count(self, requests: int, messages: int, size: int) -> None:
        """Count responses that the loop handled: all are successes, and the next request was sent after each."""
        self._tickets -= requests
        self.acknowledged += messages
        if self.measuring:
            self.tally.requests += requests
            self.tally.messages += messages
            self.tally.bytes += size

    def take_responses(self, connection: Connection, data: bytes, now: int) -> bytes:
        """Count the responses; returns the next requests."""
        if self._lone and data.startswith(self._success, 8) and 4 + _LENGTH(data)[0] == len(data):
            return self._answer(connection.fd, now)
        found = self._read_fast(data, len(data))
        if found is None:
            count, end = count_frames(data)
            connection.keep(data, end)
            if not count:
                return b""
            found = self._read_fast(data, end)
        if found is not None:
            slots = succeeded = list(map(int, found))
        else:
            slots, succeeded = self._read_each(data[:end])
        connection.outstanding -= len(slots)
        self.acknowledged += len(succeeded) * self.load.batch
        if self.measuring:
            self.tally.requests += len(slots)
            self.tally.messages += len(succeeded) * self.load.batch
            self.tally.bytes += len(succeeded) * self.load.batch * self.load.body_bytes
            sent = self._sent[connection.fd]
            self.latencies.add([(now - sent[slot]) // 1000 for slot in succeeded])
        return self._next(connection, slots, now)

    def _answer(self, fd: int, now: int) -> bytes:
        """Handle the response of a connection with one request in flight, of a load without an end: a fast path of
        :meth:`answers`."""
        load, tally, sent = self.load, self.tally, self._sent[fd]
        self.acknowledged += load.batch
        if self.measuring:
            tally.requests += 1
            tally.messages += load.batch
            tally.bytes += load.batch * load.body_bytes
            self.latencies.add_one((now - sent[0]) // 1000)
        sent[0] = now
        return self._slots[fd][0]

    def lost(self, connection: Connection, reason: str) -> None:
        """Drop a closed connection and its outstanding requests."""
        if connection.outstanding:
            self.tally.failed("lost", reason, connection.outstanding)

    def _read_fast(self, data: bytes, end: int) -> list[bytes] | None:
        """Return the opaques of all answers up to ``end``; None unless they are whole, successes, and begin with their
        code.

        The last header's start and the length in front of it tell whether the last frame is whole; an answer that is
        no success has an opaque but not this beginning. Quotes inside of a header's texts are escaped.
        """
        last = data.rfind(self._success, 0, end)
        if last < 8 or last - 4 + _LENGTH(data, last - 8)[0] != end:
            return None
        found: list[bytes] = _opaques(data, 0, end)
        return found if len(found) == data.count(self._success, 0, end) else None

    def _read_each(self, data: bytes) -> tuple[list[int], list[int]]:
        """Return the slots of all responses, and those of the successes; failures are counted by code."""
        frames, _ = cut_frames(data, len(data) + 1)
        slots: list[int] = []
        succeeded: list[int] = []
        for frame in frames:
            answer = decode(frame)
            if not (answer.is_response or self.load.success) or not 0 <= answer.opaque < self._slot_count:
                continue  # the broker's own request, such as "check your routes"
            slots.append(answer.opaque)
            if answer.code == self.load.success:
                succeeded.append(answer.opaque)
            elif self.measuring:
                self.tally.failed(code_text(answer.code), answer.remark or "")
        return slots, succeeded

    def _next(self, connection: Connection, slots: list[int], now: int) -> bytes:
        if self._tickets < len(slots):
            slots = slots[: max(0, int(self._tickets))]
        self._tickets -= len(slots)
        connection.outstanding += len(slots)
        if self._places:
            slots = self._advance(connection.fd, len(slots))
        frames, sent = self._slots[connection.fd], self._sent[connection.fd]
        for slot in slots:
            sent[slot] = now
        if not self.load.run:
            return frames[slots[0]] if len(slots) == 1 else b"".join([frames[slot] for slot in slots])
        stamp = self.load.run.encode() + _STAMP.pack(now)
        body = stamp + self._body[len(stamp) :]
        stamped = self._stamped[connection.fd]
        return b"".join([stamped[slot](body) for slot in slots])

    def _advance(self, fd: int, count: int) -> list[int]:
        """Return the next ``count`` positions in the ring of all queues. A request is answered long before its position
        comes again."""
        place = self._places[fd][0]
        self._places[fd][0] = place + count
        return [each % self._slot_count for each in range(place, place + count)]


def code_text(code: int) -> str:
    """``2 SYSTEM_BUSY``, or the bare number of a code without a name."""
    try:
        return f"{code} {ResponseCode(code).name}"
    except ValueError:
        return str(code)

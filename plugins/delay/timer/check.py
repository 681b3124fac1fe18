"""The timer's checkpoint, ``config/timercheck``, as RocketMQ 5.3.3 (``TimerCheckpoint``) reads and writes it.

Big endian i64 each: time of the first slot that is not completely delivered (ms), flushed end of the timer log, next
queue offset of the timer topic, the same offset as the master reports it, and the parts of a data version: state
version, time, counter. The file has 4,096 bytes. Where RocketMQ has zeros, GantryMQ has marks (:class:`Mark`): their
number, the counter again, and three i64 for each. If RocketMQ's broker has written the file since, the counters differ.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple, Self

import attrs

_FIELDS: Final = struct.Struct(">qqqqqqq")
_MARKS_HEAD: Final = struct.Struct(">qq")
_MARK: Final = struct.Struct(">qqq")
FILE_BYTES: Final = 4096
MARKS_MAX: Final = 64
RECENT_MS: Final = 30_000
OLDER_EVERY_MS: Final = 60_000
"""One mark per minute is kept of those older than ``RECENT_MS``: a log is rarely cut that far behind its end."""


class Mark(NamedTuple):
    """The log before ``log_offset`` has the messages that are in the timer topic's queue before ``queue_offset``, and
    the deliveries of those that are in a slot before ``read_ms``. It is true until the log is cut before that offset.
    """

    read_ms: int
    queue_offset: int
    log_offset: int


@attrs.frozen
class TimerCheck:
    """Everything before these values is durable: slots by time, the timer log by position, the timer topic by
    offset.

    On a slave, ``read_ms`` and ``master_offset`` are the master's. GantryMQ's slave has no timer log, and its
    ``queue_offset`` is the first queue offset whose message may have to be delivered.
    """

    read_ms: int
    log_end: int
    queue_offset: int
    state_version: int = 0
    timestamp: int = 0
    counter: int = 0
    master_offset: int = attrs.field(default=attrs.Factory(lambda self: self.queue_offset, takes_self=True))
    marks: tuple[Mark, ...] = ()
    """The newest one last."""
    is_own: bool = attrs.field(default=False, eq=False)
    """Whether GantryMQ wrote it: the timer log's end and the queue offset belong together."""

    @property
    def is_slaves(self) -> bool:
        """Whether a slave wrote it, so that wheel and timer log are to be built from the queue."""
        return self.queue_offset < self.master_offset or (bool(self.marks) and not self.log_end)

    def to_bytes(self) -> bytes:
        """Return the file."""
        data = self.to_body() + _MARKS_HEAD.pack(len(self.marks), self.counter)
        return (data + b"".join(_MARK.pack(*mark) for mark in self.marks)).ljust(FILE_BYTES, b"\0")

    def to_body(self) -> bytes:
        """Return the body of the response to GET_TIMER_CHECK_POINT (``TimerCheckpoint.encode``)."""
        return _FIELDS.pack(
            self.read_ms, self.log_end, self.queue_offset, self.master_offset, self.state_version, self.timestamp,
            self.counter,
        )  # fmt: skip

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read a file or a response. :class:`ValueError` for invalid data."""
        if len(data) < _FIELDS.size:
            raise ValueError(f"{len(data)} bytes, a timer checkpoint has at least {_FIELDS.size}")
        read_ms, log_end, queue_offset, master, version, timestamp, counter = _FIELDS.unpack_from(data)
        # RocketMQ keeps both and continues at the lower one.
        queue_offset = min(queue_offset, master)
        if min(read_ms, log_end, queue_offset) < 0:
            raise ValueError("a timer checkpoint with a negative place")
        marks = _read_marks(data[_FIELDS.size :], counter)
        return cls(
            read_ms, log_end, queue_offset, version, timestamp, counter, master, marks or (), marks is not None
        )  # fmt: skip

    def moved(self, read_ms: int, log_end: int, queue_offset: int, now: int, mark: Mark | None = None) -> Self:
        """Return the next checkpoint, with ``mark`` as the newest one."""
        return attrs.evolve(
            self, read_ms=read_ms, log_end=log_end, queue_offset=queue_offset, master_offset=queue_offset,
            timestamp=now, counter=self.counter + 1, marks=self.marks if mark is None else _added(self.marks, mark),
            is_own=True,
        )  # fmt: skip

    def following(self, mark: Mark, queue_offset: int, marks: Sequence[Mark] | None = None) -> Self:
        """Return the checkpoint of a slave whose newest mark is ``mark``; the messages before ``queue_offset`` need no
        delivery.

        ``marks``: the older ones, by default those of this checkpoint.
        """
        added = _added(self.marks if marks is None else tuple(marks), mark)
        newest = added[-1]
        return attrs.evolve(
            self, read_ms=newest.read_ms, log_end=0, queue_offset=min(queue_offset, newest.queue_offset),
            master_offset=newest.queue_offset, counter=self.counter + 1, marks=added,
        )  # fmt: skip

    def within(self, log_end: int) -> Self:
        """Return what is known if the commit log ends at ``log_end`` now: less than before if the log was cut."""
        if not self.marks or self.marks[-1].log_offset <= log_end:
            return self
        left = [mark for mark in self.marks if mark.log_offset <= log_end]
        return self.following(left[-1] if left else Mark(0, 0, 0), 0, left[:-1])


def _added(marks: tuple[Mark, ...], mark: Mark) -> tuple[Mark, ...]:
    """Return ``marks`` and ``mark``, without those that are no longer needed."""
    if marks and marks[-1].read_ms == mark.read_ms:
        return marks  # it says no more about deliveries, and is true for less time
    kept = [
        older
        for older, newer in pairwise((*marks, mark))
        if older.log_offset != newer.log_offset
        and (
            mark.read_ms - newer.read_ms < RECENT_MS
            or older.read_ms // OLDER_EVERY_MS != newer.read_ms // OLDER_EVERY_MS
        )
    ]
    return (*kept, mark)[-MARKS_MAX:]


def _read_marks(data: bytes, counter: int) -> tuple[Mark, ...] | None:
    """None if RocketMQ's broker has written the file."""
    if len(data) < _MARKS_HEAD.size:
        return None
    number, seen = _MARKS_HEAD.unpack_from(data)
    end = _MARKS_HEAD.size + number * _MARK.size
    if not seen or seen != counter or not 0 <= number <= MARKS_MAX or end > len(data):
        return None
    return tuple(Mark._make(fields) for fields in _MARK.iter_unpack(data[_MARKS_HEAD.size : end]))

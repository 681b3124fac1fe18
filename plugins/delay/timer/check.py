"""The timer's checkpoint, ``config/timercheck``, as RocketMQ 5.3.3 (``TimerCheckpoint``) reads and writes it.

Big endian i64 each: time of the first slot that is not completely delivered (ms), flushed end of the timer log, next
queue offset of the timer topic, the same offset as the master reports it, and the parts of a data version: state
version, time, counter. The file has 4,096 bytes, the rest zeros.
"""

from __future__ import annotations

import struct
from typing import Final, Self

import attrs

_FIELDS: Final = struct.Struct(">qqqqqqq")
FILE_BYTES: Final = 4096


@attrs.frozen
class TimerCheck:
    """Everything before these values is durable: slots by time, the timer log by position, the timer topic by
    offset."""

    read_ms: int
    log_end: int
    queue_offset: int
    state_version: int = 0
    timestamp: int = 0
    counter: int = 0

    def to_bytes(self) -> bytes:
        """Return the file."""
        data = _FIELDS.pack(
            self.read_ms, self.log_end, self.queue_offset, self.queue_offset, self.state_version, self.timestamp,
            self.counter,
        )  # fmt: skip
        return data.ljust(FILE_BYTES, b"\0")

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """:class:`ValueError` for invalid data."""
        if len(data) < _FIELDS.size:
            raise ValueError(f"{len(data)} bytes, a timer checkpoint has at least {_FIELDS.size}")
        read_ms, log_end, queue_offset, master, version, timestamp, counter = _FIELDS.unpack_from(data)
        # RocketMQ keeps both and continues at the lower one.
        queue_offset = min(queue_offset, master)
        if min(read_ms, log_end, queue_offset) < 0:
            raise ValueError("a timer checkpoint with a negative place")
        return cls(read_ms, log_end, queue_offset, version, timestamp, counter)

    def moved(self, read_ms: int, log_end: int, queue_offset: int, now: int) -> Self:
        """Return the next checkpoint."""
        return attrs.evolve(
            self, read_ms=read_ms, log_end=log_end, queue_offset=queue_offset, timestamp=now, counter=self.counter + 1
        )

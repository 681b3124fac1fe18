"""Appended bytes in memory, and a thread that writes them to the files in large steps."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import groupby
from typing import TypeAlias

from gantrymq.kernel.env import Waker
from gantrymq.kernel.fast.plain_flusher import Flusher
from gantrymq.kernel.store.log.segments import Segment

Piece: TypeAlias = tuple[Segment, int, bytes, int]
"""The file, the log's offset, the bytes, and how many zeros belong behind them."""


class WriteBehind:
    """The bytes that a log has appended and not yet written. One thread puts; the other methods may be called from any
    thread.

    The next write covers everything that is appended during one write. ``flusher`` gets the written offsets, because
    only those can be flushed. ``check`` raises if the log is poisoned; ``poison`` poisons it and returns the exception
    to raise. There is no write after a failed one.
    """

    def __init__(
        self,
        flusher: Flusher,
        start: int,
        waker: Waker,
        check: Callable[[], None],
        poison: Callable[[str, OSError], Exception],
    ) -> None:
        self.written = start
        """The offset up to which everything is written."""
        self._flusher = flusher
        self._waker = waker
        self._check = check
        self._poison = poison
        self._batch: list[Piece] = []
        self._waiting: list[Piece] = []
        self._end = (start, 0)
        self._followed: Segment | None = None
        self._guard = threading.Lock()
        self._writing = threading.Lock()
        self._asked = threading.Event()
        self._stopping = False

    def put(self, segment: Segment, position: int, data: bytes, zeros: int = 0) -> None:
        """Add ``data`` for ``segment`` at the log's offset ``position``, behind everything that was put before.

        So many bytes of zeros belong behind it, unless more data does."""
        self._batch.append((segment, position, data, zeros))

    def appended(self, end: int, timestamp: int) -> None:
        """Everything up to ``end`` has been put and may be written."""
        batch, self._batch = self._batch, []
        with self._guard:
            self._waiting += batch
            self._end = (end, timestamp)
        self._asked.set()

    def write_out(self) -> None:
        """Write everything that waits, one write per file, and wake the sweep. Raises ``LogPoisoned``."""
        with self._writing:
            self._check()
            with self._guard:
                waiting, self._waiting = self._waiting, []
                end, timestamp = self._end
            if end == self.written:
                return
            try:
                for segment, pieces in groupby(waiting, key=lambda piece: piece[0]):
                    self._write(segment, list(pieces))
            except OSError as error:
                raise self._poison("writing to the commit log", error) from error
            self._flusher.appended(end, timestamp)
            self.written = end
        self._waker.wake()

    def run(self) -> None:
        """Write whenever something was appended, until :meth:`stop`; then write the rest."""
        while True:
            self._asked.wait()
            self._asked.clear()
            stopping = self._stopping
            self.write_out()
            if stopping:
                return

    def stop(self) -> None:
        """Let :meth:`run` end."""
        self._stopping = True
        self._asked.set()

    def _write(self, segment: Segment, pieces: list[Piece]) -> None:
        if segment is not self._followed:
            self._flusher.follow(segment.file)
            self._followed = segment
        _, start, _, _ = pieces[0]
        _, last, data, _ = pieces[-1]
        zeros = max(position + len(data) + zeros for _, position, data, zeros in pieces) - last - len(data)
        segment.write(start, b"".join([data for _, _, data, _ in pieces]), zeros)

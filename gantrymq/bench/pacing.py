"""The load of a fixed rate: requests are due at fixed times, whether or not earlier ones were answered."""

from __future__ import annotations

import time
from collections import deque

from gantrymq.bench.connection import Connection
from gantrymq.bench.plan import Load, Target
from gantrymq.bench.sending import SendLoad

_SECOND = 1_000_000_000


class PacedLoad(SendLoad):
    """Sends ``load.rate`` requests a second. The latency of each begins when it was due, so a stall of the broker
    counts for every request that was due meanwhile, also for those that waited for a free slot."""

    def __init__(self, load: Load) -> None:
        super().__init__(load)
        self._lone = self._is_usual = False
        self._start = 0
        self._count = 0
        self._free: deque[tuple[Connection, int]] = deque()

    def open(self, connection: Connection, target: Target) -> bytes:
        """Prepare the requests of a connection; :meth:`due` sends them."""
        return b"" if connection.fd in self._slots else super().open(connection, target)

    def due(self, now: int) -> list[tuple[Connection, bytes]]:
        """Return the requests that are due at ``now`` (ns) and have a free slot."""
        if not self._start:
            self._start = now
        ready: dict[int, tuple[Connection, list[bytes]]] = {}
        while self._free and self._tickets > 0 and (at := self._due_at()) <= now:
            connection, slot = self._free.popleft()
            self._sent[connection.fd][slot] = at
            connection.outstanding += 1
            ready.setdefault(connection.fd, (connection, []))[1].append(self._slots[connection.fd][slot])
            self._count += 1
            self._tickets -= 1
        return [(connection, b"".join(frames)) for connection, frames in ready.values()]

    def wait_seconds(self) -> float:
        """Return the time until a request is due; infinity while no slot is free or nothing is left to send."""
        if not self._free or self._tickets <= 0:
            return float("inf")
        return max(0, self._due_at() - time.perf_counter_ns()) / _SECOND

    def lost(self, connection: Connection, reason: str) -> None:
        """Drop a closed connection, its free slots and its outstanding requests."""
        super().lost(connection, reason)
        self._free = deque(pair for pair in self._free if pair[0] is not connection)

    def _due_at(self) -> int:
        return self._start + int(self._count * _SECOND / self.load.rate)

    def _next(self, connection: Connection, slots: list[int], now: int) -> bytes:
        self._free.extend((connection, slot) for slot in slots)
        return b""

"""Connections that the broker does not read until the token buckets of their identities have refilled."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from gantrymq.kernel.network.connection import Connection


class PausedConnections:
    """Reads each connection again at its time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until: dict[Connection, float] = {}
        self._heap: list[tuple[float, int, Connection]] = []
        self._numbers = itertools.count()  # connections have no order
        self._is_changed = trio.Event()

    def add(self, connection: Connection, until: float) -> None:
        """Do not read the connection until then (seconds of the clock), instead of a time that was set before."""
        self._until[connection] = until
        heapq.heappush(self._heap, (until, next(self._numbers), connection))
        connection.throttle(True)
        if self._heap[0][2] is connection:
            self._is_changed.set()

    def forget(self, connection: Connection) -> None:
        """The connection is closed."""
        self._until.pop(connection, None)

    async def run(self) -> None:
        """Continue reading; runs until cancelled."""
        while True:
            self._is_changed = trio.Event()
            now = self._clock()
            while self._heap and self._heap[0][0] <= now:
                until, _, connection = heapq.heappop(self._heap)
                if self._until.get(connection) == until:
                    del self._until[connection]
                    connection.throttle(False)
            with trio.move_on_after(self._heap[0][0] - now if self._heap else float("inf")):
                await self._is_changed.wait()

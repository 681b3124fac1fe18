"""A bound on what a producer has under way: further sends wait for their turn, and their timeout has not begun."""

from __future__ import annotations

from collections import deque

import anyio


class _Waiter:
    __slots__ = ("admitted", "gone", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.admitted = anyio.Event()
        self.gone = False


class Window:
    """Admits sends in the order in which they came, while fewer than ``messages`` with ``size`` bytes are inside."""

    def __init__(self, messages: int, size: int) -> None:
        self._messages_max = messages
        self._bytes_max = size
        self._messages = 0
        self._bytes = 0
        self._waiting: deque[_Waiter] = deque()

    async def enter(self, size: int) -> None:
        """Wait for a place for ``size`` bytes; one alone may be larger than the bound."""
        if not self._waiting and self._has_room(size):
            self._take(size)
            return
        waiter = _Waiter(size)
        self._waiting.append(waiter)
        try:
            await waiter.admitted.wait()
        except BaseException:
            if waiter.admitted.is_set():
                self.leave(size)
            waiter.gone = True
            raise

    def leave(self, size: int) -> None:
        """Give the place back."""
        self._messages -= 1
        self._bytes -= size
        while self._waiting and (self._waiting[0].gone or self._has_room(self._waiting[0].size)):
            waiter = self._waiting.popleft()
            if not waiter.gone:
                self._take(waiter.size)
                waiter.admitted.set()

    def _has_room(self, size: int) -> bool:
        return not self._messages or (self._messages < self._messages_max and self._bytes + size <= self._bytes_max)

    def _take(self, size: int) -> None:
        self._messages += 1
        self._bytes += size

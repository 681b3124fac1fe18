"""A bound on what a producer has under way or buffered: what comes then waits for its turn, and is not timed yet."""

from __future__ import annotations

from collections import deque

import anyio


class _Waiter:
    __slots__ = ("admitted", "gone", "messages", "size")

    def __init__(self, size: int, messages: int) -> None:
        self.size = size
        self.messages = messages
        self.admitted = anyio.Event()
        self.gone = False


class Window:
    """Admits messages in the order in which they came, while fewer than ``messages`` with ``size`` bytes are inside.

    There is no limit of messages if ``messages`` is None.
    """

    def __init__(self, messages: int | None, size: int) -> None:
        self._messages_max = messages
        self._bytes_max = size
        self._messages = 0
        self._bytes = 0
        self._waiting: deque[_Waiter] = deque()

    @property
    def empty(self) -> bool:
        """Whether nothing is inside."""
        return not self._messages

    def admit(self, size: int) -> bool:
        """Take a place for ``size`` bytes if there is one and no caller waits."""
        messages, taken = self._messages, self._bytes + size
        if self._waiting or (
            messages
            and (taken > self._bytes_max or (self._messages_max is not None and messages >= self._messages_max))
        ):
            return False
        self._messages = messages + 1
        self._bytes = taken
        return True

    async def enter(self, size: int) -> None:
        """Wait for a place for ``size`` bytes; one alone may be larger than the bound."""
        if not self.admit(size):
            await self._wait(size, 1)

    async def enter_many(self, size: int, messages: int) -> None:
        """Wait for places for ``messages``, which together have ``size`` bytes and count as one for the bounds."""
        if self._waiting or not self._has_room(size):
            await self._wait(size, messages)
        else:
            self._take(size, messages)

    async def _wait(self, size: int, messages: int) -> None:
        waiter = _Waiter(size, messages)
        self._waiting.append(waiter)
        try:
            await waiter.admitted.wait()
        except BaseException:
            if waiter.admitted.is_set():
                self.leave(size, messages)
            waiter.gone = True
            raise

    def leave(self, size: int, messages: int = 1) -> None:
        """Give the places of so many messages back, ``size`` bytes in all."""
        self._messages -= messages
        self._bytes -= size
        while self._waiting and (self._waiting[0].gone or self._has_room(self._waiting[0].size)):
            waiter = self._waiting.popleft()
            if not waiter.gone:
                self._take(waiter.size, waiter.messages)
                waiter.admitted.set()

    def _has_room(self, size: int) -> bool:
        if self._messages_max is not None and self._messages >= self._messages_max:
            return False
        return not self._messages or self._bytes + size <= self._bytes_max

    def _take(self, size: int, messages: int) -> None:
        self._messages += messages
        self._bytes += size

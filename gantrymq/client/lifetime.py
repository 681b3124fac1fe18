"""Objects that begin and end: in an ``async with`` block, or by ``start`` and ``close`` from any task."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Self

import anyio

from gantrymq.client.errors import ClientClosed
from gantrymq.client.loop_guard import LoopGuard


class Lifetime:
    """The base of clients, producers, consumers and readers, which begin and end with an ``async with`` block.

    Or with :meth:`start` and :meth:`close`, from any task.
    """

    def __init__(self, what: str) -> None:
        """``what`` it is, for errors."""
        self._what = what
        self._opened: AbstractAsyncContextManager[None] | None = None
        self._was_started = False
        self._closing: anyio.Lock | None = None
        self._loop: LoopGuard | None = None
        self._owner: set[Lifetime] | None = None

    def ends_with(self, owner: set[Lifetime]) -> Self:
        """Be in ``owner`` between beginning and end; its owner ends the tasks that are left in it."""
        self._owner = owner
        return self

    def _open(self) -> AbstractAsyncContextManager[None]:
        """What begins and ends. It may end in another task than it began in."""
        raise NotImplementedError

    async def start(self) -> Self:
        """Begin, instead of an ``async with`` block; returns the object itself. Once only.

        Raises what the beginning of the block raises, and :class:`ClientClosed` for one that was started before.
        """
        if self._was_started:
            raise ClientClosed(f"the {self._what} was started before: make a new one")
        self._was_started = True
        self._closing = anyio.Lock()
        self._loop = LoopGuard()
        opened = self._open()
        await opened.__aenter__()
        self._opened = opened
        if self._owner is not None:
            self._owner.add(self)
        return self

    async def close(self) -> None:
        """End, as the end of the ``async with`` block does; any task may call it, again as well. It waits for the end.

        Nothing happens to what was never started. :class:`ClientClosed` in another event loop than :meth:`start`.
        """
        await self.__aexit__(None, None, None)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._closing is None or self._loop is None:
            return
        if self._opened is not None:
            self._loop.ensure()  # the end waits for tasks, which do not run here
        with anyio.CancelScope(shield=True):
            await self._closing.acquire()
        try:
            opened, self._opened = self._opened, None
            if opened is not None:
                await opened.__aexit__(kind, error, trace)
        finally:
            if self._owner is not None:
                self._owner.discard(self)  # not earlier: the owner's end waits for this one
            self._closing.release()

    def _closed_error(self) -> ClientClosed:
        if not self._was_started:
            return ClientClosed(f"the {self._what} is not started: use `async with`, or await its start() first")
        return ClientClosed(f"the {self._what} is closed: its `async with` block has ended, or close() was called")

"""How threads without a loop of their own get work done in the event loop of a blocking client."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from inspect import isawaitable
from typing import Any, Generic, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

from gantrymq.client.errors import ClientClosed

T = TypeVar("T")


class Loop:
    """The way into the event loop, shut when ``what`` ends, or what has the loop of ``parent``.

    With a ``parent`` it opens at :meth:`start`.
    """

    def __init__(self, portal: BlockingPortal, what: str, parent: Loop | None = None) -> None:
        self.portal = portal
        self._parent = parent
        self._what = what
        self._is_started = parent is None
        self._closed = False
        self._process = os.getpid()

    @property
    def is_foreign(self) -> bool:
        """Whether this process is a fork of the one in which the loop runs."""
        return os.getpid() != self._process

    def call(self, function: Callable[..., Awaitable[T]], *args: Any, reclaim: Callable[[T], Any] | None = None) -> T:
        """The result of ``function``, which runs in the loop while this thread waits; :class:`ClientClosed`.

        An interrupt of the thread (Ctrl-C) cancels it. If it has a result by then, ``reclaim`` gets that, in the
        loop: a function or a coroutine function.
        """
        self.ensure_open()
        call = _Call(function, args, reclaim)
        try:
            return self.portal.call(call.run)
        except BaseException:
            call.is_abandoned = True  # the first step of all: a second interrupt may come at any time
            if not call.is_over:
                with suppress(RuntimeError, CancelledError):  # the loop has ended, or ends
                    self.portal.call(call.end)
            raise

    def finish(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """As :meth:`call`, for what must not be left half done: an interrupt ends the wait, and the work goes on."""
        self.ensure_open()
        return self.portal.call(function, *args)

    def ensure_open(self) -> None:
        """Raise :class:`ClientClosed` before :meth:`start` and after :meth:`close`."""
        if self.is_foreign:
            raise ClientClosed(f"the {self._what} belongs to the process that forked this one: connect after the fork")
        if self._closed:
            raise ClientClosed(f"the {self._what} is closed: its `with` block has ended, or close() was called")
        if self._parent is not None:
            self._parent.ensure_open()
        if not self._is_started:
            raise ClientClosed(f"the {self._what} is not started: use `with`, or call its start() first")

    def start(self) -> None:
        """Let calls in."""
        self._is_started = True

    def close(self) -> None:
        """Let no call in any more."""
        self._closed = True


class _Call(Generic[T]):
    """A function that runs in the loop for a thread, which may be interrupted meanwhile."""

    def __init__(
        self, function: Callable[..., Awaitable[T]], args: tuple[Any, ...], reclaim: Callable[[T], Any] | None
    ) -> None:
        self.is_abandoned = False
        """Whether the thread was interrupted, or has the function's error."""
        self._function = function
        self._args = args
        self._reclaim = reclaim
        self._scope: anyio.CancelScope | None = None
        self._results: list[T] = []
        self._has_ended = False
        self._ended: anyio.Event | None = None

    @property
    def is_over(self) -> bool:
        """Whether there is nothing to cancel and nothing to reclaim."""
        return self._has_ended and not self._results

    async def run(self) -> T:
        try:
            with anyio.CancelScope() as self._scope:
                if not self.is_abandoned:
                    result = await self._function(*self._args)
                    if self._reclaim is not None:
                        self._results.append(result)
                    return result
        finally:
            self._has_ended = True
            if self._ended is not None:
                self._ended.set()
            elif self.is_abandoned:
                await self._return_result()
        raise CancelledError

    async def end(self) -> None:
        """Cancel the function, or reclaim its result; returns when that is done."""
        if self._scope is not None and not self._has_ended:
            self._ended = anyio.Event()
            self._scope.cancel()
            await self._ended.wait()
        await self._return_result()

    async def _return_result(self) -> None:
        while self._results:
            assert self._reclaim is not None  # else results are not kept
            done = self._reclaim(self._results.pop())
            if isawaitable(done):
                await done

"""Objects of the blocking client that begin and end: in a ``with`` block, or by ``start`` and ``close``."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Self

from gantrymq.client.errors import ClientClosed
from gantrymq.client.lifetime import Lifetime
from gantrymq.client.loop import Loop


class BlockingLifetime:
    """Gives a class ``with``, :meth:`start` and :meth:`close`; what happens then is in :meth:`_open`."""

    def __init__(self, what: str, owner: set[BlockingLifetime] | None = None) -> None:
        """``what`` it is, for errors. It is in ``owner`` between beginning and end."""
        self._what = what
        self._owner = owner
        self._opened: AbstractContextManager[None] | None = None
        self._was_started = False
        self._closing = threading.RLock()  # a handler of a signal may call close() while this thread is in it

    def _open(self) -> AbstractContextManager[None]:
        """What begins and ends."""
        raise NotImplementedError

    def start(self) -> Self:
        """Begin, instead of a ``with`` block; returns the object itself. Once only.

        Raises what the beginning of the block raises, and :class:`ClientClosed` for one that was started before.
        """
        if self._was_started:
            raise ClientClosed(f"the {self._what} was started before: make a new one")
        self._was_started = True
        opened = self._open()
        try:
            opened.__enter__()
            self._opened = opened
            if self._owner is not None:
                self._owner.add(self)
        except BaseException:  # an interrupt may come between any two steps
            self._opened = None
            opened.__exit__(*sys.exc_info())
            raise
        return self

    def close(self) -> None:
        """End, as the end of the ``with`` block does; any thread may call it, again as well. It waits for the end.

        Nothing happens to what was never started.
        """
        self.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._closing:
            opened, self._opened = self._opened, None
            if opened is not None:
                if self._owner is not None:
                    self._owner.discard(self)
                opened.__exit__(kind, error, trace)


class BlockingMember(BlockingLifetime):
    """What a blocking client makes: its end ends the object in the event loop and lets no call in any more."""

    def __init__(self, what: str, loop: Loop, opened: Lifetime, owner: set[BlockingLifetime]) -> None:
        """``opened`` is the object of the async client; ``loop`` is the client's."""
        super().__init__(what, owner)
        self._loop = Loop(loop.portal, what, loop)
        self._entered = opened

    @contextmanager
    def _open(self) -> Iterator[None]:
        self._loop.start()
        try:
            with opened_in(self._loop, self._entered):
                try:
                    yield
                finally:
                    if not self._loop.is_foreign:
                        self._before_end()
        finally:
            self._loop.close()  # not earlier: callbacks of users may call while it ends

    def _before_end(self) -> None:
        """What is left to do while calls are still let in."""


@contextmanager
def opened_in(loop: Loop, inner: Lifetime) -> Iterator[None]:
    """``inner``, begun in the event loop and ended there; in a forked process it is left alone, which has no loop.

    An interrupt while it begins ends it. One while it ends does not: what is enqueued is sent, what is done committed.
    """
    loop.call(inner.start, reclaim=Lifetime.close)
    try:
        yield
    finally:
        if not loop.is_foreign:
            loop.portal.call(inner.__aexit__, *sys.exc_info())

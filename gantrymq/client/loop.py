"""How threads without a loop of their own get work done in the event loop of a blocking client."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from anyio.from_thread import BlockingPortal

from gantrymq.client.errors import ClientClosed

T = TypeVar("T")


class Loop:
    """The way into the event loop, shut when ``what`` ends, or what has the loop of ``parent``."""

    def __init__(self, portal: BlockingPortal, what: str, parent: Loop | None = None) -> None:
        self.portal = portal
        self._parent = parent
        self._what = what
        self._closed = False
        self._process = os.getpid()

    @property
    def is_foreign(self) -> bool:
        """Whether this process is a fork of the one in which the loop runs."""
        return os.getpid() != self._process

    def call(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """The result of ``function``, which runs in the loop while this thread waits; :class:`ClientClosed`."""
        self.ensure_open()
        return self.portal.call(function, *args)

    def ensure_open(self) -> None:
        """Raise :class:`ClientClosed` after :meth:`close`."""
        if self.is_foreign:
            raise ClientClosed(f"the {self._what} belongs to the process that forked this one: connect after the fork")
        if self._closed:
            raise ClientClosed(f"the {self._what} is closed: its `with` block has ended, or close() was called")
        if self._parent is not None:
            self._parent.ensure_open()

    def close(self) -> None:
        """Let no call in any more."""
        self._closed = True

"""A lock with a lease: the interface to the store that has it, and the task that takes and keeps it.

A lease is counted from before the request that began or renewed it, so its holder stops before the store gives the lock
to somebody else. It is a comparison of clocks, not a timer: after a pause of the process it has run out at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import structlog
import trio

log = structlog.get_logger("gantrymq.failover")

BEATS: Final = 3
"""How often a lease is renewed in its length."""


class StoreUnavailable(Exception):
    """The store does not answer, or refuses; the text says why. The outcome of what was asked is unknown."""


class LockLost(Exception):
    """The lock is not held, or not any more."""


class LockStore(Protocol):
    """One lock in a store, and a text beside it; all its calls raise :class:`StoreUnavailable`.

    Two calls at a time are not made.
    """

    lease_s: float
    """How long the lock is held after it was taken or renewed, in seconds."""

    async def take(self) -> int | None:
        """Take the lock; its revision, which grows with each holder. None while somebody else holds it.

        Asked again after an unknown outcome by the same holder: the lock's revision if that one was given it.
        """

    async def renew(self) -> bool:
        """Let the lease begin anew; False when the lock is lost, also where its entry was deleted by hand."""

    async def release(self) -> None:
        """Give the lock back, so that another one need not wait for the lease."""

    async def read(self) -> bytes:
        """The text; empty when there is none."""

    async def write(self, text: bytes) -> bool:
        """Replace the text; False, without doing so, when the lock is lost."""


class LockKeeper:
    """Takes the lock as soon as it is free, and keeps it, while :meth:`run` runs.

    ``clock``: seconds that go on while the process is stopped and the machine is suspended. ``poll_s``: how often to
    look whether it is free.
    """

    def __init__(self, store: LockStore, clock: Callable[[], float], poll_s: float) -> None:
        self._store = store
        self._clock = clock
        self._poll_s = poll_s
        self._revision = 0
        self._until = 0.0
        self._busy = trio.Lock()
        self._reason = ""
        self._waits = False

    @property
    def revision(self) -> int | None:
        """Of the lock; None while it is not held."""
        return self._revision if self._revision and self._clock() < self._until else None

    def check(self, revision: int) -> None:
        """:class:`LockLost` unless the lock is held by this revision now."""
        if self.revision != revision:
            raise LockLost("the lock is not held any more")

    async def read(self) -> bytes:
        """The text beside the lock. :class:`StoreUnavailable`."""
        async with self._busy:
            return await self._store.read()

    async def write(self, text: bytes) -> None:
        """Replace it. :class:`StoreUnavailable`, :class:`LockLost`."""
        async with self._busy:
            if not await self._store.write(text):
                self._lose("another one holds it")
                raise LockLost("the lock is not held any more")

    async def run(self) -> None:
        """Until cancelled; the lock is free then."""
        try:
            while True:
                await self._turn()
                await trio.sleep(self._store.lease_s / BEATS if self.revision else self._poll_s)
        finally:
            if self._revision:
                with trio.move_on_after(self._store.lease_s / BEATS, shield=True):
                    await self._release()

    async def _turn(self) -> None:
        asked_at = self._clock()
        try:
            async with self._busy:
                if self._revision:
                    await self._renew(asked_at)
                else:
                    await self._take(asked_at)
        except StoreUnavailable as error:
            if str(error) != self._reason:
                self._reason = str(error)
                log.error(
                    "lock_store_unavailable", reason=self._reason,
                    action="no slave is promoted until the store answers; check it",
                )  # fmt: skip
            return
        if self._reason:
            log.info("lock_store_answers")
            self._reason = ""

    async def _renew(self, asked_at: float) -> None:
        expired = self.revision is None
        if not await self._store.renew():
            self._lose("its lease has run out, or its entry was deleted")
            return
        if expired and self._clock() < asked_at + self._store.lease_s:
            log.info("lock_regained", revision=self._revision)
        self._until = asked_at + self._store.lease_s

    async def _take(self, asked_at: float) -> None:
        revision = await self._store.take()
        if revision is None:
            if not self._waits:
                log.info("lock_awaited", reason="another watcher holds it")
            self._waits = True
            return
        self._revision, self._until, self._waits = revision, asked_at + self._store.lease_s, False
        log.info("lock_taken", revision=revision)

    def _lose(self, reason: str) -> None:
        if self._revision:
            log.warning("lock_lost", revision=self._revision, reason=reason)
        self._revision = 0

    async def _release(self) -> None:
        try:
            await self._store.release()
            log.info("lock_released", revision=self._revision)
        except StoreUnavailable as error:
            log.info("lock_not_released", reason=str(error))
        self._revision = 0

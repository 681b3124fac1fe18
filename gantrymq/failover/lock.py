"""A lock with a lease: the interface to its store, and the task that acquires and renews it.

The holder counts its lease from before the request that began or renewed it, so it stops before the store grants the
lock to another holder. Expiry is a comparison of clocks, not a timer: a process that was paused sees it at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import structlog
import trio

log = structlog.get_logger("gantrymq.failover")

BEATS: Final = 3
"""How many times a lease is renewed within its length."""


class StoreUnavailable(Exception):
    """The store does not answer or refuses, for the reason in the text. The outcome of the request is unknown."""


class LockLost(Exception):
    """The lock is not held, or no longer."""


class LockStore(Protocol):
    """One lock in a store, and a text beside it; all its calls raise :class:`StoreUnavailable`.

    Calls are made one at a time.
    """

    lease_s: float
    """The length of a lease in seconds."""

    async def take(self) -> int | None:
        """Acquire the lock and return its revision, which grows with each holder; None while another process holds it.

        A repeated call after an unknown outcome returns the revision if the first call acquired the lock.
        """

    async def renew(self) -> bool:
        """Renew the lease; False if the lock is lost, also if its entry was deleted by hand."""

    async def release(self) -> None:
        """Release the lock, so that the next holder need not wait for the lease's end."""

    async def read(self) -> bytes:
        """Read the text; empty if there is none."""

    async def write(self, text: bytes) -> bool:
        """Replace the text; False, without a change, if the lock is lost."""


class LockKeeper:
    """Acquires the lock as soon as it is free, and renews it, while :meth:`run` runs.

    ``clock`` returns seconds and must advance while the process is stopped or the machine is suspended. ``poll_s`` is
    the interval between attempts to acquire it.
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
        """The lock's revision; None while it is not held."""
        return self._revision if self._revision and self._clock() < self._until else None

    def check(self, revision: int) -> None:
        """Raise :class:`LockLost` unless the lock is held with this revision."""
        if self.revision != revision:
            raise LockLost("the lock is not held any more")

    async def read(self) -> bytes:
        """Read the text beside the lock. Raises :class:`StoreUnavailable`."""
        async with self._busy:
            return await self._store.read()

    async def write(self, text: bytes) -> None:
        """Replace the text. Raises :class:`StoreUnavailable` and :class:`LockLost`."""
        async with self._busy:
            if not await self._store.write(text):
                self._lose("another one holds it")
                raise LockLost("the lock is not held any more")

    async def run(self) -> None:
        """Hold the lock until cancelled, and then release it."""
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

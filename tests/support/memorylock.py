"""A lock with a lease in memory, for tests of watchers."""

from __future__ import annotations

import attrs
import trio

from gantrymq.failover.lock import StoreUnavailable


@attrs.define
class MemoryStore:
    """The store that watchers share. ``away``: it does not respond. ``holder``, with its revision, until ``until``."""

    lease_s: float = 5.0
    away: bool = False
    text: bytes = b""
    revision: int = 0
    holder: str = ""
    until: float = 0.0

    def owner(self) -> str:
        """The current holder of the lock; empty if there is none."""
        return self.holder if trio.current_time() < self.until else ""


class MemoryLock:
    """One watcher's :class:`gantrymq.failover.lock.LockStore`."""

    def __init__(self, store: MemoryStore, holder: str) -> None:
        self._store = store
        self._holder = holder
        self._revision = 0
        self.lease_s = store.lease_s

    async def take(self) -> int | None:
        await self._reach()
        store = self._store
        if store.owner() not in ("", self._holder):
            return None
        if store.owner() == "":
            store.revision += 1
        store.holder, store.until = self._holder, trio.current_time() + store.lease_s
        self._revision = store.revision
        return self._revision

    async def renew(self) -> bool:
        await self._reach()
        if not self._is_held():
            return False
        self._store.until = trio.current_time() + self._store.lease_s
        return True

    async def release(self) -> None:
        await self._reach()
        if self._is_held():
            self._store.until = 0.0

    async def read(self) -> bytes:
        await self._reach()
        return self._store.text

    async def write(self, text: bytes) -> bool:
        await self._reach()
        if self._is_held():
            self._store.text = text
        return self._is_held()

    def _is_held(self) -> bool:
        return self._store.owner() == self._holder and self._store.revision == self._revision

    async def _reach(self) -> None:
        await trio.sleep(0.001)
        if self._store.away:
            raise StoreUnavailable("the store is away")

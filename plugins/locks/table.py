"""Who has which queue for its group."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs
import structlog

from gantrymq.remoting.bodies import MessageQueue

log = structlog.get_logger("gantrymq.locks")


@attrs.define
class _Lock:
    client_id: str
    taken: float


class LockTable:
    """Locks by group and queue. ``clock`` counts seconds and never steps."""

    def __init__(self, clock: Callable[[], float], expire_after: float, max_locks: int) -> None:
        self._clock = clock
        self._expire_after = expire_after
        self._max_locks = max_locks
        self._locks: dict[tuple[str, MessageQueue], _Lock] = {}

    def __len__(self) -> int:
        return len(self._locks)

    def lock(self, group: str, queues: Iterable[MessageQueue], client_id: str) -> set[MessageQueue]:
        """Give ``client_id`` those queues that are free, expired or its own already; returns them."""
        now = self._clock()
        given = set()
        for queue in queues:
            lock = self._locks.get((group, queue))
            if lock is None and not self._has_room(now):
                continue
            if lock is None or lock.client_id != client_id:
                if lock is not None and now - lock.taken <= self._expire_after:
                    continue
                log.info(
                    "queue_locked",
                    group=group,
                    topic=queue.topic,
                    queue_id=queue.queue_id,
                    client=client_id,
                    before=None if lock is None else lock.client_id,
                )
            self._locks[group, queue] = _Lock(client_id, now)
            given.add(queue)
        return given

    def unlock(self, group: str, queues: Iterable[MessageQueue], client_id: str) -> None:
        """Free those of the queues that ``client_id`` has."""
        for queue in queues:
            lock = self._locks.get((group, queue))
            if lock is not None and lock.client_id == client_id:
                del self._locks[group, queue]
                log.info("queue_unlocked", group=group, topic=queue.topic, queue_id=queue.queue_id, client=client_id)

    def _has_room(self, now: float) -> bool:
        if len(self._locks) >= self._max_locks:
            for key in [key for key, lock in self._locks.items() if now - lock.taken > self._expire_after]:
                del self._locks[key]
            if len(self._locks) >= self._max_locks:
                log.warning("too_many_locks", locks=len(self._locks))
                return False
        return True

"""The lock table: the client that holds each queue for its group."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import islice

import attrs
import structlog

from gantrymq.plugins.locks.config import LocksConfig
from gantrymq.remoting.bodies.queues import MessageQueue
from gantrymq.remoting.names import GROUP_MAX_LENGTH
from gantrymq.remoting.steps import run_steps

log = structlog.get_logger("gantrymq.locks")

UNREGISTERED_MAX = 10_000
"""The most unregistered members that are remembered; beyond it the oldest is removed."""

NAMED_ONCE = 16
"""The most queues in one log event."""
STEP_QUEUES = 128
"""Queues per step, which takes some hundred microseconds."""
LOCK_BYTES = 512
"""The estimated memory of a lock, in bytes, without its names."""
FULL_FOR_S = 1.0


@attrs.define
class _Lock:
    client_id: str
    taken: float


@attrs.define
class _Owner:
    """A client that holds queues of a group. ``lost_at``: the time when the connection of its last lock request
    ended."""

    connection_id: int
    queues: set[MessageQueue] = attrs.field(factory=set)
    lost_at: float | None = None


class LockTable:
    """Locks by group and queue.

    ``clock`` counts seconds and never steps. ``is_member(group, client_id)``: whether the client's heartbeats say that
    it is in the group; a member keeps its queues when its connection ends, for it is here by another one.
    """

    def __init__(self, clock: Callable[[], float], config: LocksConfig, is_member: Callable[[str, str], bool]) -> None:
        self._clock = clock
        self._config = config
        self._is_member = is_member
        self._locks: dict[tuple[str, MessageQueue], _Lock] = {}
        self._owners: dict[tuple[str, str], _Owner] = {}
        self._by_connection: dict[int, set[tuple[str, str]]] = {}
        self._unregistered: dict[tuple[int, str], None] = {}
        self._bytes = 0
        self._full_until = clock()

    def __len__(self) -> int:
        return len(self._locks)

    def lock(self, group: str, queues: Iterable[MessageQueue], client_id: str, connection_id: int) -> set[MessageQueue]:
        """Lock the queues that are free or held by ``client_id`` already; return them.

        A queue is free when it has no owner, when the owner has not renewed its lock in time, or when the owner's
        connection ended that long ago.
        """
        return run_steps(self.lock_in_steps(group, queues, client_id, connection_id))

    def lock_in_steps(
        self, group: str, queues: Iterable[MessageQueue], client_id: str, connection_id: int
    ) -> Generator[None, None, set[MessageQueue]]:
        """As :meth:`lock`; yields after each :data:`STEP_QUEUES` queues, when the table can be used by others."""
        given: set[MessageQueue] = set()
        if self._has_left(group, client_id, connection_id):
            return given
        new: list[MessageQueue] = []
        before: set[str] = set()
        try:
            for some in _parts(queues):
                given |= self._lock_some(group, some, client_id, connection_id, new, before)
                yield
        finally:
            if new:
                log.info(
                    "queues_locked", group=group, client=client_id, count=len(new), queues=_named(new),
                    before=sorted(before)[:NAMED_ONCE],
                )  # fmt: skip
        return given

    def _lock_some(
        self,
        group: str,
        queues: Sequence[MessageQueue],
        client_id: str,
        connection_id: int,
        new: list[MessageQueue],
        before: set[str],
    ) -> set[MessageQueue]:
        """See :meth:`lock`. Adds newly locked queues to ``new``, and their previous holders to ``before``."""
        given: set[MessageQueue] = set()
        now = self._clock()
        is_full = False
        gone = {(group, client_id): False}  # it is here, although its last connection may have ended long ago
        for queue in queues:
            lock = self._locks.get((group, queue))
            if lock is not None and lock.client_id == client_id:
                lock.taken = now
                given.add(queue)
                continue
            if lock is None:
                # If there is no room for one queue of a request, there is none for the next.
                is_full = is_full or not self._has_room(now, gone)
                if is_full:
                    continue
            elif self._is_free(group, lock, now, gone):
                before.add(lock.client_id)
                self._remove(group, queue)
            else:
                continue
            self._locks[group, queue] = _Lock(client_id, now)
            self._bytes += _cost(group, queue, client_id)
            new.append(queue)
            given.add(queue)
        if given:
            self._own((group, client_id), given, connection_id)
        return given

    def unlock(self, group: str, queues: Iterable[MessageQueue], client_id: str) -> None:
        """Unlock those of the queues that ``client_id`` holds."""
        run_steps(self.unlock_in_steps(group, queues, client_id))

    def unlock_in_steps(
        self, group: str, queues: Iterable[MessageQueue], client_id: str
    ) -> Generator[None, None, None]:
        """As :meth:`unlock`; yields after each :data:`STEP_QUEUES` queues, when the table can be used by others."""
        freed: list[MessageQueue] = []
        try:
            for some in _parts(queues):
                for queue in some:
                    lock = self._locks.get((group, queue))
                    if lock is not None and lock.client_id == client_id:
                        self._remove(group, queue)
                        freed.append(queue)
                yield
        finally:
            if freed:
                log.info("queues_unlocked", group=group, client=client_id, count=len(freed), queues=_named(freed))

    def member_left(self, group: str, client_id: str, connection_id: int) -> None:
        """Unlock all queues of a client that has unregistered from the group over this connection.

        A later request of it for queues is given none, until it is a member again: a rebalance that runs while a
        consumer stops sends such requests.
        """
        if len(group) <= GROUP_MAX_LENGTH:  # no client is given queues of another group
            self._unregistered.pop((connection_id, group), None)
            if len(self._unregistered) >= UNREGISTERED_MAX:
                del self._unregistered[next(iter(self._unregistered))]
            self._unregistered[connection_id, group] = None
        owner = self._owners.get((group, client_id))
        if owner is not None:
            queues = list(owner.queues)
            for queue in queues:
                self._remove(group, queue)
            log.info("queues_of_left_member_unlocked", group=group, client=client_id, queues=len(queues))

    def connection_lost(self, connection_id: int) -> None:
        """Let the locks of the connection's clients expire, unless the clients reconnect in time."""
        for key in self._by_connection.pop(connection_id, ()):
            self._owners[key].lost_at = self._clock()

    def _has_left(self, group: str, client_id: str, connection_id: int) -> bool:
        if (connection_id, group) not in self._unregistered:
            return False
        if self._is_member(group, client_id):
            del self._unregistered[connection_id, group]
            return False
        return True

    def _is_free(self, group: str, lock: _Lock, now: float, gone: dict[tuple[str, str], bool]) -> bool:
        """Return whether the queue can be locked. ``gone`` caches the state of owners during one request."""
        if now - lock.taken > self._config.expire_after:
            return True
        key = (group, lock.client_id)
        if key not in gone:
            lost_at = self._owners[key].lost_at
            gone[key] = (
                lost_at is not None
                and now - lost_at >= self._config.free_after_disconnect
                and not self._is_member(group, lock.client_id)
            )
        return gone[key]

    def _own(self, key: tuple[str, str], queues: set[MessageQueue], connection_id: int) -> None:
        owner = self._owners.get(key)
        if owner is None:
            owner = self._owners[key] = _Owner(connection_id)
        elif owner.connection_id != connection_id:
            self._disconnect(key, owner)
            owner.connection_id = connection_id
        owner.lost_at = None
        owner.queues |= queues
        self._by_connection.setdefault(connection_id, set()).add(key)

    def _remove(self, group: str, queue: MessageQueue) -> None:
        lock = self._locks.pop((group, queue), None)
        if lock is not None:
            self._bytes -= _cost(group, queue, lock.client_id)
            key = (group, lock.client_id)
            owner = self._owners[key]
            owner.queues.remove(queue)
            if not owner.queues:
                del self._owners[key]
                self._disconnect(key, owner)

    def _disconnect(self, key: tuple[str, str], owner: _Owner) -> None:
        keys = self._by_connection.get(owner.connection_id)
        if keys is not None:
            keys.discard(key)
            if not keys:
                del self._by_connection[owner.connection_id]

    def _has_room(self, now: float, gone: dict[tuple[str, str], bool]) -> bool:
        if self._is_full() and now >= self._full_until:
            for group, queue in [key for key, lock in self._locks.items() if self._is_free(key[0], lock, now, gone)]:
                self._remove(group, queue)
            if self._is_full():
                # Searching all locks takes long, and none expires so soon.
                self._full_until = now + FULL_FOR_S
                log.warning("too_many_locks", locks=len(self._locks), bytes=self._bytes)
        return not self._is_full()

    def _is_full(self) -> bool:
        return len(self._locks) >= self._config.max_locks or self._bytes >= self._config.max_bytes


def _cost(group: str, queue: MessageQueue, client_id: str) -> int:
    """Return the approximate memory of a lock, in bytes."""
    return LOCK_BYTES + len(group) + len(queue.topic) + len(queue.broker_name) + len(client_id)


def _named(queues: list[MessageQueue]) -> list[str]:
    """Return some of the queues for the log, because a request may have thousands."""
    return [f"{queue.topic}:{queue.queue_id}" for queue in queues[:NAMED_ONCE]]


def _parts(queues: Iterable[MessageQueue]) -> Iterator[list[MessageQueue]]:
    left = iter(queues)
    while some := list(islice(left, STEP_QUEUES)):
        yield some

"""The table of held pulls, by queue and by deadline, without clock and task."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from itertools import count

from gantrymq.kernel.batch import DispatchBatch, Pull, PullBatch
from gantrymq.kernel.network.connection import Connection
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.peers import FairShares

Resume = Callable[[list[Pull]], None]

COMPACT_ABOVE = 4096
"""Deadlines of answered pulls stay in the heap until there are this many."""


class HeldPulls:
    """At most ``limit`` pulls, and ``each`` per address (0: no such limit), for at most ``longest_s`` seconds each.

    At the limit, a pull of the address with the most is answered for an address that has at least two fewer.
    """

    def __init__(self, limit: int, longest_s: float, each: int = 0) -> None:
        self._limit = limit
        self._each = each
        self._shares: FairShares[Pull] = FairShares()
        self._longest_s = longest_s
        self._by_queue: dict[tuple[str, int], dict[Pull, Resume]] = {}
        self._by_connection: dict[Connection, dict[Pull, None]] = {}
        self._deadlines: list[tuple[float, int, Pull]] = []
        self._order = count()
        self._held = 0

    def __len__(self) -> int:
        return self._held

    def hold(self, batch: PullBatch, now: float) -> list[Pull]:
        """Hold the rows; returns those that exceed the limits."""
        refused = []
        for pull in batch.rows:
            connection = pull.request.connection
            if (self._each or self._held >= self._limit) and not self._has_room_for(connection.site):
                refused.append(pull)
                continue
            self._by_queue.setdefault((pull.topic, pull.queue_id), {})[pull] = batch.resume
            self._by_connection.setdefault(connection, {})[pull] = None
            self._shares.add(connection.site, pull)
            heapq.heappush(self._deadlines, (min(pull.deadline, now + self._longest_s), next(self._order), pull))
            self._held += 1
        if len(self._deadlines) > 2 * self._held + COMPACT_ABOVE:
            self._deadlines = [entry for entry in self._deadlines if self._holds(entry[2])]
            heapq.heapify(self._deadlines)
        return refused

    def resume_arrived(self, batch: DispatchBatch) -> None:
        """Run the pulls again whose queue got an entry that passes their filter."""
        by_queue = self._by_queue
        wanted: list[Pull] = []
        for key in batch.queues:
            tag_codes: set[int] | None = None
            for pull in by_queue.get(key, ()):
                if not pull.filter.matches_all and tag_codes is None:
                    tag_codes = batch.tag_codes_of(*key)
                try:
                    is_wanted = pull.filter.matches_all or any(map(pull.filter.matches, tag_codes or ()))
                except RemoteFault:
                    is_wanted = True  # its filter fails again in the read, whose response says so
                if is_wanted:
                    wanted.append(pull)
        self._resume(wanted)

    def resume_expired(self, now: float) -> None:
        """Run the pulls again whose time-out has expired."""
        expired = []
        while self._deadlines and self._deadlines[0][0] <= now:
            pull = heapq.heappop(self._deadlines)[2]
            if self._holds(pull):
                expired.append(pull)
        self._resume(expired)

    def resume_all(self) -> None:
        """Run every pull again."""
        self._resume([pull for queue in self._by_queue.values() for pull in queue])

    def forget(self, connections: Iterable[Connection]) -> None:
        """Drop the pulls of closed connections."""
        for connection in connections:
            for pull in list(self._by_connection.get(connection, ())):
                self._take(pull)

    def _has_room_for(self, site: str) -> bool:
        if self._each and self._shares.count(site) >= self._each:
            return False
        if self._held < self._limit:
            return True
        displaced = self._shares.to_displace(site)
        if displaced is None:
            return False
        self._resume([displaced])
        return self._held < self._limit

    def _holds(self, pull: Pull) -> bool:
        return pull in self._by_queue.get((pull.topic, pull.queue_id), ())

    def _resume(self, pulls: list[Pull]) -> None:
        # Pulls of one processor return to it in one call.
        by_processor: dict[Resume, list[Pull]] = {}
        for pull in pulls:
            by_processor.setdefault(self._take(pull), []).append(pull)
        for resume, rows in by_processor.items():
            resume(rows)

    def _take(self, pull: Pull) -> Resume:
        key = (pull.topic, pull.queue_id)
        queue = self._by_queue[key]
        resume = queue.pop(pull)
        if not queue:
            del self._by_queue[key]
        connection = pull.request.connection
        self._shares.remove(connection.site, pull)
        pulls = self._by_connection[connection]
        del pulls[pull]
        if not pulls:
            del self._by_connection[connection]
        self._held -= 1
        return resume

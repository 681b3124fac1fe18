"""How far each slave's copy of the log has come, and the guarantee that is made of it.

Source: RocketMQ 4.9.7 ``HAService`` (``isSlaveOK``, ``GroupTransferService``) and ``CommitLog.submitReplicaRequest``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs

from gantrymq.kernel.store.log.commitlog import CommitLog
from gantrymq.remoting.codes import ResponseCode


@attrs.define(eq=False)
class Copy:
    """One slave's connection. Offsets are bytes of the log, times seconds of the environment's clock.

    ``start``: from where it is sent the log. ``sent``: up to where. ``acknowledged``: what it says to have; what it
    said first is a claim, only what lies behind ``start`` answers to what it was sent here.
    """

    address: str
    host: str
    since: float
    start: int = -1
    sent: int = 0
    acknowledged: int = 0
    heard_at: float = 0.0
    level_at: float = 0.0
    """Of what time all is there: it had then, or has now, what there was."""
    stopped_at: int = -1
    """What the master cannot read and give to the slave begins here; -1 while it is given everything."""
    _mark: tuple[int, float] = (0, 0.0)
    """Where the log ended at some moment since, and that moment."""

    def look(self, end: int, now: float) -> None:
        """Bring :attr:`level_at` up to date; the log ends at ``end``. To be called whenever the slave was heard."""
        if self.acknowledged >= self._mark[0]:
            self.level_at = max(self.level_at, self._mark[1])
            self._mark = (end, now)
        if self.acknowledged >= end:
            self.level_at = now

    @property
    def proven(self) -> int:
        """Up to where it has certainly taken what was sent to it; 0 before it has taken anything."""
        return self.acknowledged if self.acknowledged > self.start >= 0 else 0


class Copies:
    """The connected slaves. ``moved`` is called when the guarantee may reach further."""

    def __init__(self, moved: Callable[[], None]) -> None:
        self._copies: dict[Copy, None] = {}
        self._moved = moved
        self.waited_for = False
        """Whether a guarantee is made of the copies: else nothing has moved for anybody."""

    def __iter__(self) -> Iterator[Copy]:
        return iter(list(self._copies))

    def __len__(self) -> int:
        return len(self._copies)

    def moved(self) -> None:
        """The guarantee may reach further."""
        if self.waited_for:
            self._moved()

    def add(self, copy: Copy) -> None:
        """A slave is there."""
        self._copies[copy] = None

    def remove(self, copy: Copy) -> None:
        """It has gone."""
        self._copies.pop(copy, None)
        self.moved()

    def acknowledge(self, copy: Copy, offset: int, now: float) -> None:
        """The slave says that it has everything up to ``offset``."""
        copy.acknowledged = max(copy.acknowledged, offset)
        copy.heard_at = now
        self.moved()

    def proven(self, count: int) -> int:
        """The offset that ``count`` slaves have proven to have; 0 when there are not so many.

        Those of one machine count once: two connections of one slave are no two copies, nor are two slaves that are
        lost together.
        """
        hosts: dict[str, int] = {}
        for copy in self._copies:
            hosts[copy.host] = max(hosts.get(copy.host, 0), copy.proven)
        return sorted(hosts.values(), reverse=True)[count - 1] if len(hosts) >= count else 0

    def near(self, end: int, distance: int) -> int:
        """How many machines have a slave that is less than ``distance`` bytes behind ``end``, and can come nearer."""
        going = (copy for copy in self._copies if copy.start >= 0 > copy.stopped_at)
        return len({copy.host for copy in going if end - copy.acknowledged < distance})


class CopiedGate:
    """What ``count`` slaves have may be acknowledged. Without slaves nobody waits: SLAVE_NOT_AVAILABLE."""

    def __init__(
        self,
        log: CommitLog,
        copies: Copies,
        count: int,
        timeout_s: float,
        fall_behind_max: int,
        has_lease: Callable[[], bool] = lambda: True,
    ) -> None:
        """``has_lease``: whether this broker may believe that it is the master; else nothing is confirmed."""
        self._has_lease = has_lease
        self._log = log
        self._copies = copies
        self._count = count
        self._timeout_s = timeout_s
        self._fall_behind_max = fall_behind_max
        copies.waited_for = True
        self._watermark = log.end
        """What lies before was answered in another life of the broker."""

    @property
    def _available(self) -> bool:
        return self._has_lease() and self._copies.near(self._log.end, self._fall_behind_max) >= self._count

    @property
    def watermark(self) -> int:
        """The offset that enough slaves have, or that was given up."""
        proven = self._copies.proven(self._count)
        if proven > self._watermark and self._has_lease():
            self._watermark = proven
        return self._watermark

    @property
    def timeout_s(self) -> float:
        """How long a slave is waited for; not at all where there are not enough."""
        return self._timeout_s if self._available else 0.0

    @property
    def late_code(self) -> int:
        """FLUSH_SLAVE_TIMEOUT while there are slaves, else SLAVE_NOT_AVAILABLE."""
        return int(ResponseCode.FLUSH_SLAVE_TIMEOUT if self._available else ResponseCode.SLAVE_NOT_AVAILABLE)

    @property
    def late_remark(self) -> str:
        """The same in words."""
        if self._available:
            return "no slave has confirmed the message in time; the master has stored it"
        return "too few slaves are there, or they are too far behind; the master has stored the message"

    def on_timeout(self, end: int) -> None:
        """What was answered so is readable."""
        self._watermark = max(self._watermark, end)
        self._copies.moved()

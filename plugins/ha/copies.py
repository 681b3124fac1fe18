"""The replication progress of each slave, and the guarantee for senders that depends on it.

Source: RocketMQ 4.9.7 ``HAService`` (``isSlaveOK``, ``GroupTransferService``) and ``CommitLog.submitReplicaRequest``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import attrs

from gantrymq.kernel.store.log.commitlog import CommitLog
from gantrymq.remoting.codes import ResponseCode


@attrs.define(eq=False)
class Copy:
    """One slave's connection. Offsets are bytes of the log, times seconds of the environment's clock.

    ``start``: the log offset at which sending began. ``sent``: the end of the data that was sent. ``acknowledged``: the
    offset that the slave reports. Its first report is not verified; only reports above ``start`` acknowledge data that
    was sent on this connection.
    """

    address: str
    host: str
    since: float
    start: int = -1
    sent: int = 0
    acknowledged: int = 0
    heard_at: float = 0.0
    level_at: float = 0.0
    """The last time at which the copy was known to be complete."""
    stopped_at: int = -1
    """The offset of the first data that the master cannot read and send; -1 if it can read everything."""
    label: str = ""
    """The slave's host, with a number if the host has several: unlike the address, the same after a reconnect."""
    _mark: tuple[int, float] = (0, 0.0)
    """A log end and the time at which it was taken."""

    def update_level(self, end: int, now: float) -> None:
        """Update :attr:`level_at` for a log that ends at ``end``. Call it after each message of the slave."""
        if self.acknowledged >= self._mark[0]:
            self.level_at = max(self.level_at, self._mark[1])
            self._mark = (end, now)
        if self.acknowledged >= end:
            self.level_at = now

    @property
    def proven(self) -> int:
        """The offset up to which the slave has acknowledged data of this connection; 0 if it has not yet."""
        return self.acknowledged if self.acknowledged > self.start >= 0 else 0


class Copies:
    """The connected slaves. ``moved`` is called when the watermark may have advanced."""

    def __init__(self, moved: Callable[[], None]) -> None:
        self._copies: dict[Copy, None] = {}
        self._moved = moved
        self.waited_for = False
        """Whether acknowledgments depend on slaves; otherwise progress wakes nothing."""

    def __iter__(self) -> Iterator[Copy]:
        return iter(list(self._copies))

    def __len__(self) -> int:
        return len(self._copies)

    def moved(self) -> None:
        """Wake the gate if acknowledgments depend on slaves: the watermark may have advanced."""
        if self.waited_for:
            self._moved()

    def add(self, copy: Copy) -> None:
        """Add a slave that has connected, and set its label."""
        taken = {each.label for each in self._copies}
        copy.label = next(label for label in _labels(copy.host) if label not in taken)
        self._copies[copy] = None

    def remove(self, copy: Copy) -> None:
        """Remove a slave that has disconnected."""
        self._copies.pop(copy, None)
        self.moved()

    def acknowledge(self, copy: Copy, offset: int, now: float) -> None:
        """Record that the slave has stored the log up to ``offset``, reported at ``now`` (seconds)."""
        copy.acknowledged = max(copy.acknowledged, offset)
        copy.heard_at = now
        self.moved()

    def proven(self, wanted: int) -> int:
        """Return the offset that ``wanted`` slaves have acknowledged; 0 if there are fewer slaves.

        Slaves on one machine count once, because two connections of one slave, or two slaves that are lost together,
        are not two copies.
        """
        hosts: dict[str, int] = {}
        for copy in self._copies:
            hosts[copy.host] = max(hosts.get(copy.host, 0), copy.proven)
        return sorted(hosts.values(), reverse=True)[wanted - 1] if len(hosts) >= wanted else 0

    def near(self, end: int, distance: int) -> int:
        """Return how many machines have a slave that can catch up and lags less than ``distance`` bytes behind
        ``end``."""
        going = (copy for copy in self._copies if copy.start >= 0 > copy.stopped_at)
        return len({copy.host for copy in going if end - copy.acknowledged < distance})


def _labels(host: str) -> Iterator[str]:
    yield host
    for number in count(2):
        yield f"{host}#{number}"


class CopiedGate:
    """Gate for records that ``count`` slaves must have. If too few are connected, it does not wait:
    SLAVE_NOT_AVAILABLE."""

    def __init__(
        self,
        log: CommitLog,
        copies: Copies,
        count: int,
        timeout_s: float,
        fall_behind_max: int,
        has_lease: Callable[[], bool] = lambda: True,
    ) -> None:
        """``has_lease``: whether this broker may act as the master; otherwise nothing is acknowledged."""
        self._has_lease = has_lease
        self._log = log
        self._copies = copies
        self._count = count
        self._timeout_s = timeout_s
        self._fall_behind_max = fall_behind_max
        copies.waited_for = True
        self._watermark = log.end
        """Records before this offset were answered before the broker's start."""

    @property
    def _available(self) -> bool:
        return self._has_lease() and self._copies.near(self._log.end, self._fall_behind_max) >= self._count

    @property
    def watermark(self) -> int:
        """The offset that enough slaves have acknowledged, or for which the wait timed out."""
        proven = self._copies.proven(self._count)
        if proven > self._watermark and self._has_lease():
            self._watermark = proven
        return self._watermark

    @property
    def timeout_s(self) -> float:
        """How long to wait for slaves; 0 if there are too few."""
        return self._timeout_s if self._available else 0.0

    @property
    def late_code(self) -> int:
        """FLUSH_SLAVE_TIMEOUT while there are slaves, else SLAVE_NOT_AVAILABLE."""
        return int(ResponseCode.FLUSH_SLAVE_TIMEOUT if self._available else ResponseCode.SLAVE_NOT_AVAILABLE)

    @property
    def late_remark(self) -> str:
        """The remark for the late code."""
        if self._available:
            return "no slave has confirmed the message in time; the master has stored it"
        return "too few slaves are connected, or they lag too far behind; the master has stored the message"

    def on_timeout(self, end: int) -> None:
        """Records whose wait timed out become readable."""
        self._watermark = max(self._watermark, end)
        self._copies.moved()

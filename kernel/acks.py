"""Release responses when every gate has passed the end of their batch.

All guarantees use one mechanism: a gate is a watermark in the log. A batch is done when the slowest gate has passed its
end. If a gate is late, the batch is done with the gate's code ("stored, but not guaranteed"). Group commit follows from
this: the next flush releases everything that arrived during the previous one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import attrs

from gantrymq.kernel.batch import AppendBatch
from gantrymq.remoting.codes import ResponseCode

if TYPE_CHECKING:
    from gantrymq.kernel.store.log.commitlog import CommitLog


class AckGate(Protocol):
    """A guarantee that an acknowledgment waits for. After ``timeout_s`` seconds the sender gets ``late_code``."""

    @property
    def timeout_s(self) -> float: ...

    @property
    def late_code(self) -> int: ...

    @property
    def late_remark(self) -> str: ...

    @property
    def watermark(self) -> int:
        """The log offset up to which the guarantee holds; never decreases."""


@runtime_checkable
class DegradableGate(AckGate, Protocol):
    """A gate that gives way after its time-out: the records are then readable, without its guarantee.

    So it does not delay later batches. A ``timeout_s`` of 0 means that the guarantee is unavailable at the moment:
    batches are answered at once.
    """

    def on_timeout(self, end: int) -> None:
        """Everything up to ``end`` was answered with ``late_code``; the watermark must then be at least ``end``."""


class DurableGate:
    """Records may be acknowledged and read when they are durable. The flush strategy wakes the broker after each
    flush."""

    late_code = int(ResponseCode.FLUSH_DISK_TIMEOUT)
    late_remark = "the disk did not flush in time; the message is stored but not promised"

    def __init__(self, log: CommitLog, timeout_s: float = 5.0) -> None:
        self._log = log
        self.timeout_s = timeout_s

    @property
    def watermark(self) -> int:
        """The log's durable end."""
        return self._log.durable


@attrs.define
class AckedBatch:
    """A batch in which each row has its final status."""

    messages: AppendBatch
    """The batch; read-only."""
    seconds: float
    """From the moment when the broker took the batch until its responses were sent."""

    def __len__(self) -> int:
        return len(self.messages)


class Acks:
    """The batches that wait for the gates, in log order."""

    def __init__(self, gates: list[AckGate], observe: Callable[[AckedBatch], object] | None = None) -> None:
        """``observe`` gets each batch once, in :meth:`report` after its ``done``."""
        self._gates = gates
        self._observe = observe
        self._degradable = [gate for gate in gates if isinstance(gate, DegradableGate)]
        self._waiting: deque[tuple[float, AppendBatch, float | None]] = deque()
        """Since when each batch waits, the batch, and when the broker took it (None if it is answered already)."""
        self._unreported: list[tuple[AppendBatch, float]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def expires_now(self) -> bool:
        """Whether a degradable gate is unavailable now, so that :meth:`expire` should be called at once."""
        return bool(self._waiting) and any(gate.timeout_s <= 0 for gate in self._degradable)

    def committed(self, log_end: int) -> int:
        """Return the log offset that every gate has passed; without gates, the log's end."""
        committed = log_end
        for gate in self._gates:
            watermark = gate.watermark
            if watermark < committed:
                committed = watermark
        return committed

    def add(self, batch: AppendBatch, now: float, taken_at: float = 0.0) -> None:
        """Let ``batch`` wait, unless it needs no wait: no gate, no live or settled row, no row that asks for the
        guarantees. Settled rows of a batch of which nothing is stored wait for the log's end at its append."""
        if not self._gates or (batch.refused == len(batch) and not batch.settled) or not batch.waited_for:
            self._finish(batch, taken_at)
            if self._degradable and batch.refused < len(batch):
                self._waiting.append((now, batch, None))  # no batch waits, but a gate may have to give way
        else:
            self._waiting.append((now, batch, taken_at))

    def oldest(self) -> float | None:
        """When the first waiting batch began to wait, on the clock of ``now``; None if no batch waits."""
        return self._waiting[0][0] if self._waiting else None

    def release(self, committed: int) -> None:
        """Finish every batch that ends at or below ``committed``."""
        waiting = self._waiting
        while waiting and waiting[0][1].end <= committed:
            _, batch, taken_at = waiting.popleft()
            if taken_at is not None:
                self._finish(batch, taken_at)

    def expire(self, now: float) -> None:
        """Finish the batches for which a gate is late, with that gate's code in the rows that wait."""
        while self._waiting:
            since, batch, taken_at = self._waiting[0]
            missing = [gate for gate in self._gates if gate.watermark < batch.end]
            late = [gate for gate in missing if now - since >= gate.timeout_s]
            if not late or (len(late) < len(missing) and all(gate in self._degradable for gate in late)):
                return  # a batch that gave up waiting for slaves may still become durable in time
            self._waiting.popleft()
            for row in batch.live:
                if batch.waits[row]:
                    batch.statuses[row] = late[0].late_code
                    batch.remarks[row] = late[0].late_remark
            for gate in self._degradable:
                gate.on_timeout(batch.end)
            if taken_at is not None:
                self._finish(batch, taken_at)

    def _finish(self, batch: AppendBatch, taken_at: float) -> None:
        done, batch.done = batch.done, None
        if done is not None:
            done(batch)
        if self._observe is not None:
            self._unreported.append((batch, taken_at))

    def report(self, now: float) -> None:
        """Call ``observe`` for the batches that were finished since the last call; ``now`` is when their responses were
        sent. So no sender waits for an observer."""
        if self._observe is not None and self._unreported:
            unreported, self._unreported = self._unreported, []
            for batch, taken_at in unreported:
                self._observe(AckedBatch(batch, now - taken_at))


class FlushStrategy(Protocol):
    """Decides when to flush. It never retries a flush: a failed flush poisons the log, and ``run`` raises."""

    def appended(self, end: int) -> None:
        """The log now ends at ``end``. Called in the sweep once per batch.

        It must not block, except for a moment while ``broker.serves_one_client``.
        """

    async def run(self) -> None:
        """Flush until cancelled; after cancellation, flush everything that was appended before returning."""

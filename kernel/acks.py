"""Let replies go when every gate has passed their end offset.

One mechanism for every guarantee: a gate is a watermark in the log. A batch is done when the slowest gate has passed
its end; a late one is done with the gate's code ("stored, but not promised"). Group commit falls out of it: whatever
arrived while one flush ran is released by the next.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol, runtime_checkable

from gantrymq.kernel.batch import AppendBatch


class AckGate(Protocol):
    """A guarantee that an acknowledgement waits for. ``timeout_s`` seconds late, the sender gets ``late_code``."""

    @property
    def timeout_s(self) -> float: ...

    @property
    def late_code(self) -> int: ...

    @property
    def late_remark(self) -> str: ...

    @property
    def watermark(self) -> int:
        """The log offset up to which the guarantee holds; never falls."""


@runtime_checkable
class DegradableGate(AckGate, Protocol):
    """A gate that lets go what it kept too long: that is then readable, though not promised.

    Nothing that comes behind is held up by it. With a ``timeout_s`` of 0 there is no hope at the moment: batches are
    answered at once.
    """

    def on_timeout(self, end: int) -> None:
        """All that waited up to ``end`` was answered with ``late_code``: the watermark is not below it any more."""


class Acks:
    """The batches that wait for the gates, in log order."""

    def __init__(self, gates: list[AckGate]) -> None:
        self._gates = gates
        self._degradable = [gate for gate in gates if isinstance(gate, DegradableGate)]
        self._waiting: deque[tuple[float, AppendBatch]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def expires_now(self) -> bool:
        """Whether a forgiving gate has no hope for what waits: :meth:`expire` should not be waited for."""
        return bool(self._waiting) and any(gate.timeout_s <= 0 for gate in self._degradable)

    def committed(self, log_end: int) -> int:
        """The end of what every gate has passed; without gates, the log's end."""
        committed = log_end
        for gate in self._gates:
            watermark = gate.watermark
            if watermark < committed:
                committed = watermark
        return committed

    def add(self, batch: AppendBatch, now: float) -> None:
        """Wait with ``batch``, unless there is nothing to wait for: no gate, no live row, no row that cares."""
        if not self._gates or batch.refused == len(batch) or not batch.waited_for:
            _finish(batch)
            if self._degradable and batch.refused < len(batch):
                self._waiting.append((now, batch))  # nobody waits, but a gate may have to let go
        else:
            self._waiting.append((now, batch))

    def oldest(self) -> float | None:
        """Since when the first batch waits, as ``now`` was; None when none does."""
        return self._waiting[0][0] if self._waiting else None

    def release(self, committed: int) -> None:
        """Finish every batch that ends at or below ``committed``."""
        waiting = self._waiting
        while waiting and waiting[0][1].end <= committed:
            _finish(waiting.popleft()[1])

    def expire(self, now: float) -> None:
        """Finish the batches that a gate kept too long, with that gate's code in the rows that wait."""
        while self._waiting:
            since, batch = self._waiting[0]
            missing = [gate for gate in self._gates if gate.watermark < batch.end]
            late = [gate for gate in missing if now - since >= gate.timeout_s]
            if not late or (len(late) < len(missing) and all(gate in self._degradable for gate in late)):
                return  # what is given up, as far as copies go, may still become durable in time
            self._waiting.popleft()
            for row in batch.live:
                if batch.waits[row]:
                    batch.statuses[row] = late[0].late_code
                    batch.remarks[row] = late[0].late_remark
            for gate in self._degradable:
                gate.on_timeout(batch.end)
            _finish(batch)


def _finish(batch: AppendBatch) -> None:
    done, batch.done = batch.done, None
    if done is not None:
        done(batch)


class FlushStrategy(Protocol):
    """Owns the cadence of fsync. It never retries one: a failed flush poisons the log and ends ``run`` by raising."""

    def appended(self, end: int) -> None:
        """The log now ends at ``end``; called in the sweep once a batch, must not block."""

    async def run(self) -> None:
        """Flush until cancelled; on cancellation everything appended is flushed before it returns."""

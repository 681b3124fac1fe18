"""The progress of a run: what its finished tasks have written, and what is not exported yet."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

import attrs

from gantrymq.spark.errors import SparkError
from gantrymq.spark.exports.destination import Destination
from gantrymq.spark.exports.manifest import Plan, QueueKey, count
from gantrymq.spark.wire import Queue, Wire

LAG_SECONDS = 5.0
"""The interval at which the brokers are asked for new messages, in seconds."""


@attrs.frozen
class ExportProgress:
    """The progress of a run: finished and all tasks, written and all messages; ``bytes`` of finished files.

    ``lag`` counts the messages in the queues that are not exported yet: those of the run that are left, and those that
    have come since it began.
    """

    tasks: int
    tasks_total: int
    rows: int
    rows_total: int
    bytes: int
    lag: int


Progress = Callable[[ExportProgress], None]
"""Called now and then while a run writes, and at the end of its last task."""


class NewMessages:
    """Counts the messages behind the ends that a run has planned."""

    def __init__(self, wire: Wire, queues: Iterable[Queue], ends: Mapping[QueueKey, int]) -> None:
        self._wire, self._queues, self._ends = wire, list(queues), ends
        self._count = 0
        self._asked = time.monotonic()

    def count(self) -> int:
        """Their number, as of at most some seconds ago."""
        if time.monotonic() - self._asked >= LAG_SECONDS:
            with suppress(SparkError):  # tasks wait for a broker that does not answer, or fail with the reason
                self._count = sum(map(self._behind_end, self._queues))
            self._asked = time.monotonic()
        return self._count

    def _behind_end(self, queue: Queue) -> int:
        end = self._ends.get((queue.topic, queue.broker, queue.queue_id))
        return 0 if end is None else max(self._wire.find_bounds(queue)[1] - end, 0)


class Measure:
    """Measures the run of ``plan`` while it writes. ``queues`` are those of the plan, with their present addresses."""

    def __init__(self, destination: Destination, plan: Plan, wire: Wire, queues: Sequence[Queue]) -> None:
        self._destination, self._plan = destination, plan
        self._seen: set[int] = set()
        self._rows = self._bytes = 0
        self._new_messages = NewMessages(wire, queues, {span.key: span.end for span in plan.ends})

    def look(self, rows_begun: int = 0) -> ExportProgress:
        """Return the progress; ``rows_begun`` are rows of tasks that are not done."""
        for task in self._destination.finished(self._plan) - self._seen:
            self._add(task)
        total = count(self._plan.tasks)
        rows = min(self._rows + rows_begun, total)
        return ExportProgress(
            len(self._seen), len(self._plan.tasks), rows, total, self._bytes, total - rows + self._new_messages.count()
        )

    def _add(self, task: int) -> None:
        result = self._destination.read_result(self._plan, task)
        if result is not None:
            self._seen.add(task)
            self._rows += self._plan.tasks[task].rows
            self._bytes += sum(file.bytes for file in result.files)

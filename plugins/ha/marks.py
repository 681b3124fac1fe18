"""How far delay levels and transactions were at earlier ends of the log, in ``config/ha-progress.json``.

When the log is cut at the return of a former master, deliveries are cut off that its positions count. It adopts the
positions of the new master later; if it is promoted before that, it would never deliver these messages. So it continues
at the newest positions that count nothing behind the log's end. The timer does the same with the marks in its
checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import attrs
import structlog

from gantrymq.kernel.store.state_file import load_state
from gantrymq.remoting.bodies.offsets import DelayOffsetSerializeWrapper
from gantrymq.remoting.names import TRANS_GROUP

if TYPE_CHECKING:
    from gantrymq.kernel.env import Env
    from gantrymq.plugins.interfaces import ConsumerOffsets, LevelPositions

log = structlog.get_logger("gantrymq.ha")

MARKS_FILE: Final = "config/ha-progress.json"
MARKS_MAX: Final = 64
"""The most marks. Of the older ones every second one is dropped when there are more."""


@attrs.frozen
class Mark:
    """The log before ``log_end`` has everything that the positions of the ``levels`` and the progress of
    ``transactions``, by topic and queue, count. It is true until the log is cut before that offset."""

    log_end: int
    levels: Mapping[int, int]
    transactions: Mapping[str, Mapping[int, int]]


def decode_marks(data: bytes) -> list[Mark]:
    """Return the marks in the file ``data``. ``ValueError`` if it is invalid."""
    try:
        return [
            Mark(
                int(said["logEnd"]),
                {int(level): int(position) for level, position in said["levels"].items()},
                {
                    topic: {int(queue_id): int(offset) for queue_id, offset in queues.items()}
                    for topic, queues in said["transactions"].items()
                },
            )
            for said in json.loads(data)["marks"]
        ]
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{error!r:.200}") from None


class ProgressMarks:
    """The marks of this broker, the newest one last."""

    def __init__(self, env: Env, root: str) -> None:
        """:class:`StartError` if neither the file nor its ``.bak`` can be read."""
        self._path = f"{root}/{MARKS_FILE}"
        self._marks = load_state(env, self._path, decode_marks) or []
        self._is_changed = False

    def add(self, log_end: int, levels: LevelPositions | None, offsets: ConsumerOffsets | None) -> None:
        """Add the current progress, which counts nothing behind ``log_end``."""
        positions = {} if levels is None else DelayOffsetSerializeWrapper.from_bytes(levels.report()).offset_table
        topics = [] if offsets is None else offsets.topics_of(TRANS_GROUP)
        transactions = {} if offsets is None else {topic: offsets.queues_of(TRANS_GROUP, topic) for topic in topics}
        mark = Mark(log_end, dict(positions), {topic: dict(queues) for topic, queues in transactions.items()})
        newest = self._marks[-1] if self._marks else Mark(0, {}, {})
        if (mark.levels, mark.transactions) == (newest.levels, newest.transactions) and newest.log_end <= log_end:
            return  # the older one says the same, and is true for longer
        self._marks = [older for older in self._marks if older.log_end <= log_end] + [mark]
        if len(self._marks) > MARKS_MAX:
            del self._marks[1 : MARKS_MAX // 2 : 2]
        self._is_changed = True

    def set_back(
        self, log_end: int, levels: LevelPositions | None, offsets: ConsumerOffsets | None, *, is_cut: bool
    ) -> None:
        """Set the progress back to that of the newest mark that is true of a log that ends at ``log_end``, and to the
        beginning of the queues if there is none. Does nothing if the log was not cut.

        ``is_cut``: this start has cut it. It may also have lost its end in a crash.
        """
        if not is_cut and (not self._marks or self._marks[-1].log_end <= log_end):
            return
        self._is_changed = bool(self._marks)
        self._marks = [mark for mark in self._marks if mark.log_end <= log_end]
        mark = self._marks[-1] if self._marks else Mark(0, {}, {})
        log.warning("progress_set_back", offset=log_end, to=mark.log_end)
        if levels is not None:
            levels.set_back(mark.levels)
        for topic in [] if offsets is None else offsets.topics_of(TRANS_GROUP):
            assert offsets is not None
            known = mark.transactions.get(topic, {})
            for queue_id, offset in list(offsets.queues_of(TRANS_GROUP, topic).items()):
                if offset > known.get(queue_id, 0):
                    offsets.commit(TRANS_GROUP, topic, queue_id, known.get(queue_id, 0))

    def changes(self) -> dict[str, bytes] | None:
        """Return the file if it has changed since the last call."""
        if not self._is_changed:
            return None
        self._is_changed = False
        said = [
            {"logEnd": mark.log_end, "levels": mark.levels, "transactions": mark.transactions} for mark in self._marks
        ]
        return {self._path: json.dumps({"marks": said}).encode()}

"""What the filters of a query leave of a read: the queues and offsets that can have matching messages.

A selection only leaves out what cannot match. Spark applies every filter again to the rows, so a selection that is too
wide costs time and never a wrong row.
"""

from __future__ import annotations

from collections.abc import Collection

import attrs

from gantrymq.spark.ranges import QueueRange
from gantrymq.spark.wire import Queue

_NUMBERS = {"queueId": "queue_id", "queueOffset": "offset"}
_NAMES = ("topic", "broker")
_LOWEST, _HIGHEST = -(2**63), 2**63 - 1


@attrs.define
class Selection:
    """The AND of conditions. Columns are those of the data source; conditions on other columns select nothing less."""

    _lowest: dict[str, int] = attrs.field(factory=dict)
    _highest: dict[str, int] = attrs.field(factory=dict)
    _allowed: dict[str, frozenset[str]] = attrs.field(factory=dict)

    def at_least(self, column: str, value: object) -> None:
        """``column >= value``."""
        if column in _NUMBERS and isinstance(value, int):
            self._lowest[column] = max(value, self._lowest.get(column, _LOWEST))

    def at_most(self, column: str, value: object) -> None:
        """``column <= value``."""
        if column in _NUMBERS and isinstance(value, int):
            self._highest[column] = min(value, self._highest.get(column, _HIGHEST))

    def one_of(self, column: str, values: Collection[object]) -> None:
        """``column`` is one of ``values``; null never matches."""
        numbers = [value for value in values if isinstance(value, int)]
        if column in _NAMES:
            names = frozenset(value for value in values if isinstance(value, str))
            self._allowed[column] = names & self._allowed.get(column, names)
        elif column in _NUMBERS:
            self.at_least(column, min(numbers, default=_HIGHEST))
            self.at_most(column, max(numbers, default=_LOWEST))

    def cut(self, item: QueueRange) -> QueueRange:
        """The part of ``item`` that can have a matching message; empty if there is none."""
        if not self._has_queue(item.queue):
            return QueueRange(item.queue, item.start, item.start)
        start = min(max(item.start, self._lowest.get("queueOffset", _LOWEST)), item.end)
        end = max(min(item.end, self._highest.get("queueOffset", _HIGHEST) + 1), start)
        return QueueRange(item.queue, start, end)

    def _has_queue(self, queue: Queue) -> bool:
        names = {"topic": queue.topic, "broker": queue.broker}
        if any(names[column] not in allowed for column, allowed in self._allowed.items()):
            return False
        return self._lowest.get("queueId", _LOWEST) <= queue.queue_id <= self._highest.get("queueId", _HIGHEST)

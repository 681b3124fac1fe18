"""What the filters of a query leave of a read: the queues, offsets, times and tags that can have matching messages.

A selection only leaves out what cannot match. Spark applies every filter again to the rows, so a selection that is too
wide costs time and never a wrong row.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime, timedelta

import attrs

from gantrymq.remoting.bodies.clients import SubscriptionData
from gantrymq.spark.errors import SparkError
from gantrymq.spark.ranges import QueueRange
from gantrymq.spark.times import find_first_since
from gantrymq.spark.wire import Queue, Wire

_NUMBERS = {"queueId": "queue_id", "queueOffset": "offset"}
_NAMES = ("topic", "broker")
_TIME = "storeTimestamp"
"""Only this time is in the order of the offsets, and even so only as far as the brokers' clocks are never set back."""
_TAGS = "tags"
TAGS_MAX = 100
"""The most tags that the broker is asked to filter by."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_LOWEST, _HIGHEST = -(2**63), 2**63 - 1


@attrs.define
class Selection:
    """The AND of conditions. Columns are those of the data source; conditions on other columns select nothing less.

    Times are of the column ``storeTimestamp``, in milliseconds.
    """

    _lowest: dict[str, int] = attrs.field(factory=dict)
    _highest: dict[str, int] = attrs.field(factory=dict)
    _allowed: dict[str, frozenset[str]] = attrs.field(factory=dict)

    def at_least(self, column: str, value: object) -> None:
        """``column >= value``."""
        number = _to_number(column, value)
        if number is not None:
            self._lowest[column] = max(number, self._lowest.get(column, _LOWEST))

    def at_most(self, column: str, value: object) -> None:
        """``column <= value``."""
        number = _to_number(column, value)
        if number is not None:
            self._highest[column] = min(number, self._highest.get(column, _HIGHEST))

    def one_of(self, column: str, values: Collection[object]) -> None:
        """``column`` is one of ``values``; null never matches."""
        if column in _NAMES or (column == _TAGS and None not in values):
            names = frozenset(value for value in values if isinstance(value, str))
            self._allowed[column] = names & self._allowed.get(column, names)
        elif column in _NUMBERS or column == _TIME:
            numbers = [number for value in values if (number := _to_number(column, value)) is not None]
            if len(numbers) < sum(value is not None for value in values):
                return  # a value of another type: no conclusion
            self._lowest[column] = max(min(numbers, default=_HIGHEST), self._lowest.get(column, _LOWEST))
            self._highest[column] = min(max(numbers, default=_LOWEST), self._highest.get(column, _HIGHEST))

    @property
    def subscription(self) -> SubscriptionData | None:
        """What lets the broker leave out messages with other tags; None if it cannot.

        Brokers compare hashes and split an expression at ``||``, so some messages with other tags stay, and tags that
        an expression cannot name are not filtered by.
        """
        tags = self._allowed.get(_TAGS, frozenset())
        if not 0 < len(tags) <= TAGS_MAX or any(tag != tag.strip() or tag in ("", "*") or "|" in tag for tag in tags):
            return None
        return SubscriptionData.for_tags("", " || ".join(sorted(tags)))

    def cut_by_time(self, item: QueueRange, wire: Wire, tolerance_seconds: float | None) -> QueueRange:
        """The part of ``item`` that can have a matching store time.

        It is exact if the clocks of the queue's brokers were never set back by more than ``tolerance_seconds``; None:
        they may have been set back by any time, so nothing is left out.

        Asks the broker. Where it does not answer, the range stays as it is.
        """
        if tolerance_seconds is None or not item.rows:
            return item
        tolerance = round(tolerance_seconds * 1000)
        start, end = item.start, item.end
        try:
            if _TIME in self._lowest:
                # The message before the found one is older than the bound by more than the tolerance, so all before it
                # are older than the bound.
                first = _clamp(self._lowest[_TIME] - tolerance)
                found = find_first_since(wire, item.queue, first, start, end)
                start = end if found is None else found
            if _TIME in self._highest:
                first = _clamp(self._highest[_TIME] + tolerance + 1)
                found = find_first_since(wire, item.queue, first, start, end)
                end = end if found is None else found
        except SparkError:
            return item
        return QueueRange(item.queue, start, end)

    def cut(self, item: QueueRange) -> QueueRange:
        """The part of ``item`` that can have a matching message; empty if there is none."""
        if not self._has_queue(item.queue):
            return QueueRange(item.queue, item.start, item.start)
        start = min(max(item.start, self._lowest.get("queueOffset", _LOWEST)), item.end)
        end = max(min(item.end, self._highest.get("queueOffset", _HIGHEST) + 1), start)
        return QueueRange(item.queue, start, end)

    def _has_queue(self, queue: Queue) -> bool:
        names = {"topic": queue.topic, "broker": queue.broker}
        if any(name not in self._allowed.get(column, (name,)) for column, name in names.items()):
            return False
        return self._lowest.get("queueId", _LOWEST) <= queue.queue_id <= self._highest.get("queueId", _HIGHEST)


def _to_number(column: str, value: object) -> int | None:
    """``value`` as a number that ``column`` is compared with: times are whole milliseconds, rounded down."""
    if column in _NUMBERS and isinstance(value, int):
        return value
    if column == _TIME and isinstance(value, datetime) and value.tzinfo is not None:
        return (value - _EPOCH) // _MILLISECOND
    return None


def _clamp(millis: int) -> int:
    return min(max(millis, 0), 2**53)

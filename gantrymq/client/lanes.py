"""Give out the messages of a queue in order, the next ones only when those before are settled. No I/O.

:class:`Lane` keeps the order of the whole queue, :class:`KeyLane` that of each order key.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Sequence
from typing import Generic, TypeVar

from gantrymq.message import DeliveredRecord
from gantrymq.remoting.properties import SHARDING_KEY

R = TypeVar("R", bound=DeliveredRecord)


class Lane(Generic[R]):
    """The messages of one queue that were fetched and not settled.

    ``offer`` is called with the lane when :meth:`take` has something; ``is_held`` tells whether the queue is this
    member's still; ``drained`` is called when nothing is in work any more after :meth:`close`.
    """

    def __init__(self, offer: Callable[[Lane[R]], None], is_held: Callable[[], bool]) -> None:
        self._offer = offer
        self._is_held = is_held
        self._waiting: deque[R] = deque()
        self._in_work: dict[int, R] = {}
        self._offered = False
        self._suspended = False
        self._closed = False
        self.drained: Callable[[], None] | None = None

    @property
    def in_work(self) -> int:
        """Messages that the application has and has not settled."""
        return len(self._in_work)

    def add(self, records: Sequence[R]) -> None:
        """More messages, behind those that wait."""
        if not self._closed:
            self._waiting.extend(records)
            self._announce()

    def take(self, most: int) -> list[R]:
        """Up to ``most`` messages, which are in work from now on; none while others of the queue are."""
        self._offered = False
        if self._in_work or self._suspended or self._closed or not self._is_held():
            return []
        taken = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
        self._in_work = {record.queue_offset: record for record in taken}
        return taken

    def has(self, record: DeliveredRecord) -> bool:
        """Whether exactly this message is in work: an earlier copy, returned meanwhile, is not."""
        return self._in_work.get(record.queue_offset) is record

    def settle(self, offset: int) -> bool:
        """The message at ``offset`` is done; False where it is not in work."""
        if self._in_work.pop(offset, None) is None:
            return False
        self._settled()
        return True

    def put_back(self, offset: int, kept: Container[int] = ()) -> Callable[[], None] | None:
        """Redeliver the message at ``offset``, and those behind it that are in work too, when the result is called.

        Messages at the offsets ``kept`` stay in work. None where the message is not in work, or kept.
        """
        if offset not in self._in_work or offset in kept:
            return None
        again = [self._in_work.pop(each) for each in sorted(self._in_work) if each >= offset and each not in kept]
        if not self._closed:
            self._waiting.extendleft(reversed(again))
            if len(again) < len(self._waiting) and self._waiting[len(again)].queue_offset < again[-1].queue_offset:
                # Some that stayed in work while others were put back come back later than those.
                self._waiting = deque(sorted(self._waiting, key=lambda record: record.queue_offset))
            self._suspended = True
        self._settled()
        return self.resume

    def resume(self) -> None:
        """Go on after :meth:`put_back`."""
        self._suspended = False
        self._announce()

    def offer_again(self) -> None:
        """Offer what :meth:`take` did not give out because the queue was not held, now that it may be again."""
        self._announce()

    def close(self) -> None:
        """Give out nothing more; what is in work may be settled."""
        self._closed = True
        self._waiting.clear()

    def _settled(self) -> None:
        if self._in_work:
            return
        self._announce()
        if self._closed and self.drained is not None:
            self.drained()

    def _announce(self) -> None:
        if self._waiting and not (self._in_work or self._suspended or self._offered or self._closed):
            self._offered = True
            self._offer(self)


class KeyLane(Lane[R]):
    """As :class:`Lane`, for each order key: messages of different keys, and those without one, are in work together."""

    def __init__(self, offer: Callable[[Lane[R]], None], is_held: Callable[[], bool]) -> None:
        super().__init__(offer, is_held)
        self._behind: dict[str, deque[R]] = {}
        """For each key of which a message waits for its turn, is in work or suspended: those that come after it."""

    def add(self, records: Sequence[R]) -> None:
        """As :meth:`Lane.add`."""
        if self._closed:
            return
        for record in records:
            key = record.properties.get(SHARDING_KEY)
            if key is None:
                self._waiting.append(record)
            elif key in self._behind:
                self._behind[key].append(record)
            else:
                self._behind[key] = deque()
                self._waiting.append(record)
        self._announce()

    def take(self, most: int) -> list[R]:
        """Up to ``most`` messages, each of another key, which are in work from now on."""
        self._offered = False
        if self._closed or not self._is_held():
            return []
        taken = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
        self._in_work.update((record.queue_offset, record) for record in taken)
        self._announce()
        return taken

    def settle(self, offset: int) -> bool:
        """As :meth:`Lane.settle`."""
        record = self._in_work.pop(offset, None)
        if record is None:
            return False
        key = record.properties.get(SHARDING_KEY)
        if key is not None and key in self._behind:
            if behind := self._behind[key]:
                self._waiting.append(behind.popleft())
            else:
                del self._behind[key]
        self._settled()
        return True

    def put_back(self, offset: int, kept: Container[int] = ()) -> Callable[[], None] | None:
        """The message at ``offset`` is redelivered when the result is called; None where it is not in work, or kept."""
        record = None if offset in kept else self._in_work.pop(offset, None)
        if record is None:
            return None

        def resume() -> None:
            if not self._closed:
                self._waiting.appendleft(record)
                self._announce()

        self._settled()
        return resume

    def close(self) -> None:
        """As :meth:`Lane.close`."""
        super().close()
        self._behind.clear()

    def _settled(self) -> None:
        self._announce()
        if self._closed and not self._in_work and self.drained is not None:
            self.drained()

    def _announce(self) -> None:
        if self._waiting and not (self._offered or self._closed):
            self._offered = True
            self._offer(self)

"""How far one queue is consumed: what was pulled, what is done, what may be committed. No I/O.

What was pulled together is kept together: messages that are done in their order cost a counter, those that are done out
of order an entry in a set until the ones before them are done as well.

Source of the limits: RocketMQ 4.9.7 ``DefaultMQPushConsumer``, ``ProcessQueue``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

OUTSTANDING_MAX_MESSAGES: Final = 1000
OUTSTANDING_MAX_BYTES: Final = 100 * 1024 * 1024
OUTSTANDING_MAX_SPAN: Final = 2000
_TRIMMED_FROM: Final = 8
"""The number of finished pulls at the beginning of the list that are removed at once."""


class _Pull:
    """The messages of one answer. ``begin``: the place of the oldest that is not done; ``done``: later places that are.

    ``ends`` are the sums of the sizes: of the message at place ``n`` and those before it at ``n + 1``.
    """

    __slots__ = ("at", "begin", "done", "ends", "offsets")

    def __init__(self, offsets: Sequence[int], sizes: Sequence[int], at: float) -> None:
        dense = offsets[-1] - offsets[0] + 1 == len(offsets)
        self.offsets = range(offsets[0], offsets[-1] + 1) if dense else offsets
        self.ends = list(accumulate(sizes, initial=0))
        self.begin = 0
        self.done: set[int] = set()
        self.at = at

    def place_of(self, offset: int) -> int:
        """The place of the message at ``offset``; -1 where it has none."""
        offsets = self.offsets
        if isinstance(offsets, range):
            place = offset - offsets.start
            return place if 0 <= place < len(offsets) else -1
        place = bisect_left(offsets, offset)
        return place if place < len(offsets) and offsets[place] == offset else -1


class Progress:
    """The messages of one queue between pull and acknowledgment.

    Offsets are pulled in ascending order and acknowledged in any. ``position`` is the offset to pull next.
    """

    def __init__(self, position: int, messages_max: int | None = None) -> None:
        """``messages_max``: how many may be outstanding."""
        self.position: int = position
        self._messages_max = messages_max or OUTSTANDING_MAX_MESSAGES
        self._span_max = max(OUTSTANDING_MAX_SPAN, 2 * self._messages_max if messages_max else 0)
        self._pulls: list[_Pull] = []
        self._firsts: list[int] = []
        """The first offset of each pull."""
        self._oldest = 0
        """The place of the oldest pull that is not finished."""
        self._outstanding = 0
        self._bytes = 0
        self._skipped: set[int] = set()
        """What :meth:`reset` left behind, until it is done."""

    @property
    def bytes(self) -> int:
        """The size of what is outstanding."""
        return self._bytes

    def oldest_since(self) -> float | None:
        """When the oldest outstanding message was pulled; None without one."""
        return self._pulls[self._oldest].at if self._outstanding else None

    @property
    def outstanding(self) -> int:
        """Messages that were pulled and are not done."""
        return self._outstanding

    @property
    def full(self) -> bool:
        """Whether so much is outstanding that no more must be pulled."""
        return (
            self._outstanding >= self._messages_max
            or self._bytes >= OUTSTANDING_MAX_BYTES
            or self.position - self.committable >= self._span_max
        )

    @property
    def committable(self) -> int:
        """The offset to continue from after a crash: the oldest message that is not done, else the next to pull."""
        if not self._outstanding:
            return self.position
        pull = self._pulls[self._oldest]
        return pull.offsets[pull.begin]

    def is_outstanding(self, offset: int) -> bool:
        """Whether the message at ``offset`` was pulled and is neither done nor going to be pulled again."""
        pull = self._pull_of(offset)
        place = -1 if pull is None else pull.place_of(offset)
        return offset in self._skipped or (pull is not None and place >= pull.begin and place not in pull.done)

    def pulled(self, offsets: Sequence[int], sizes: Sequence[int], at: float) -> None:
        """Count messages, which came at the time ``at``, as outstanding.

        Their offsets are in ascending order and above all earlier ones; ``sizes`` are in bytes.
        """
        if not offsets:
            return
        pull = _Pull(offsets, sizes, at)
        self._pulls.append(pull)
        self._firsts.append(offsets[0])
        self._outstanding += len(offsets)
        self._bytes += pull.ends[-1]

    def done(self, offset: int) -> bool:
        """Count a message as done; False when it was not outstanding."""
        if self._outstanding:
            pull = self._pulls[self._oldest]
            place = pull.begin
            if pull.offsets[place] == offset and not pull.done:  # in order, as most are
                ends = pull.ends
                place += 1
                self._outstanding -= 1
                self._bytes -= ends[place] - ends[place - 1]
                pull.begin = place
                if place == len(pull.offsets):
                    self._begin_at(pull, place)
                return True
        return self._done(offset)

    def _done(self, offset: int) -> bool:
        pull = self._pull_of(offset)
        place = -1 if pull is None else pull.place_of(offset)
        if pull is None or place < pull.begin or place in pull.done:
            self._skipped.discard(offset)
            return False
        self._outstanding -= 1
        self._bytes -= pull.ends[place + 1] - pull.ends[place]
        if place > pull.begin:
            pull.done.add(place)
            return True
        place += 1
        if pull.done:
            while place in pull.done:
                pull.done.remove(place)
                place += 1
        self._begin_at(pull, place)
        return True

    def done_until(self, first: int, last: int) -> int:
        """Count the messages of one pull from ``first`` to ``last`` as done; how many of them were outstanding."""
        pull = self._pull_of(first)
        if pull is None:
            return 0
        begin, end = pull.place_of(first), pull.place_of(last) + 1
        if begin < 0 or end <= begin:
            return 0
        if begin != pull.begin or pull.done:
            return sum(map(self.done, pull.offsets[begin:end]))
        self._outstanding -= end - begin
        self._bytes -= pull.ends[end] - pull.ends[begin]
        self._begin_at(pull, end)
        return end - begin

    def reset(self, position: int) -> None:
        """Go on at ``position``, where the broker says the queue is; what is outstanding does not count any more.

        Outstanding messages in front of it, which are not pulled again, can still be done without effect on the counts.
        """
        for pull in self._pulls[self._oldest :]:
            places = (place for place in range(pull.begin, len(pull.offsets)) if place not in pull.done)
            self._skipped.update(pull.offsets[place] for place in places)
        self._skipped = {offset for offset in self._skipped if offset < position}
        self._pulls.clear()
        self._firsts.clear()
        self._oldest = self._outstanding = self._bytes = 0
        self.position = position

    def _pull_of(self, offset: int) -> _Pull | None:
        """The pull that has a message at ``offset``, if one has."""
        at = self._oldest
        if at >= len(self._pulls):
            return None
        if at + 1 < len(self._firsts) and offset >= self._firsts[at + 1]:
            at = bisect_right(self._firsts, offset) - 1
        return self._pulls[at]

    def _begin_at(self, pull: _Pull, place: int) -> None:
        pull.begin = place
        pulls, oldest = self._pulls, self._oldest
        while oldest < len(pulls) and pulls[oldest].begin == len(pulls[oldest].offsets):
            oldest += 1
        if oldest >= _TRIMMED_FROM:
            del pulls[:oldest], self._firsts[:oldest]
            oldest = 0
        self._oldest = oldest

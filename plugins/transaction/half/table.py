"""The open half messages: a byte for each half message from the oldest open one on, and for some older ones.

A half message is identified by its queue offset in RMQ_SYS_TRANS_HALF_TOPIC. After a check-back it is appended again as
a copy, and the transaction continues as that copy; ``moved`` has the copy by the first offset.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container

OPEN, COMMITTED, ROLLED_BACK, GONE = range(4)
"""The values of a byte; GONE: it continues as a copy, was discarded, or ended before this broker was started."""

REMEMBERED = 65_536
"""Outcomes of at least this many transactions are remembered, to distinguish another outcome from the same one."""
CHUNK_OPS = 1024
"""The most positions of progress in the queue of op messages."""


class HalfTable:
    """The open half messages of a store, and the progress in both queues. ``next_half`` returns the end."""

    def __init__(self, base: int, next_half: Callable[[], int]) -> None:
        self._states = bytearray()
        self._origin = self._base = base  # the offset of the first byte, and the first offset that may be open
        self._next_half = next_half
        self._ended = 0
        self.moved: dict[int, int] = {}
        """The copy as which an open transaction continues, by its first offset."""
        self.discarded: dict[int, None] = {}
        """The first offsets of recently discarded transactions, which can still be committed; see :meth:`discard`."""
        self.lost: dict[int, None] = {}
        """The half messages that were closed because they are damaged. Their transactions have no outcome and can
        still be ended, if the half message that the producer names can be read; see :meth:`lose`."""
        self.unjoined: set[int] = set()
        """The half messages that could not be read at the start: each may be a copy of any earlier half message."""
        self.copies: dict[bytes, int] = {}
        """The newest copy by ``copy_key``, of copies by RocketMQ, which do not have their first offset; set by a
        start."""
        self.unnoted: list[int] = []
        """The half messages that have ended without an op message, because the disk was full or a crash came between:
        a start would find them open."""
        self._ops: deque[tuple[int, int, int]] = deque()

    def refresh(self) -> None:
        """Add half messages that were appended since the last call."""
        new = self._next_half() - self._origin - len(self._states)
        if new > 0:
            self._states += bytes(new)

    @property
    def base(self) -> int:
        """Every half message before this one has ended."""
        return self._base

    @property
    def end(self) -> int:
        """The offset of the next half message."""
        self.refresh()
        return self._origin + len(self._states)

    @property
    def open_count(self) -> int:
        """The number of open half messages."""
        self.refresh()
        return len(self._states) - self._ended

    def state(self, offset: int) -> int:
        """Return the state of a half message; GONE if it is no longer known."""
        index = offset - self._origin
        if index >= len(self._states):
            self.refresh()
        return self._states[index] if 0 <= index < len(self._states) else GONE

    def current(self, first: int) -> int:
        """Return the half message as which the transaction that began as ``first`` continues."""
        return self.moved.get(first, first)

    def close(self, offset: int, state: int) -> None:
        """Set the state of a half message that has ended; does nothing if it was not open."""
        if self.state(offset) == OPEN:
            self._states[offset - self._origin] = state
            self.closed(1, {offset: state})

    def close_unnoted(self, offset: int) -> None:
        """Close a half message that has no op message, if it is open, and record it in :attr:`unnoted`."""
        if self.state(offset) == OPEN:
            self.close(offset, GONE)
            self.unnoted.append(offset)

    @property
    def states(self) -> tuple[bytearray, int]:
        """The states of all appended half messages as bytes, and the offset of the first byte.

        A caller that changes open states must call :meth:`closed`. Valid until the next call that changes the table.
        """
        self.refresh()
        return self._states, self._origin

    def closed(self, count: int, ended: Container[int]) -> None:
        """The caller has set the states of ``count`` half messages that were open; ``ended`` contains all of them."""
        self._ended += count
        if self._base in ended:
            self._advance()

    def discard(self, first: int) -> None:
        """Record that the transaction that began as ``first`` is discarded, in :attr:`discarded`."""
        self.moved.pop(first, None)
        if len(self.discarded) >= REMEMBERED:
            del self.discarded[next(iter(self.discarded))]
        self.discarded[first] = None

    def lose(self, offset: int) -> None:
        """Close a half message that is damaged, and record it in :attr:`lost`."""
        self.close(offset, GONE)
        if len(self.lost) >= REMEMBERED:
            del self.lost[next(iter(self.lost))]
        self.lost[offset] = None

    def recover_lost(self, offset: int, state: int) -> None:
        """Set the outcome of a half message in :attr:`lost`, and remove it there; does nothing for others."""
        index = offset - self._origin
        if self.lost.pop(offset, 0) is None and 0 <= index < len(self._states):
            self._states[index] = state

    def may_continue(self, first: int) -> bool:
        """Return whether a half message that could not be read at the start may be a copy of ``first``."""
        self.unjoined = {offset for offset in self.unjoined if offset in self.lost or self.state(offset) == OPEN}
        return any(offset > first for offset in self.unjoined)

    def next_open(self, offset: int, end: int) -> int | None:
        """Return the first open half message from ``offset`` on and before ``end``, or None."""
        self.refresh()
        found = self._states.find(OPEN, max(offset - self._origin, 0), max(end - self._origin, 0))
        return None if found < 0 else self._origin + found

    def _advance(self) -> None:
        found = self._states.find(OPEN, self._base - self._origin)
        self._base = self._origin + (len(self._states) if found < 0 else found)
        drop = self._base - self._origin - REMEMBERED
        if drop >= REMEMBERED:
            del self._states[:drop]
            self._origin += drop
            self._ended -= drop
            self.copies = {
                key: copy for key, copy in self.copies.items() if copy >= self._origin or copy in self.moved
            }  # the outcomes of the others are no longer known

    # ------------------------------------------------------------------------------------------------- op messages

    def noted(self, op_offset: int, half_offset: int, count: int = 1) -> None:
        """Record ``count`` op messages from queue offset ``op_offset`` on, behind all recorded ones, for half messages
        up to ``half_offset``."""
        ops, after = self._ops, op_offset + count
        if ops and after - ops[-1][0] <= CHUNK_OPS:
            first, _, highest = ops.pop()
            ops.append((first, after, max(highest, half_offset)))
        else:
            ops.append((op_offset, after, half_offset))

    def ops_done(self) -> int | None:
        """Return all op messages before this queue offset belong to half messages before :attr:`base`; None without
        any."""
        ops = self._ops
        if not ops:
            return None
        while len(ops) > 1 and ops[0][2] < self._base:
            ops.popleft()
        first, after, highest = ops[0]
        return after if highest < self._base else first

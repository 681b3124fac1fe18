"""A history of requests to replicated brokers and their responses, and a linearizability check for each queue.

Sends with SEND_OK must be linearizable: each offset is acknowledged for one message; that message keeps its offset; a
send that began after the acknowledgment of another one has the higher offset. A message that a reader got keeps its
offset if the broker guaranteed that. It did so when it

- acknowledged this message or a later one of the queue, in the same term, or
- served it as a slave that had compared its log with the master's (:meth:`History.excuse` names slaves that had not).

A message without SEND_OK may be stored or not, at any offset. A reader may get it before it is lost, because a master
serves records whose wait timed out (FLUSH_SLAVE_TIMEOUT, SLAVE_NOT_AVAILABLE). The check counts such reads.

A *term* is one run of a broker in one role: its address, start time and epoch. A connection belongs to one term.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Final

import attrs

_FILLER: Final = bytes(range(256)) * 2
_FILLER_MAX: Final = 400
_SHOWN_MAX: Final = 10
"""The most violations in an error."""

Log = Mapping[int, Sequence[bytes]]
"""The bodies of each queue by queue id, in the order of their offsets from 0."""


class Outcome(Enum):
    """The outcome of a send, as its sender knows it."""

    OK = "ok"
    STORED = "stored"
    """The master has stored it, without an acknowledgment by a slave or the disk in time."""
    REFUSED = "refused"
    UNKNOWN = "unknown"
    """No response arrived."""


class Kind(Enum):
    """The kind of a violation."""

    TWICE = "one offset was acknowledged for two messages"
    LOST = "an acknowledged message is missing"
    MOVED = "an acknowledged message is at another offset"
    REPLACED = "another message is at an acknowledged offset"
    ORDER = "a send began after another one was acknowledged, and has the lower offset"
    VANISHED = "a reader got a message at an offset where it no longer is"
    STRANGE = "a reader got a message that was never sent"
    REPEATED = "one message, which was sent once, is at two offsets"
    AHEAD = "a group's offset lies beyond the end of the queue"
    UNDELIVERED = "a group never got an acknowledged message"


@attrs.frozen
class Violation:
    """One violation of the guarantees."""

    kind: Kind
    text: str

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.text}"


@attrs.frozen
class Term:
    """One run of a broker in one role."""

    address: str
    started: str = ""
    epoch: str = ""
    slave: bool = False


@attrs.define
class Send:
    """One sent message. Times are seconds of the recorder's clock; ``ended`` is None without a response."""

    body: bytes
    sender: int
    number: int
    began: float
    ended: float | None = None
    outcome: Outcome = Outcome.UNKNOWN
    queue_id: int = -1
    offset: int = -1
    term: Term | None = None

    def __str__(self) -> str:
        where = f", {self.outcome.name} at {self.queue_id}/{self.offset}" if self.offset >= 0 else ""
        by = f" by {self.term.address} of epoch {self.term.epoch}" if self.term else ""
        return f"message {self.number} of sender {self.sender}{where}{by}"


@attrs.frozen
class Read:
    """A reader got ``body``; ``group`` is empty for a reader without a group."""

    queue_id: int
    offset: int
    body: bytes
    at: float
    term: Term
    group: str = ""


@attrs.frozen
class GroupOffset:
    """A group's offset of a queue, and the end of the queue, as a broker reported them."""

    group: str
    queue_id: int
    offset: int
    end: int
    address: str


@attrs.define
class History:
    """The history of one topic of one broker name. ``run`` distinguishes its messages from those of other runs."""

    run: str
    sends: dict[bytes, Send] = attrs.field(factory=dict)
    """The sends by body."""
    reads: list[Read] = attrs.field(factory=list)
    group_offsets: list[GroupOffset] = attrs.field(factory=list)
    excused: set[Term] = attrs.field(factory=set)
    _numbers: Counter[int] = attrs.field(factory=Counter)

    @property
    def acknowledged(self) -> list[Send]:
        """The sends with SEND_OK, in the order of their begin."""
        return [send for send in self.sends.values() if send.outcome is Outcome.OK]

    def begin_send(self, sender: int, now: float, term: Term | None = None) -> Send:
        """Return the next message of ``sender``, with a unique body. From now on it may be in the log."""
        number = self._numbers[sender]
        self._numbers[sender] += 1
        name = f"{self.run} {sender} {number} ".encode()
        filler = _FILLER[: (number * 37 + sender) % _FILLER_MAX]
        body = name + f"{zlib.crc32(name + filler):08x} ".encode() + filler
        send = self.sends[body] = Send(body, sender, number, now, term=term)
        return send

    def end_send(self, send: Send, now: float, outcome: Outcome, queue_id: int = -1, offset: int = -1) -> None:
        """Record the response to a send."""
        send.ended, send.outcome, send.queue_id, send.offset = now, outcome, queue_id, offset

    def excuse(self, term: Term) -> None:
        """Messages that this slave served may vanish, because it could not compare its log with a master's."""
        self.excused.add(term)

    def check(self, log: Log) -> Counter[Outcome]:
        """Check the history against the master's current log; AssertionError shows the first violations. Returns the
        number of reads of lost messages without a guarantee, by the outcome for their senders."""
        found = list(self.violations(log))
        if found:
            shown = "\n".join(str(each) for each in found[:_SHOWN_MAX])
            kinds = ", ".join(f"{count} {kind.name}" for kind, count in Counter(each.kind for each in found).items())
            raise AssertionError(f"{len(found)} violations ({kinds}):\n{shown}")
        return self.changed_unacknowledged(log)

    def violations(self, log: Log) -> Iterator[Violation]:
        """Yield all violations, given the master's current log."""
        places: dict[bytes, tuple[int, int]] = {}
        for queue_id, bodies in log.items():
            for offset, body in enumerate(bodies):
                if body not in self.sends:
                    yield Violation(Kind.STRANGE, f"{body[:60]!r} at {queue_id}/{offset}")
                elif body in places:
                    yield Violation(Kind.REPEATED, f"{self.sends[body]}: {places[body]} and {(queue_id, offset)}")
                places.setdefault(body, (queue_id, offset))
        yield from self._check_acknowledged(log, places)
        yield from self._check_order()
        yield from self._check_reads(log)
        for each in self.group_offsets:
            if each.offset > each.end:
                yield Violation(
                    Kind.AHEAD,
                    f"{each.group} is at {each.offset} of queue {each.queue_id} at {each.address}, which ends at "
                    f"{each.end}",
                )

    def undelivered(self, group: str) -> Iterator[Violation]:
        """Acknowledged messages that ``group`` never got. Call it when the group has consumed all queues to their
        end."""
        given = {read.body for read in self.reads if read.group == group}
        for send in self.acknowledged:
            if send.body not in given:
                yield Violation(Kind.UNDELIVERED, f"{group}: {send}")

    def changed_unacknowledged(self, log: Log) -> Counter[Outcome]:
        """Return the number of distinct offsets at which readers got a message and where another one or none is now, by
        the outcome for the sender."""
        gone = {(read.queue_id, read.offset, read.body) for read in self.reads if not _holds(log, read)}
        return Counter(self.sends[body].outcome for _, _, body in gone if body in self.sends)

    def _check_acknowledged(self, log: Log, places: Mapping[bytes, tuple[int, int]]) -> Iterator[Violation]:
        by_place: dict[tuple[int, int], Send] = {}
        for send in self.acknowledged:
            place = send.queue_id, send.offset
            other = by_place.setdefault(place, send)
            if other is not send:
                yield Violation(Kind.TWICE, f"{other}, and {send}")
            bodies = log.get(send.queue_id, ())
            if 0 <= send.offset < len(bodies) and bodies[send.offset] == send.body:
                continue
            if send.body in places:
                yield Violation(Kind.MOVED, f"{send} is at {places[send.body]}")
            elif send.offset < len(bodies):
                found = bodies[send.offset]
                there = str(self.sends[found]) if found in self.sends else repr(found[:60])
                yield Violation(Kind.REPLACED, f"{send}: there is {there}")
            else:
                yield Violation(Kind.LOST, f"{send}: the queue ends at {len(bodies)}")

    def _check_order(self) -> Iterator[Violation]:
        by_queue: dict[int, list[Send]] = {}
        for send in self.acknowledged:
            by_queue.setdefault(send.queue_id, []).append(send)
        for sends in by_queue.values():
            sends.sort(key=lambda send: send.offset, reverse=True)
            first: Send | None = None  # the first acknowledged send of those with higher offsets
            for send in sends:
                if first is not None and first.ended is not None and first.ended < send.began:
                    yield Violation(Kind.ORDER, f"{first} was acknowledged before {send} was begun")
                if first is None or (send.ended or 0.0) < (first.ended or 0.0):
                    first = send

    def _check_reads(self, log: Log) -> Iterator[Violation]:
        settled: dict[tuple[Term, int], int] = {}
        """The highest acknowledged offset by term and queue."""
        for send in self.acknowledged:
            if send.term is not None:
                key = send.term, send.queue_id
                settled[key] = max(settled.get(key, -1), send.offset)
        shown: set[tuple[int, int, bytes]] = set()
        for read in self.reads:
            place = read.queue_id, read.offset, read.body
            if place in shown:
                continue
            known = self.sends.get(read.body)
            if known is None:
                shown.add(place)
                yield Violation(Kind.STRANGE, f"{read.body[:60]!r} at {read.queue_id}/{read.offset} of {read.term}")
            elif not _holds(log, read):
                by_slave = read.term.slave and read.term not in self.excused
                if by_slave or settled.get((read.term, read.queue_id), -1) >= read.offset:
                    shown.add(place)
                    yield Violation(Kind.VANISHED, f"{known} was at {read.queue_id}/{read.offset} of {read.term}")


def _holds(log: Log, read: Read) -> bool:
    bodies = log.get(read.queue_id, ())
    return 0 <= read.offset < len(bodies) and bodies[read.offset] == read.body

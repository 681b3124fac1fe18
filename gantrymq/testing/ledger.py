"""A ledger of sent, acknowledged and read messages, which finds violations of a broker's guarantees.

The guarantees: acknowledged messages are readable and unchanged; every readable message was sent and is intact; the
message at a queue offset never changes after it was read; offsets are consecutive; the messages of a producer keep
their order in a queue.

Producers must not retry automatically, because a second copy of a message counts as a violation.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Protocol

import attrs

_FILLER = bytes(range(256)) * 4


class LedgerViolation(AssertionError):
    """The broker violated a guarantee; the text says which one and where."""


@attrs.frozen
class Place:
    """A queue id of the ledger's topic, and a queue offset."""

    queue_id: int
    offset: int


class ReadObserver(Protocol):
    """Records what a reader gets: a :class:`Ledger`, or an object with this method."""

    def observe(self, body: bytes, queue_id: int, offset: int) -> None:
        """Record that a reader got ``body`` from this place."""


@attrs.define
class Ledger:
    """The ledger of one topic on one broker. ``run`` distinguishes its messages from those of other runs."""

    run: str
    _sent: dict[int, int] = attrs.field(factory=dict, init=False)
    _acknowledged: dict[Place, bytes] = attrs.field(factory=dict, init=False)
    _read: dict[Place, bytes] = attrs.field(factory=dict, init=False)
    _places: dict[bytes, Place] = attrs.field(factory=dict, init=False)

    @property
    def acknowledged(self) -> int:
        """The number of acknowledged messages."""
        return len(self._acknowledged)

    @property
    def sent(self) -> int:
        """The number of messages that :meth:`next_body` returned."""
        return sum(self._sent.values())

    @property
    def read(self) -> int:
        """The number of places that were read."""
        return len(self._read)

    def next_body(self, producer: int) -> bytes:
        """Return the next body of ``producer``: unique, with a checksum. From now on it may be readable."""
        sequence = self._sent.get(producer, 0)
        self._sent[producer] = sequence + 1
        name = f"{self.run} {producer} {sequence} ".encode()
        rest = _FILLER[: (sequence * 37 + producer) % 900]
        return name + f"{zlib.crc32(name + rest):08x} ".encode() + rest

    def acknowledge(self, body: bytes, queue_id: int, offset: int) -> None:
        """Record that the broker acknowledged ``body`` at this place."""
        place = Place(queue_id, offset)
        name = self._name(body)
        other = self._acknowledged.get(place)
        if other is not None:
            raise LedgerViolation(f"{place} was acknowledged twice: for {other!r} and for {name!r}")
        self._acknowledged[place] = name
        seen = self._read.get(place, name)
        if seen != name:
            raise LedgerViolation(f"{place} was acknowledged for {name!r}, but {seen!r} was read there before")

    def allow_loss(self) -> None:
        """Allow the loss of everything acknowledged or read until now; sent messages may still appear."""
        self._acknowledged.clear()
        self._read.clear()
        self._places.clear()

    def observe(self, body: bytes, queue_id: int, offset: int) -> None:
        """Record that a reader got ``body`` from this place."""
        place = Place(queue_id, offset)
        name = self._name(body)
        before = self._read.setdefault(place, name)
        if before != name:
            raise LedgerViolation(f"{place} changed: {before!r} was read first, now {name!r}")
        promised = self._acknowledged.get(place, name)
        if promised != name:
            raise LedgerViolation(f"{place} holds {name!r}, but was acknowledged for {promised!r}")
        first = self._places.setdefault(name, place)
        if first != place:
            raise LedgerViolation(f"{name!r} is at {place} and at {first}")

    def check(self, ends: Mapping[int, int]) -> None:
        """Check all guarantees after every queue was read from 0 up to its end (``ends``, by queue id)."""
        for place, name in self._acknowledged.items():
            if place not in self._read:
                raise LedgerViolation(f"{name!r} was acknowledged at {place} and is lost")
        last: dict[tuple[int, bytes], int] = {}
        for queue_id, end in ends.items():
            for offset in range(end):
                found = self._read.get(Place(queue_id, offset))
                if found is None:
                    raise LedgerViolation(f"queue {queue_id} has no message at {offset}, and ends at {end}")
                producer, sequence = found.split()[1:3]
                if int(sequence) <= last.get((queue_id, producer), -1):
                    raise LedgerViolation(f"queue {queue_id} has {found!r} at {offset}, behind a later one")
                last[queue_id, producer] = int(sequence)
        for place in self._read:
            if place.offset >= ends.get(place.queue_id, 0):
                raise LedgerViolation(f"{place} was read once, and is beyond the queue's end now")

    def _name(self, body: bytes) -> bytes:
        """Return the name of the message. LedgerViolation if it was never sent or is damaged."""
        words = body.split(b" ", 4)
        if len(words) != 5 or words[0] != self.run.encode() or not (words[1].isdigit() and words[2].isdigit()):
            raise LedgerViolation(f"{body[:60]!r} was never sent")
        producer, sequence = int(words[1]), int(words[2])
        if sequence >= self._sent.get(producer, 0):
            raise LedgerViolation(f"message {sequence} of producer {producer} was never sent")
        name = b" ".join(words[:3])
        if f"{zlib.crc32(name + b' ' + words[4]):08x}".encode() != words[3]:
            raise LedgerViolation(f"{name!r} is damaged")
        return name

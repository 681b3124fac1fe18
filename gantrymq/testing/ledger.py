"""A ledger of what was sent, acknowledged and read, that finds every broken promise of a broker.

What it holds a broker to: what was acknowledged is readable and byte-equal; nothing is readable that nobody sent, and
nothing damaged; a place in a queue never changes once it was read, and offsets rise by one; one producer's messages
keep their order in a queue.

Producers must not retry on their own: a second copy of a message counts as strange.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Protocol

import attrs

_FILLER = bytes(range(256)) * 4


class LedgerViolation(AssertionError):
    """The broker broke a promise; the text says which and where."""


@attrs.frozen
class Place:
    """A queue, by its id in the ledger's topic, and an offset in it."""

    queue_id: int
    offset: int


class Book(Protocol):
    """Who notes what a reader gets: a :class:`Ledger`, or less."""

    def observe(self, body: bytes, queue_id: int, offset: int) -> None:
        """A reader got ``body`` from this place."""


@attrs.define
class Ledger:
    """The book of one topic on one broker. ``run`` tells this run's messages from all others."""

    run: str
    _sent: dict[int, int] = attrs.field(factory=dict, init=False)
    _acknowledged: dict[Place, bytes] = attrs.field(factory=dict, init=False)
    _read: dict[Place, bytes] = attrs.field(factory=dict, init=False)
    _places: dict[bytes, Place] = attrs.field(factory=dict, init=False)

    @property
    def acknowledged(self) -> int:
        """How many messages were acknowledged."""
        return len(self._acknowledged)

    @property
    def sent(self) -> int:
        """How many messages were handed out to be sent."""
        return sum(self._sent.values())

    @property
    def read(self) -> int:
        """How many places were read."""
        return len(self._read)

    def next_body(self, producer: int) -> bytes:
        """The next message of ``producer``: unique, and able to prove that it is whole. From now on it may appear."""
        sequence = self._sent.get(producer, 0)
        self._sent[producer] = sequence + 1
        name = f"{self.run} {producer} {sequence} ".encode()
        rest = _FILLER[: (sequence * 37 + producer) % 900]
        return name + f"{zlib.crc32(name + rest):08x} ".encode() + rest

    def acknowledge(self, body: bytes, queue_id: int, offset: int) -> None:
        """The broker has promised to keep ``body`` at this place."""
        place = Place(queue_id, offset)
        name = self._name(body)
        other = self._acknowledged.get(place)
        if other is not None:
            raise LedgerViolation(f"{place} was acknowledged twice: for {other!r} and for {name!r}")
        self._acknowledged[place] = name
        seen = self._read.get(place, name)
        if seen != name:
            raise LedgerViolation(f"{place} was acknowledged for {name!r}, but {seen!r} was read there before")

    def forget_promises(self) -> None:
        """What was acknowledged or read until now may be gone; what was sent may still appear."""
        self._acknowledged.clear()
        self._read.clear()
        self._places.clear()

    def observe(self, body: bytes, queue_id: int, offset: int) -> None:
        """A reader got ``body`` from this place."""
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
        """The final word, after every queue was read from 0 up to its end (``ends``, by queue id)."""
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
                raise LedgerViolation(f"{place} was read once, and is now behind the queue's end")

    def _name(self, body: bytes) -> bytes:
        """Which message this is; refuses what was never sent and what is not whole."""
        words = body.split(b" ", 4)
        if len(words) != 5 or words[0] != self.run.encode() or not (words[1].isdigit() and words[2].isdigit()):
            raise LedgerViolation(f"nobody sent {body[:60]!r}")
        producer, sequence = int(words[1]), int(words[2])
        if sequence >= self._sent.get(producer, 0):
            raise LedgerViolation(f"message {sequence} of producer {producer} was never sent")
        name = b" ".join(words[:3])
        if f"{zlib.crc32(name + b' ' + words[4]):08x}".encode() != words[3]:
            raise LedgerViolation(f"{name!r} is damaged")
        return name

"""Answers to pulls as a plain class, and what both twins are given for them.

The compiled twin answers what is usual straight from blocks of the log; whatever is not (errors, offsets outside, a
filter that looks at more than tag codes, damaged records, what would have to come from the disk) goes to the ``other``
that the caller passes, pull by pull, so that there is one meaning of every pull.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import attrs

from gantrymq.kernel.processors import Request
from gantrymq.remoting.codes import RESPONSE_FLAG
from gantrymq.remoting.command import Command, encode
from gantrymq.remoting.frame import BINARY_HEADER

if TYPE_CHECKING:
    from gantrymq.kernel.batch import Pull

Suggest = Callable[[int], int]
"""The id of the broker that a reader shall turn to next, by the log offset of the last entry that was looked at."""

PullTerms = tuple[int, frozenset[int], Suggest | None]
"""The topic's number of queues, the tag codes that are wanted (none: every message), and which broker to suggest; None:
the one with the id 0."""

_SLOTS: Final = ("<next>", "<min>", "<max>")
_OPAQUE: Final = 1_234_567_890


class PullForm(NamedTuple):
    """What is the same in every answer with one code, in both kinds of header."""

    json: tuple[bytes, ...]
    """The JSON header in five pieces; between them stand the next offset, the lowest, the highest, and opaque."""
    binary_fixed: bytes
    """The 13 bytes before the remark of a binary header; opaque is at 5."""
    binary_remark: bytes
    binary_fields: bytes
    """The encoded constant fields."""


def pull_form(code: int, remark: str, fields: dict[str, str]) -> PullForm:
    """The form of answers with the constant ``fields`` and, behind them, the three offsets."""
    varying = dict(zip(("nextBeginOffset", "minOffset", "maxOffset"), _SLOTS, strict=True))
    rest = encode(Command(code, {**fields, **varying}, b"", _OPAQUE, RESPONSE_FLAG, remark))[8:]
    pieces = []
    for slot in (*_SLOTS, str(_OPAQUE)):
        piece, found, rest = rest.partition(slot.encode())
        if not found or slot.encode() in rest:
            raise ValueError(f"{slot} stands in a constant field of an answer")
        pieces.append(piece)
    said = remark.encode()
    binary = encode(Command(code, fields, flag=RESPONSE_FLAG, remark=remark, kind=BINARY_HEADER))[8:]
    return PullForm((*pieces, rest), binary[:13], said, binary[21 + len(said) :])


class Transfer(Protocol):
    """The limits of an answer, looked at once a turn. A change puts another tuple in the place of ``transfer``."""

    transfer: tuple[int, int, int, int]
    """Messages and bytes from memory, messages and bytes from the disk."""
    memory_bytes: int
    """So many bytes before the log's end count as in memory."""


class PulledQueue(Protocol):
    """A consume queue, as far as pulls read it."""

    generation: int
    """What was read in one generation stays true."""

    @property
    def min_offset(self) -> int:
        """The first entry for readers."""

    @property
    def max_offset(self) -> int:
        """Behind the last entry."""

    def peek(self, offset: int, count: int) -> bytes | None:
        """Up to ``count`` entries from ``offset`` on, as far as they are in memory; None where they are not."""


class PulledLog(Protocol):
    """The log's end and its damage, as far as pulls ask for it."""

    quarantine: list[tuple[int, int]]
    """Start and end of what can no longer be trusted."""

    @property
    def end(self) -> int:
        """Behind the last record."""


class PulledWindows(Protocol):
    """Blocks of the log that are read without waiting for the disk."""

    @property
    def min_offset(self) -> int:
        """Where the log begins."""

    def span(self, offset: int, size: int) -> tuple[int, memoryview] | None:
        """What holds ``size`` bytes at ``offset``, and where it begins; None when the disk would have to give them."""


@attrs.frozen
class PullDesk:
    """What the answering of pulls needs, and its bounds."""

    terms: Callable[[str, str, str | None, str | None, int, int], PullTerms | None]
    """By group, topic, subscription, expression type, its version (0 where the sys flag brings a filter along) and the
    sys flag's bits about filters; None when that is not usual."""
    find_queue: Callable[[str, int], PulledQueue | None]
    commit: Callable[[str, str, int, int], None]
    """Group, topic, queue id, offset: commits what rides on a pull."""
    pulled: Callable[[str, str, int, int, int], None] | None
    """Group, topic, queue id, messages, bytes: hears of each answer, if anybody counts."""
    windows: PulledWindows
    limits: Transfer
    log: PulledLog
    max_messages: int
    max_bytes: int
    """The limits of an answer to a client that says how many bytes it accepts."""
    scan_entries: int
    """Entries that are looked at when not every message is wanted."""
    forms: Callable[[int], tuple[PullForm, PullForm]]
    """By the id of the suggested broker: when messages are found, and when there are some, but none that is wanted."""


class PullAnswers:
    """Answers pulls at a :class:`PullDesk`."""

    def __init__(self, desk: PullDesk) -> None:
        pass

    def answer(self, requests: list[Request], first: int, budget: int, other: Callable[[Request], int]) -> int:
        """Answer pulls in their order, from ``requests[first]`` on; returns the first one that was not looked at.

        That is where the bodies so far have ``budget`` bytes. Any pull may go to ``other`` instead, which returns the
        size of the body that it gave.
        """
        while first < len(requests) and budget > 0:
            budget -= other(requests[first])
            first += 1
        return first

    def resume(self, pull: Pull, codes: frozenset[int], suggest: Suggest | None) -> int:
        """Answer one that was held, whose filter wants these ``codes``; the body's size, or -1: it was left alone."""
        return -1

"""The inner loops of pulls as plain functions, and what both twins are given for them.

The compiled twin answers what is usual straight from blocks of the log; whatever is not (errors, offsets outside, a
filter that looks at more than tag codes, damaged records, what would have to come from the disk) goes to the
``fallback`` that the caller passes, pull by pull, so that there is one meaning of every pull.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import attrs

from gantrymq.kernel.layouts import ENTRY, PROOF_V4, QUEUE_PLACE
from gantrymq.kernel.processors import Request
from gantrymq.kernel.store.log.record import CRC_MASK, HOST_V6_BITS, body_end_in, is_intact
from gantrymq.kernel.store.queues.consume_queue import FILLER_SIZE
from gantrymq.remoting.codes import RESPONSE_FLAG
from gantrymq.remoting.command import Command, encode
from gantrymq.remoting.frame import BINARY_HEADER
from gantrymq.remoting.headers.header import read_header
from gantrymq.remoting.headers.pull import PullMessageHeader
from gantrymq.remoting.records import HEADS, MAGIC_V1, MAGIC_V2

if TYPE_CHECKING:
    from gantrymq.kernel.batch import Pull

KIND: Final = "plain"

READERS: Final[Mapping[int, Any]] = {}
"""What reads requests to pull before somebody asks for their headers; by code. Nothing here."""

Window = Callable[[int, int, int], "memoryview | bytes | None"]
"""By the number of an entry, its offset and size: see :func:`gather`."""

Suggest = Callable[[int], int]
"""The id of the broker that a reader shall turn to next, by the log offset of the last entry that was looked at."""

PullPolicy = tuple[int, frozenset[int], Suggest | None]
"""The topic's number of queues, the tag codes that are wanted (none: every message), and which broker to suggest; None:
the one with the id 0."""

_SLOTS: Final = ("<next>", "<min>", "<max>")
_OPAQUE: Final = 1_234_567_890
_LAST_OF_V1: Final = MAGIC_V1 & 0xFF
_MAGICS: Final = (MAGIC_V1, MAGIC_V2)
_V4_HEAD_SIZE: Final = HEADS[0].size


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
class PullContext:
    """What the answering of pulls needs, and its bounds."""

    policy: Callable[[str, str, str | None, str | None, int, int], PullPolicy | None]
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
    """Answers pulls within a :class:`PullContext`."""

    def __init__(self, context: PullContext) -> None:
        pass

    def answer(self, requests: list[Request], first: int, budget: int, fallback: Callable[[Request], int]) -> int:
        """Answer pulls in their order, from ``requests[first]`` on; returns the first one that was not looked at.

        That is where the bodies so far have ``budget`` bytes. Any pull may go to ``fallback`` instead, which returns
        the size of the body that it gave.
        """
        while first < len(requests) and budget > 0:
            budget -= fallback(requests[first])
            first += 1
        return first

    def resume(self, pull: Pull, codes: frozenset[int], suggest: Suggest | None) -> int:
        """Answer one that was held, whose filter wants these ``codes``; the body's size, or -1: it was left alone."""
        return -1


def read_pull_header(request: Request) -> PullMessageHeader:
    """The header of a pull request; ``RemoteFault`` as :func:`read_header`."""
    return read_header(PullMessageHeader, request.command.ext)


class PullLimits(NamedTuple):
    """How much one answer to a pull may carry. The first record always fits, a further one only within the limits."""

    messages: int
    size: int
    """In bytes."""
    disk_messages: int
    disk_size: int
    """The limits for records that count as read from the disk."""
    disk_end: int
    """The log offset where memory begins: records below it count as read from the disk."""

    @property
    def most(self) -> int:
        """The most records that any answer within these limits has."""
        return max(self.messages, self.disk_messages)


def is_of(record: memoryview | bytes, body_end: int, part: QueuePart | None, number: int) -> bool:
    """Whether an intact record, whose body ends there, is the one of an entry of ``part``."""
    if part is None:
        return True
    start = body_end + (1 if record[7] == _LAST_OF_V1 else 2)
    return (
        record[start : start + len(part.topic)] == part.topic
        and int.from_bytes(record[body_end:start], "big") == len(part.topic)
        and QUEUE_PLACE.unpack_from(record, 12) == (part.queue_id, part.first + number)
    )


class QueuePart(NamedTuple):
    """Which entries of which queue are read: what their records must say of themselves."""

    topic: bytes
    queue_id: int
    first: int
    """The queue offset of the first one."""
    is_current: bool
    """Whether no entry is known to lie before the log's begin."""


def gather(
    entries: bytes,
    limits: PullLimits,
    oldest: int,
    matches: Callable[[int], bool] | None,
    window: Window,
    wrong: Callable[[int], None],
    part: QueuePart | None,
) -> tuple[list[bytes | memoryview], int, bool, int]:
    """The records of these queue entries that ``matches`` lets through, within ``limits``.

    As in RocketMQ the first entry that does not fit ends the answer, whether or not its record is wanted.
    ``window(number, offset, size)`` gives the log from that offset on, the record at least, or None when there is none
    that can be read. An entry that leads to no record (see :func:`is_intact`), or to one of another place than
    ``part`` says, is reported to ``wrong(number)`` and left out. Both may raise.
    Returns what makes the body, how many entries were looked at, whether one lay before ``oldest``, and the number of
    records in the body.
    """
    parts: list[bytes | memoryview] = []
    total = scanned = base = end = 0
    removed = False
    data: bytes | memoryview = b""
    unpack, crc32 = PROOF_V4.unpack_from, zlib.crc32
    messages, room, disk_messages, disk_room, disk_end = limits
    for number, (at, size, code) in enumerate(ENTRY.iter_unpack(entries)):
        if not parts:
            pass
        elif at < disk_end:
            if len(parts) >= disk_messages or total + size > disk_room:
                break
        elif len(parts) >= messages or total + size > room:
            break
        scanned += 1
        if size == FILLER_SIZE:
            continue
        if at < oldest:
            if at < 0 or (part is not None and part.is_current):
                wrong(number)
            else:
                removed = True
        elif matches is None or matches(code):
            if at < base or at + size > end or size < 0:
                found = window(number, at, size)
                if found is None:
                    continue
                data, base, end = found, at, at + len(found)
            start = at - base
            record = data[start : start + size]
            if size >= _V4_HEAD_SIZE:
                told, magic, crc, place, bits, length = unpack(record)
                if (
                    told == size
                    and place == at
                    and not bits & HOST_V6_BITS
                    and 0 <= length < size - _V4_HEAD_SIZE
                    and magic in _MAGICS
                    and crc32(record[_V4_HEAD_SIZE : _V4_HEAD_SIZE + length]) & CRC_MASK == crc
                    and is_of(record, _V4_HEAD_SIZE + length, part, number)
                ):
                    parts.append(record)
                    total += size
                    continue
            if is_intact(record, at) and is_of(record, body_end_in(record), part, number):
                parts.append(record)
                total += size
            else:
                wrong(number)
                # What was just quarantined is not to be read through the window of before.
                base = end = 0
    return parts, scanned, removed, len(parts)

"""The inner loops of pulls as plain functions, and the interfaces that both twins use.

The compiled twin answers usual pulls directly from blocks of the log. All others (errors, offsets out of range, filters
on more than tag codes, damaged records, records that are only on the disk) go to the caller's ``fallback``, pull by
pull, so that every pull has one meaning.
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
    from gantrymq.kernel.network.connection import Connection

KIND: Final = "plain"

READERS: Final[Mapping[int, Any]] = {}
"""The readers of pull requests by code; none in this twin."""

Window = Callable[[int, int, int], "memoryview | bytes | None"]
"""Arguments: the number of an entry, its offset and its size; see :func:`gather`."""

Suggest = Callable[[int], int]
"""Returns the id of the suggested broker for the log offset of the last examined entry."""

PullPolicy = tuple[int, frozenset[int], Suggest | None]
"""The topic's number of queues, the requested tag codes (empty: every message), and the suggested broker; None: the one
with the id 0."""

_SLOTS: Final = ("<next>", "<min>", "<max>")
_OPAQUE: Final = 1_234_567_890
_LAST_OF_V1: Final = MAGIC_V1 & 0xFF
_MAGICS: Final = (MAGIC_V1, MAGIC_V2)
_V4_HEAD_SIZE: Final = HEADS[0].size


class PullForm(NamedTuple):
    """The constant part of responses with one code, for both kinds of header."""

    json: tuple[bytes, ...]
    """The JSON header in five parts; next offset, lowest offset, highest offset and opaque go between them."""
    binary_fixed: bytes
    """The 13 bytes before the remark of a binary header; opaque is at 5."""
    binary_remark: bytes
    binary_fields: bytes
    """The encoded constant fields."""


def pull_form(code: int, remark: str, fields: dict[str, str]) -> PullForm:
    """Return the template of responses with the constant ``fields`` followed by the three offsets."""
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
    """The limits of a response, read once per turn. A change replaces the tuple ``transfer``."""

    transfer: tuple[int, int, int, int]
    """Messages and bytes from memory, messages and bytes from the disk."""
    memory_bytes: int
    """The number of bytes before the log's end that count as in memory."""


class PulledQueue(Protocol):
    """The interface of a consume queue for pulls."""

    generation: int
    """Entries of one generation do not change."""

    @property
    def min_offset(self) -> int:
        """The offset of the first readable entry."""

    @property
    def max_offset(self) -> int:
        """The offset behind the last entry."""

    def peek(self, offset: int, count: int) -> bytes | None:
        """Return up to ``count`` entries from ``offset`` on, as far as they are in memory; None if they are not."""


class PulledLog(Protocol):
    """The interface of the log for pulls: its end and its damaged ranges."""

    quarantine: list[tuple[int, int]]
    """Start and end of each damaged range."""

    @property
    def end(self) -> int:
        """The offset behind the last record."""


class PulledWindows(Protocol):
    """Blocks of the log that are read without waiting for the disk."""

    @property
    def min_offset(self) -> int:
        """The first offset of the log."""

    def span(self, offset: int, size: int) -> tuple[int, memoryview] | None:
        """Return a block with the ``size`` bytes at ``offset``, and its start; None if they are only on the disk."""


@attrs.frozen
class PullContext:
    """The context for answering pulls, with its limits."""

    policy: Callable[[str, str, str | None, str | None, int, int], PullPolicy | None]
    """Arguments: group, topic, subscription, expression type, its version (0 if the sys flag says that the pull carries
    a
    filter) and the filter bits of the sys flag. Returns None for pulls that need the fallback."""
    find_queue: Callable[[str, int], PulledQueue | None]
    commit: Callable[[str, str, int, int], None]
    """Group, topic, queue id, offset: commits the offset that a pull carries."""
    pulled: Callable[[str, str, int, int, int, int], None] | None
    """Group, topic, queue id, messages, bytes: called for each response, if statistics need it."""
    deliver: Callable[[bytes, int, Connection, str], tuple[bytes, int] | None] | None
    """Whole records, their number, the peer, its group: what plugins deliver of them, and how many records that is. It
    returns None if they have not decided about all records; then the fallback answers the pull. None without plugins
    that have the hook ``before_deliver``."""
    windows: PulledWindows
    limits: Transfer
    log: PulledLog
    max_messages: int
    max_bytes: int
    """The limits of a response to a client that says how many bytes it accepts."""
    scan_entries: int
    """The most entries to examine when a filter applies."""
    forms: Callable[[int], tuple[PullForm, PullForm]]
    """By the id of the suggested broker: templates for found messages, and for no matching messages."""


class PullResponses:
    """Answers pulls within a :class:`PullContext`."""

    def __init__(self, context: PullContext) -> None:
        pass

    def answer(self, requests: list[Request], first: int, budget: int, fallback: Callable[[Request], int]) -> int:
        """Answer pulls in order, from ``requests[first]`` on; returns the index of the first one that was not
        processed.

        It stops when the bodies have ``budget`` bytes. Any pull may go to ``fallback`` instead, which returns the size
        of its body.
        """
        while first < len(requests) and budget > 0:
            budget -= fallback(requests[first])
            first += 1
        return first

    def resume(self, pull: Pull, codes: frozenset[int], suggest: Suggest | None) -> int:
        """Answer a held pull whose filter selects these ``codes``; returns the body's size, or -1 if it was not
        answered."""
        return -1


def read_pull_header(request: Request) -> PullMessageHeader:
    """Return the header of a pull request; ``RemoteFault`` as :func:`read_header`."""
    return read_header(PullMessageHeader, request.command.ext)


class PullLimits(NamedTuple):
    """Limits of one response. The first record always fits, further ones only within the limits."""

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
        """The most records of any response within these limits."""
        return max(self.messages, self.disk_messages)


def is_of(record: memoryview | bytes, body_end: int, part: QueuePart | None, number: int) -> bool:
    """Return whether an intact record, whose body ends there, belongs to an entry of ``part``."""
    if part is None:
        return True
    start = body_end + (1 if record[7] == _LAST_OF_V1 else 2)
    return (
        record[start : start + len(part.topic)] == part.topic
        and int.from_bytes(record[body_end:start], "big") == len(part.topic)
        and QUEUE_PLACE.unpack_from(record, 12) == (part.queue_id, part.first + number)
    )


class QueuePart(NamedTuple):
    """The entries of a queue that are read; their records must name this queue and these offsets."""

    topic: bytes
    queue_id: int
    first: int
    """The queue offset of the first one."""
    is_current: bool
    """Whether no entry is known to point before the log's start."""


def gather(
    entries: bytes,
    limits: PullLimits,
    oldest: int,
    matches: Callable[[int], bool] | None,
    window: Window,
    wrong: Callable[[int], None],
    part: QueuePart | None,
) -> tuple[list[bytes | memoryview], int, bool, int]:
    """Return the records of these queue entries for which ``matches`` is true, within ``limits``.

    As in RocketMQ, the first entry that does not fit ends the response, whether or not its record matches.
    ``window(number, offset, size)`` returns the log from that offset on, with at least the record, or None if it cannot
    be read. An entry that points to no intact record (see :func:`is_intact`), or to one of another queue or offset than
    ``part``, is reported to ``wrong(number)`` and left out. Both may raise. Returns the parts of the body, the number
    of examined entries, whether one lay before ``oldest``, and the number of records in the body.
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
                stored_size, magic, crc, place, bits, length = unpack(record)
                if (
                    stored_size == size
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
                # A range that was just quarantined must not be read through an old window.
                base = end = 0
    return parts, scanned, removed, len(parts)

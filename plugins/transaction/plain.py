"""The transactions' inner loops as plain functions: the reference, and what runs without a compiler.

The compiled twin (``_fast``) takes what is usual and hands everything else to what is here, or to the ``other`` that
the caller passes, so that there is one meaning of every end and one text for every refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import attrs

from gantrymq.kernel.layouts import ENTRY
from gantrymq.kernel.store.queues.consume_queue import FILLER_SIZE
from gantrymq.plugins.transaction.half.table import COMMITTED, OPEN, ROLLED_BACK
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.headers.transactions import EndTransactionHeader, TransactionState
from gantrymq.remoting.property_bytes import DELAY, PGROUP, TRAN_MSG

if TYPE_CHECKING:
    from gantrymq.kernel.batch import AppendBatch
    from gantrymq.kernel.processors import Request
    from gantrymq.kernel.store.log.record import Record

KIND: Final = "plain"

_COMMIT = int(TransactionState.COMMIT)
_STATE_BITS = int(TransactionState.ROLLBACK)
_ENDS = (_COMMIT, int(TransactionState.ROLLBACK))
_NO_DELAYS = (None, b"0")

Refuse = Callable[["Request", RemoteFault], None]


@attrs.define(eq=False)
class Ending:
    """A producer's commit or rollback: the producer, the offsets of the half message, and whether it is a commit.

    ``record`` is the half message, after it was verified. Other classes have the same attributes.
    """

    request: Request
    group: bytes
    table_offset: int
    commit_log_offset: int
    is_commit: bool
    record: Record = attrs.field(init=False)
    row: int = attrs.field(init=False, default=-1)
    """Of the strategy that writes a batch of ends: the last row that is this one's."""


def read_endings(requests: Sequence[Request], refuse: Refuse) -> list[Ending]:
    """The endings of the requests; ``refuse`` answers an invalid request. A request without an outcome is left out."""
    endings = []
    for request in requests:
        try:
            header = request.header(EndTransactionHeader)
        except RemoteFault as fault:
            refuse(request, fault)
            continue
        if header.commit_or_rollback in _ENDS:
            endings.append(
                Ending(
                    request,
                    header.producer_group.encode(),
                    header.tran_state_table_offset,
                    header.commit_log_offset,
                    header.commit_or_rollback == _COMMIT,
                )
            )
    return endings


def split_named(endings: Sequence[Ending], entries: bytes, first: int) -> tuple[list[Ending], list[Ending]]:
    """Split ``endings`` into those whose half message has a queue entry, and the others.

    ``entries`` are those of the half messages' queue from its offset ``first`` on, 20 bytes each. One names the half
    message of an ending when it is the entry of the ending's table offset and holds its log offset.
    """
    named, others = [], []
    for ending in endings:
        at = (ending.table_offset - first) * ENTRY.size
        if 0 <= at <= len(entries) - ENTRY.size:
            offset, size, _ = ENTRY.unpack_from(entries, at)
            if offset == ending.commit_log_offset and size != FILLER_SIZE:
                named.append(ending)
                continue
        others.append(ending)
    return named, others


def match_records(
    endings: Sequence[Ending],
    records: Sequence[Record | None],
    is_prepared: Callable[[Record], bool],
    refuse: Refuse,
) -> list[Ending]:
    """Those of ``endings`` that mean a half message of their group, which lies in ``records``, by their ``record``.

    ``refuse`` answers the others: RocketMQ 4.9.7 ``EndTransactionProcessor`` has the texts and the order.
    """
    matching = []
    for ending, record in zip(endings, records, strict=True):
        if record is None or not is_prepared(record):
            remark = "Find prepared transaction message failed"
        elif record.property_of(PGROUP) != ending.group:
            remark = "The producer group wrong"
        elif record.queue_offset != ending.table_offset:
            remark = "The transaction state table offset wrong"
        else:
            ending.record = record
            matching.append(ending)
            continue
        refuse(ending.request, RemoteFault(ResponseCode.SYSTEM_ERROR, remark))
    return matching


def half_rows(batch: AppendBatch) -> list[int]:
    """The live rows that are half messages (property TRAN_MSG), of those that may be; others of them are refused.

    What a client before 4.6.1 sends back to be consumed again has the property still, and is none: it loses the bits of
    the sys flag that say otherwise, with which no consumer would ever get it. A half message with
    a delay would lie in a queue of delays, where no transaction finds it: RocketMQ loses it, here it is refused.
    """
    rows = []
    property_of = batch.property_of
    for row in batch.live:
        if (property_of(row, TRAN_MSG) or b"").lower() != b"true":
            continue
        is_delayed = property_of(row, DELAY) not in _NO_DELAYS
        if is_delayed and batch.reconsume_times[row] > 0:
            batch.sys_flags[row] &= ~_STATE_BITS
            continue
        if is_delayed:
            batch.refuse(row, ResponseCode.MESSAGE_ILLEGAL, "a half message cannot have a delay level")
        elif not property_of(row, PGROUP):
            batch.refuse(row, ResponseCode.MESSAGE_ILLEGAL, "a half message must name its producer group (PGROUP)")
        else:
            rows.append(row)
    return rows


def divert_rows(
    batch: AppendBatch,
    rows: Sequence[int],
    topic: str,
    changes: Callable[[str, int], dict[bytes, bytes | None]],
    clear: int,
    fitting: int,
) -> list[int]:
    """``batch.divert`` each of the ``rows`` to queue 0 of ``topic``; ``changes`` tells them for the queue of a row.

    Returns the rows whose body and properties have more than ``fitting`` bytes then.
    """
    large = []
    for row in rows:
        batch.divert(row, topic, 0, changes(*batch.queue_of(row)), clear)
        if sum(batch.sizes_of(row)) > fitting:
            large.append(row)
    return large


@attrs.frozen
class EndTerms:
    """What holds for all ends of a batch.

    ``states`` has a byte for each half message, the first one's for queue offset ``origin``; ``moved`` has the first
    offsets of transactions that go on as another one. ``born`` and ``host`` are the notes'. ``fitting``: a half message
    with no more bytes of body and properties can be stored again.
    """

    states: bytearray
    origin: int
    moved: dict[int, int]
    born: int
    host: bytes
    fitting: int


def add_ends(
    batch: AppendBatch,
    endings: Sequence[Ending],
    ended: dict[int, Ending],
    terms: EndTerms,
    other: Callable[[Ending], None],
) -> None:
    """Add the rows of ends that are new, and the ends to ``ended`` by the queue offset of their half message.

    ``other`` does that for the end that it is given, or answers it; it may be asked for each of them.
    """
    for ending in endings:
        other(ending)


def close_ends(
    batch: AppendBatch, ended: Mapping[int, Ending], states: bytearray, origin: int
) -> tuple[int, int, int, int, list[int]]:
    """Set the state of what ended, by its queue offset, where the note of that is written.

    Returns how many were open till then; the lowest and the highest queue offset of a note, and the highest of a half
    message that has one (-1 all without a note); and what has none.
    """
    closed, first, last, highest = 0, -1, -1, -1
    unnoted = []
    for offset, ending in ended.items():
        place, note = batch.place_of(ending.row)
        if place < 0:
            unnoted.append(offset)
            continue
        first = note if first < 0 else min(first, note)
        last, highest = max(last, note), max(highest, offset)
        index = offset - origin
        if 0 <= index < len(states) and states[index] == OPEN:
            states[index] = COMMITTED if ending.is_commit else ROLLED_BACK
            closed += 1
    return closed, first, last, highest, unnoted

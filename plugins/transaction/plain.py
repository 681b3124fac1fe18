"""The inner loops of transactions as plain functions: the reference, also used without a C compiler.

The compiled twin (``_fast``) handles the usual endings. It passes all others to these functions, or to the caller's
``other``, so that both twins decide and refuse alike, with the same texts.
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
from gantrymq.remoting.properties import NO_DELAY
from gantrymq.remoting.property_bytes import DELAY, PGROUP, TRAN_MSG

if TYPE_CHECKING:
    from gantrymq.kernel.batch import AppendBatch
    from gantrymq.kernel.processors import Request
    from gantrymq.kernel.store.log.record import Record

KIND: Final = "plain"

_COMMIT = int(TransactionState.COMMIT)
_STATE_BITS = int(TransactionState.ROLLBACK)
_ENDS = (_COMMIT, int(TransactionState.ROLLBACK))

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
    """The last row of this ending in the batch; set by the strategy that stores endings in batches."""


def read_endings(requests: Sequence[Request], refuse: Refuse) -> list[Ending]:
    """Return the endings of the requests; ``refuse`` answers an invalid request. Omits requests without an outcome."""
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

    ``entries`` are those of the half messages' queue from queue offset ``first`` on, 20 bytes each. An entry belongs to
    an ending if it is at the ending's table offset and has the ending's log offset.
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
    """Return the endings whose record in ``records`` is a half message of their group, and set their ``record``.

    ``refuse`` answers the others, with the texts and the order of RocketMQ 4.9.7 ``EndTransactionProcessor``.
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
    """Return the live rows that are valid half messages (property TRAN_MSG); refuses invalid ones.

    A message that a client before 4.6.1 sends back for a retry still has the property, but is not a half message. It
    loses the transaction bits of its sys flag, with which no consumer would get it. A half message with a delay would
    wait in the queue of a delay level, where no transaction finds it: RocketMQ loses it, GantryMQ refuses it.
    """
    rows = []
    property_of = batch.property_of
    for row in batch.live:
        if (property_of(row, TRAN_MSG) or b"").lower() != b"true":
            continue
        is_delayed = not NO_DELAY.fullmatch(property_of(row, DELAY) or b"0")
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
    """Call ``batch.divert`` for each of the ``rows``, to queue 0 of ``topic``; ``changes`` returns the changed
    properties for the topic and queue id of a row.

    Returns the rows whose body and properties have more than ``fitting`` bytes afterwards.
    """
    large = []
    for row in rows:
        batch.divert(row, topic, 0, changes(*batch.queue_of(row)), clear)
        if sum(batch.sizes_of(row)) > fitting:
            large.append(row)
    return large


@attrs.frozen
class EndTerms:
    """Values that all endings of a batch share.

    ``states`` has a byte for each half message, from queue offset ``origin`` on. ``moved`` has the first offsets of
    transactions whose half message was stored again. ``born`` and ``host`` are for the op messages. A half message can
    be stored again if its body and properties have at most ``fitting`` bytes.
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
    """Add the rows of new endings to ``batch``, and the endings to ``ended``, by the queue offset of their half
    message.

    ``other`` does the same for one ending, or answers it. It may be called for every ending.
    """
    for ending in endings:
        other(ending)


def close_ends(
    batch: AppendBatch, ended: Mapping[int, Ending], states: bytearray, origin: int
) -> tuple[int, int, int, int, list[int]]:
    """Set the states of ended half messages whose op message is written.

    Returns how many of them were open; the lowest and the highest queue offset of these op messages, and the highest
    queue offset of their half messages (all -1 without an op message); and the half messages without an op message.
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

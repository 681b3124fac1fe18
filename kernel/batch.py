"""The columnar batches that hooks get.

A batch has many rows as parallel lists, so that a hook costs one call per turn and not one per message. Refused rows
stay in place, so that row numbers never change, and are left out of :attr:`AppendBatch.live`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, Final

import attrs

from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.properties import find_property, replace_properties

if TYPE_CHECKING:
    from gantrymq.kernel.filters import MessageFilter
    from gantrymq.kernel.processors import Request
    from gantrymq.kernel.store.log.record import Record

STORED: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    }
)
"""Status codes of rows that are stored in the log."""

SETTLED: Final = -1
"""The status of a settled row until its batch is appended; then it is SUCCESS."""

BATCH_MAX_MESSAGES: Final = 200_000
"""The most messages of one send request: their ids, with the longest hosts, still fit into the header of the
response."""
BATCH_STORED_FACTOR: Final = 4
"""All messages of one request take at most this many times ``store.max_message_bytes`` as stored."""


class Source:
    """Where the rows of an :class:`AppendBatch` come from: one source a batch.

    A plugin whose ``before_append`` must get rows of other sources than :data:`CLIENT` declares them:
    ``sources = (Source.CLIENT, ...)``.
    """

    CLIENT: Final = "client"
    """Messages that clients send, replies included."""
    RESEND: Final = "resend"
    """Messages that a consumer's client sends to the retry topic of its group because CONSUMER_SEND_MSG_BACK failed.
    The body is the client's, as in ``client``."""
    RETRY: Final = "retry"
    """Stored messages that a consumer sent back, for the group's retry topic or as dead letters."""
    DELAY: Final = "delay"
    """Stored messages whose delay level is over."""
    TIMER: Final = "timer"
    """Stored timed messages that are due or are enqueued again, and recalls."""
    TRANSACTION: Final = "transaction"
    """Half messages that are committed, checked, discarded or resumed, and op messages."""
    PLUGIN: Final = "plugin"
    """Rows that a plugin appends by itself: the default of a new :class:`AppendBatch`."""

    ALL: Final = (CLIENT, RESEND, RETRY, DELAY, TIMER, TRANSACTION, PLUGIN)
    FROM_SENDERS: Final = (CLIENT, RESEND)
    """Sources whose rows are not stored yet: the sender still has a refused message."""


class Trait:
    """Bits for features that at least one row of a batch uses, so that a plugin can return at once otherwise.

    Plain numbers, because each plugin tests one in each turn, and a flag of ``enum`` takes a microsecond.
    """

    DELAY: Final = 1
    PREPARED: Final = 2
    RETRY: Final = 4
    BATCH: Final = 8
    FREES_SPACE: Final = 16
    """Writing these rows lets log files be deleted: due deliveries, ends of transactions. On a full disk everything
    else is refused first."""


@attrs.frozen
class Earlier:
    """The stored message whose place is in the response to a settled row.

    ``row``: the number of that message's row if it is in the same batch; its place is then -1 until the append.
    """

    offset: int
    queue_id: int
    queue_offset: int
    row: int | None = None


@attrs.define
class AppendBatch:
    """Messages of one turn before they are stored in the commit log.

    ``properties`` have the encoded form as it will be stored; ``born_hosts`` are address and port as stored (8 bytes,
    20 for IPv6 with bit 0x10 in the row's sys flag). ``waits`` says whether the sender waits for the guarantees
    (property WAIT). ``origins`` belongs to the plugin that created the batch; the kernel does not change it. The log
    fills ``offsets``, ``sizes``, ``queue_offsets`` and the batch's ``start``, ``end`` and ``store_timestamp``.
    """

    done: Callable[[AppendBatch], None] | None = None
    """Called exactly once, in the sweep, when every row has its final status."""
    traits: int = 0
    """Bits of :class:`Trait`."""
    source: str = Source.PLUGIN
    """One of :class:`Source`."""

    topics: list[str] = attrs.field(factory=list)
    queue_ids: list[int] = attrs.field(factory=list)
    bodies: list[bytes] = attrs.field(factory=list)
    properties: list[bytes] = attrs.field(factory=list)
    flags: list[int] = attrs.field(factory=list)
    sys_flags: list[int] = attrs.field(factory=list)
    born_timestamps: list[int] = attrs.field(factory=list)
    born_hosts: list[bytes] = attrs.field(factory=list)
    reconsume_times: list[int] = attrs.field(factory=list)
    prepared_offsets: list[int] = attrs.field(factory=list)
    waits: list[bool] = attrs.field(factory=list)
    origins: list[Any] = attrs.field(factory=list)
    attempts_max: dict[int, int] = attrs.field(factory=dict)
    """By row: the most consumption attempts, if the sender has set them."""
    own_queue_offsets: dict[int, int] = attrs.field(factory=dict)
    """By row: the queue offset in the record of a row without a queue entry (``record.PREPARED_BIT``); default 0."""

    response_fields: dict[int, dict[str, str]] = attrs.field(factory=dict)
    """By row: additional fields of the response to its sender, if the message is stored."""

    statuses: list[int] = attrs.field(factory=list)
    remarks: dict[int, str] = attrs.field(factory=dict)
    settled: dict[int, Earlier] = attrs.field(factory=dict)
    """By row: the message whose place is in the response to a settled row. The columns that the log fills have no
    values for settled rows."""

    offsets: list[int] = attrs.field(factory=list)
    sizes: list[int] = attrs.field(factory=list)
    queue_offsets: list[int] = attrs.field(factory=list)
    start: int = 0
    """Where the log ended when the broker took the batch."""
    end: int = 0
    store_timestamp: int = 0
    refused: int = 0
    """How many rows the log does not store: the refused and the settled ones."""
    _tied: dict[int, int] = attrs.field(factory=dict, init=False)

    def __len__(self) -> int:
        return len(self.topics)

    def add(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: bytes,
        *,
        flag: int = 0,
        sys_flag: int = 0,
        born_timestamp: int = 0,
        born_host: bytes = b"\x7f\0\0\x01\0\0\0\0",
        reconsume_times: int = 0,
        prepared_offset: int = 0,
        wait: bool = True,
        origin: Any = None,
    ) -> None:
        """Append one row."""
        self.topics.append(topic)
        self.queue_ids.append(queue_id)
        self.bodies.append(body)
        self.properties.append(properties)
        self.flags.append(flag)
        self.sys_flags.append(sys_flag)
        self.born_timestamps.append(born_timestamp)
        self.born_hosts.append(born_host)
        self.reconsume_times.append(reconsume_times)
        self.prepared_offsets.append(prepared_offset)
        self.waits.append(wait)
        self.origins.append(origin)
        self.statuses.append(ResponseCode.SUCCESS)

    def add_stored(
        self,
        record: Record,
        topic: str,
        queue_id: int,
        *,
        properties: bytes | None = None,
        sys_flag: int | None = None,
        prepared_offset: int = 0,
        wait: bool = True,
        origin: Any = None,
    ) -> None:
        """Append a stored message again: a row with the body, flag, born host and timestamps of ``record``, and with
        its properties and sys flag unless others are given."""
        self.add(
            topic,
            queue_id,
            record.body,
            record.properties if properties is None else properties,
            flag=record.flag,
            sys_flag=record.sys_flag if sys_flag is None else sys_flag,
            born_timestamp=record.born_timestamp,
            born_host=record.born_host,
            reconsume_times=record.reconsume_times,
            prepared_offset=prepared_offset,
            wait=wait,
            origin=origin,
        )

    def tie_next_to(self, row: int) -> None:
        """Tie the next added row to ``row``: a refusal of ``row`` also refuses that row."""
        self._tied[row] = len(self)

    def refuse(self, row: int, code: int, remark: str) -> None:
        """Refuse ``row``: its sender gets ``code`` and ``remark``. The first refusal counts.

        :class:`ValueError` for a code that says that the message is stored (:data:`STORED`), and for a settled row.
        """
        if code in STORED:
            raise ValueError(f"a row cannot be refused with code {int(code)}, which says that the message is stored")
        if row in self.settled:
            raise ValueError(f"row {row} is settled and cannot be refused; batch.live has the rows to look at")
        if self.statuses[row] == ResponseCode.SUCCESS:
            self.statuses[row] = code
            self.remarks[row] = remark
            self.refused += 1
        if row in self._tied:
            self.refuse(self._tied[row], code, remark)

    def refuse_all(self, code: int, remark: str) -> None:
        """Refuse every row, including settled ones, because the broker may acknowledge nothing (a slave)."""
        refuse_every_row(self, code, remark)

    def settle(self, row: int, *, offset: int, queue_id: int, queue_offset: int) -> None:
        """Do not store ``row``: its sender gets the response for the message at the log offset ``offset``, after every
        gate has passed the present end of the log.

        ``queue_id`` and ``queue_offset`` are that message's, for the response. The message may be deleted already.
        :class:`ValueError` for an offset beyond the log's end, for a row that is refused or settled, and for rows of
        other sources than :data:`Source.FROM_SENDERS`, of which the broker has the only copy.
        """
        settle_row(self, row, offset, queue_id, queue_offset)

    def settle_as(self, row: int, earlier: int) -> None:
        """As :meth:`settle`, with the message of row ``earlier`` of this batch.

        If that row is refused later, ``row`` is refused with the same code and remark. :class:`ValueError` also when
        ``earlier`` is not before ``row``, or is refused already.
        """
        settle_row_as(self, row, earlier)

    def place(self, start: int, store_timestamp: int) -> None:
        """Begin at the log offset ``start``: no row is stored yet (offset -1, size 0)."""
        count = len(self)
        self.offsets, self.sizes, self.queue_offsets = [-1] * count, [0] * count, [-1] * count
        self.start = self.end = start
        self.store_timestamp = store_timestamp

    # Access to one row without creating a column.

    def queue_of(self, row: int) -> tuple[str, int]:
        """Topic and queue id of ``row``."""
        return self.topics[row], self.queue_ids[row]

    def property_of(self, row: int, name: bytes) -> bytes | None:
        """See :func:`find_property`."""
        return find_property(self.properties[row], name)

    def sizes_of(self, row: int) -> tuple[int, int]:
        """Return the bytes of the body and of the encoded properties of ``row``."""
        return len(self.bodies[row]), len(self.properties[row])

    def divert(self, row: int, topic: str, queue_id: int, changes: dict[bytes, bytes | None], clear: int) -> None:
        """Move ``row`` to another queue and change its properties as :func:`replace_properties`.

        ``clear``: bits to clear in its sys flag.
        """
        self.properties[row] = replace_properties(self.properties[row], changes)
        self.topics[row] = topic
        self.queue_ids[row] = queue_id
        self.sys_flags[row] &= ~clear

    def place_of(self, row: int) -> tuple[int, int]:
        """Log offset and queue offset of ``row``; both -1 before the log has stored it."""
        return (self.offsets[row], self.queue_offsets[row]) if self.offsets else (-1, -1)

    @property
    def waited_for(self) -> bool:
        """Whether the sender of at least one row waits for the guarantees."""
        return any(self.waits)

    @property
    def live(self) -> range | list[int]:
        """The numbers of the rows that are neither refused nor settled, in order."""
        if not self.refused:
            return range(len(self.topics))
        return [row for row, status in enumerate(self.statuses) if status == ResponseCode.SUCCESS]


def settle_row(batch: AppendBatch, row: int, offset: int, queue_id: int, queue_offset: int) -> None:
    """:meth:`AppendBatch.settle`, for both twins of the batch."""
    if not 0 <= offset < batch.start:
        raise ValueError(
            f"row {row} cannot be settled with the message at offset {offset}: the log ends at {batch.start}"
        )
    if queue_id < 0 or queue_offset < 0:
        raise ValueError(f"row {row} cannot be settled with queue {queue_id} and queue offset {queue_offset}")
    _settle(batch, row, Earlier(offset, queue_id, queue_offset))


def settle_row_as(batch: AppendBatch, row: int, earlier: int) -> None:
    """:meth:`AppendBatch.settle_as`, for both twins of the batch."""
    if not 0 <= earlier < row:
        raise ValueError(f"row {row} cannot be settled with row {earlier}, which is not before it")
    known = batch.settled.get(earlier)
    if known is None and batch.statuses[earlier] != ResponseCode.SUCCESS:
        raise ValueError(f"row {row} cannot be settled with row {earlier}, which is refused")
    _settle(batch, row, Earlier(-1, -1, -1, earlier) if known is None else known)


def _settle(batch: AppendBatch, row: int, earlier: Earlier) -> None:
    if batch.source not in Source.FROM_SENDERS:
        raise ValueError(
            f"rows of the source {batch.source!r} cannot be settled: the broker has the only copy of the message;"
            f" those of {' and '.join(Source.FROM_SENDERS)} can"
        )
    if batch.statuses[row] != ResponseCode.SUCCESS:
        state = "settled" if row in batch.settled else "refused"
        raise ValueError(f"row {row} is {state} already; batch.live has the rows to look at")
    batch.statuses[row] = SETTLED
    batch.settled[row] = earlier
    batch.refused += 1


def refuse_every_row(batch: AppendBatch, code: int, remark: str) -> None:
    """:meth:`AppendBatch.refuse_all`, for both twins of the batch."""
    for row in batch.live:
        batch.refuse(row, code, remark)
    for row in batch.settled:
        batch.statuses[row], batch.remarks[row] = code, remark
    batch.settled.clear()


def finish_settled(batch: AppendBatch) -> None:
    """Set the status of settled rows after the append, and the places of their messages that are rows of ``batch``."""
    statuses, settled = batch.statuses, batch.settled
    for row, earlier in list(settled.items()):
        statuses[row] = ResponseCode.SUCCESS
        if earlier.row is None:
            continue
        if statuses[earlier.row] == ResponseCode.SUCCESS:
            offset, queue_offset = batch.place_of(earlier.row)
            settled[row] = Earlier(offset, batch.queue_of(earlier.row)[1], queue_offset, earlier.row)
        else:
            del settled[row]
            statuses[row], batch.remarks[row] = statuses[earlier.row], batch.remarks[earlier.row]


@attrs.define
class DispatchBatch:
    """Committed records in log order, covering the log from ``start`` to ``end`` without a gap.

    Built from the rows that were just appended, or from the log itself (``replay`` during recovery). Each column has
    one value per record; ``tag_codes`` are those of the consume queue entries; ``properties`` have the encoded form.
    """

    start: int
    end: int
    offsets: list[int]
    sizes: list[int]
    topics: list[str]
    queue_ids: list[int]
    queue_offsets: list[int]
    store_timestamps: list[int]
    sys_flags: list[int]
    prepared_offsets: list[int]
    properties: list[bytes]
    tag_codes: list[int]
    replay: bool = False

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def newest_timestamp(self) -> int:
        """The highest store timestamp (ms since 1970); 0 without rows."""
        return max(self.store_timestamps, default=0)

    @property
    def sys_flag_bits(self) -> int:
        """The sys flag bits that at least one row has. Cheaper than reading each row."""
        return reduce(or_, self.sys_flags, 0)

    @property
    def queues(self) -> list[tuple[str, int]]:
        """The distinct queues of the rows: topic and queue id. Cheaper than reading each row."""
        return list(dict.fromkeys(zip(self.topics, self.queue_ids, strict=True)))

    def tag_codes_of(self, topic: str, queue_id: int) -> set[int]:
        """Return the tag codes of the rows of a queue."""
        rows = zip(self.topics, self.queue_ids, self.tag_codes, strict=True)
        return {code for row_topic, row_queue, code in rows if row_topic == topic and row_queue == queue_id}


@attrs.define(eq=False)
class Pull:
    """One parsed and checked pull request, with its deadline."""

    request: Request
    group: str
    topic: str
    queue_id: int
    offset: int
    limit: int
    filter: MessageFilter
    may_hold: bool
    deadline: float
    """The deadline by ``env.monotonic()``, in seconds."""
    max_bytes: int = 0
    """The largest response in bytes that the client accepts; with 0, RocketMQ's limits apply instead of ``limit``."""
    from_group: bool = False
    """Whether ``filter`` is the group's subscription at the request's arrival, not one that the request carries."""


@attrs.define
class PullBatch:
    """Pulls of one turn that found nothing; ``resume(rows)`` runs them again without permission to wait."""

    rows: list[Pull]
    resume: Callable[[list[Pull]], None]

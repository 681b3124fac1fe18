"""Calls the hook ``before_deliver`` for stored messages on their way to a peer.

If a plugin raises at a message, neither that message nor the following ones of its queue are delivered, whatever the
plugin's error policy is.
"""

from __future__ import annotations

import operator
import struct
import zlib
from collections.abc import Callable
from typing import Any, Final, Literal

import attrs
import structlog

from gantrymq.kernel import fast
from gantrymq.kernel.errors import LogPoisoned, PluginError
from gantrymq.kernel.manager import PluginInfo, PluginManager
from gantrymq.kernel.network.connection import Connection
from gantrymq.kernel.store.log.record import (
    CRC_MASK,
    HOST_V6_BITS,
    PROPERTIES_LIMIT,
    SYS_FLAG_AT,
    body_end_in,
)
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.properties import find_property
from gantrymq.remoting.rare_warnings import RareWarnings
from gantrymq.remoting.records import HEADS, MAGIC_V1

log = structlog.get_logger("gantrymq.delivery")

HOOK: Final = "before_deliver"
RESPONSE_MAX_BYTES: Final = 15 * 1024 * 1024
"""The size of a response after which further messages wait for the next one; RocketMQ's clients accept frames of
16 MiB."""
_CRC_AT: Final = 8
_I32 = struct.Struct(">i")
_U32 = struct.Struct(">I")
_U16 = struct.Struct(">H")

Purpose = Literal["pull", "query", "check", "direct"]
"""Why messages are delivered: to a consumer; for a query (``queryMessage``, ``viewMessage``); as the check-back of a
half message to its producer; to the consumer that an administrator chose (``consumeMessageDirectly``)."""


@attrs.define
class DeliverBatch:
    """Stored messages on their way out, as columns; ``bodies`` and ``properties`` may be changed.

    ``properties`` are encoded. ``connection`` leads to the peer that gets the messages. ``group`` is the consumer group
    of a pull, else None.
    """

    connection: Connection | None
    group: str | None
    purpose: Purpose
    topics: list[str]
    queue_ids: list[int]
    queue_offsets: list[int]
    offsets: list[int]
    store_timestamps: list[int]
    bodies: list[bytes]
    properties: list[bytes]
    withheld: set[int] = attrs.field(factory=set, init=False)

    def __len__(self) -> int:
        return len(self.topics)

    def withhold(self, row: int) -> None:
        """Leave ``row`` out: a consumer continues behind it, as behind a message that its filter rejects."""
        if not 0 <= row < len(self):
            raise IndexError(f"there is no row {row}, the batch has {len(self)}")
        self.withheld.add(row)

    def property_of(self, row: int, name: bytes) -> bytes | None:
        """See :func:`find_property`."""
        return find_property(self.properties[row], name)

    @property
    def live(self) -> range | list[int]:
        """The numbers of the rows that are not withheld, ascending."""
        rows = range(len(self))
        return [row for row in rows if row not in self.withheld] if self.withheld else rows


@attrs.frozen
class Delivered:
    """``messages`` whole records to send, one after the other in ``data``.

    ``decided`` is the number of given records, from the first one on, that are either in ``data`` or withheld. That is
    all of them, unless the response is full or ``fault`` says why the next one cannot be delivered.
    """

    data: bytes
    messages: int
    decided: int
    fault: RemoteFault | None = None


class Deliveries:
    """Calls the plugins that have the hook. ``broker.registry`` provides it only if there is one."""

    def __init__(self, manager: PluginManager, clock: Callable[[], float]) -> None:
        self._manager = manager
        self._warnings = RareWarnings(clock)
        self._plugins = manager.batch_functions(HOOK)

    def deliver(
        self, records: bytes, purpose: Purpose, connection: Connection | None = None, group: str | None = None
    ) -> Delivered:
        """Let the plugins change or withhold whole, intact records, which ``records`` has one after the other."""
        columns = fast.delivery_columns(records)
        starts = columns[0]
        batch = DeliverBatch(connection, group, purpose, *columns[1:])
        stored_bodies, stored_properties = batch.bodies[:], batch.properties[:]
        count, fault = len(batch), None
        for info, function in self._plugins:
            failed, own_fault = self._ask(info, function, batch, count)
            if own_fault is not None:
                count, fault = failed, own_fault
        changed = {
            *_changed_rows(stored_bodies, batch.bodies),
            *_changed_rows(stored_properties, batch.properties),
        }  # fmt: skip
        if fault is None and not changed and not batch.withheld and len(records) <= RESPONSE_MAX_BYTES:
            return Delivered(records, count, count)
        parts: list[bytes] = []
        size = 0
        for row in range(count):
            if row in batch.withheld:
                continue
            part = records[starts[row] : starts[row + 1]]
            if row in changed:
                part = _rewritten(part, batch.bodies[row], batch.properties[row])
            if parts and size + len(part) > RESPONSE_MAX_BYTES:
                return Delivered(b"".join(parts), len(parts), row)
            parts.append(part)
            size += len(part)
        return Delivered(b"".join(parts), len(parts), count, fault)

    def deliver_one(self, record: bytes, purpose: Purpose, connection: Connection | None = None) -> bytes | None:
        """:meth:`deliver` of one record; None if it is withheld. ``RemoteFault`` if it cannot be delivered."""
        delivered = self.deliver(record, purpose, connection)
        if delivered.fault is not None:
            raise delivered.fault
        return delivered.data or None

    def _ask(
        self, info: PluginInfo, function: Callable[[DeliverBatch], Any], batch: DeliverBatch, count: int
    ) -> tuple[int, RemoteFault | None]:
        """Call one plugin. Returns how many of the first ``count`` rows come before one at which it fails, and the
        fault."""
        before = list(batch.bodies), list(batch.properties), set(batch.withheld)
        try:
            function(batch)
            rows = {*_changed_rows(before[0], batch.bodies), *_changed_rows(before[1], batch.properties)}
            for row in rows - batch.withheld:
                _check(batch.bodies[row], batch.properties[row])
            return count, None
        except (LogPoisoned, PluginError, MemoryError):
            raise
        except Exception as error:
            batch.bodies[:], batch.properties[:] = before[0], before[1]
            batch.withheld = before[2]
            if len(batch) == 1:
                return 0, self._fault(info, error)
        for row in range(count):
            if row in batch.withheld:
                continue
            single = _row_of(batch, row)
            _, fault = self._ask(info, function, single, 1)
            if fault is not None:
                return row, fault
            batch.bodies[row], batch.properties[row] = single.bodies[0], single.properties[0]
            if single.withheld:
                batch.withheld.add(row)
        return count, None

    def _fault(self, info: PluginInfo, error: Exception) -> RemoteFault:
        self._manager.activity.failed(info.name, HOOK, error)
        text = self._manager.describe_failure(info, HOOK, error)
        if self._warnings.is_due(info.name + type(error).__name__):
            log.error("delivery_failed", plugin=info.name, reason=text, exc_info=error)
        remark = f"the plugin {info.name!r} failed to deliver the message; the broker's log has the reason"
        return RemoteFault(ResponseCode.SYSTEM_ERROR, remark)


def _changed_rows(before: list[bytes], now: list[bytes]) -> list[int]:
    """Return the rows whose value is another object now. ``IndexError`` if there are more or fewer rows."""
    if len(before) != len(now):
        raise IndexError(f"the batch has {len(before)} rows, the plugin has left {len(now)} values in a column")
    if all(map(operator.is_, before, now)):
        return []
    return [row for row, (old, new) in enumerate(zip(before, now, strict=True)) if old is not new]


def _row_of(batch: DeliverBatch, row: int) -> DeliverBatch:
    columns = ("topics", "queue_ids", "queue_offsets", "offsets", "store_timestamps", "bodies", "properties")
    own = {name: [getattr(batch, name)[row]] for name in columns}
    return DeliverBatch(batch.connection, batch.group, batch.purpose, **own)


def _check(body: bytes, properties: bytes) -> None:
    """Raise an error if the body or the properties from a plugin do not fit into a record."""
    if type(body) is not bytes or type(properties) is not bytes:
        raise TypeError("bodies and properties must be bytes")
    if len(properties) > PROPERTIES_LIMIT:
        raise ValueError(f"the properties have {len(properties)} bytes, at most {PROPERTIES_LIMIT} fit")


def _rewritten(record: bytes, body: bytes, properties: bytes) -> bytes:
    """Return the intact ``record`` with this body and these properties in place of its own."""
    head = bytearray(record[: HEADS[int.from_bytes(record[SYS_FLAG_AT : SYS_FLAG_AT + 4], "big") & HOST_V6_BITS].size])
    end = body_end_in(record)
    topic_end = end + (1 if int.from_bytes(record[4:8], "big") == MAGIC_V1 else 2)
    topic_end += int.from_bytes(record[end:topic_end], "big")
    topic = record[end:topic_end]
    _I32.pack_into(head, 0, len(head) + len(body) + len(topic) + 2 + len(properties))
    _U32.pack_into(head, _CRC_AT, zlib.crc32(body) & CRC_MASK)
    _I32.pack_into(head, len(head) - 4, len(body))
    return b"".join((head, body, topic, _U16.pack(len(properties)), properties))

"""Find messages through the index and read them from the log; plain functions for worker threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from gantrymq.kernel.errors import CorruptRange, OutOfLog
from gantrymq.kernel.store.log.record import PREPARED_BIT, BadRecord, Record, decode
from gantrymq.kernel.store.log.scan import checked_size
from gantrymq.kernel.store.reading import find_named
from gantrymq.plugins.interfaces import MessageIndex
from gantrymq.remoting.names import TRANS_HALF_TOPIC
from gantrymq.remoting.properties import KEYS, UNIQ_KEY, decode_properties

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker

RESPONSE_MAX_BYTES: Final = 15 * 1024 * 1024
"""The most bytes of one response; RocketMQ's clients accept frames of 16 MiB."""
READS_MAX: Final = 10_000
"""The most messages that one search reads without a match."""


@attrs.frozen
class KeySearch:
    """Up to ``limit`` messages of ``topic`` with ``key``, stored from ``begin`` to ``end`` (ms)."""

    topic: str
    key: str
    limit: int
    begin: int
    end: int

    def is_met(self, record: Record) -> bool:
        """Return whether this message matches. Records without a queue entry (of a transaction that is open or was
        rolled back) never do."""
        if record.sys_flag & PREPARED_BIT:
            return False
        if record.topic != self.topic or not self.begin <= record.store_timestamp <= self.end:
            return False
        properties = decode_properties(record.properties.decode("utf-8", "replace"))
        return properties.get(UNIQ_KEY) == self.key or self.key in properties.get(KEYS, "").split(" ")


def find_messages(broker: Broker, index: MessageIndex, search: KeySearch) -> list[bytes]:
    """Return the newest records that match ``search``, oldest first; fewer if they would exceed one response."""
    found: list[bytes] = []
    total = 0
    if search.limit > 0:
        for reads, offset in enumerate(index.find(search.topic, search.key, search.begin, search.end)):
            data = read_intact(broker, offset)
            if data is not None and search.is_met(decode(data, check_body=False)[0]):
                total += len(data)
                if found and total > RESPONSE_MAX_BYTES:
                    break
                found.append(data)
            if len(found) >= search.limit or reads >= READS_MAX:
                break
    return found[::-1]


def read_by_offset(broker: Broker, offset: int) -> bytes | None:
    """Return the verified message at an offset from a client; None if there is none that may be read by its offset.

    A readable message has a queue entry and is not a half message: a half message must not be visible before its
    transaction is committed.
    """
    named = find_named(broker.store, offset)
    return None if named is None or named.topic == TRANS_HALF_TOPIC else read_intact(broker, offset)


def read_intact(broker: Broker, offset: int) -> bytes | None:
    """Return the verified record at ``offset``; None if there is none, or if it may not be read yet."""
    commit_log = broker.log
    try:
        size = checked_size(commit_log.view, offset)
        if size <= 0 or offset + size > broker.store.dispatched:
            return None
        data = bytes(commit_log.view(offset, size))
        record, _ = decode(data)
    except (OutOfLog, CorruptRange, BadRecord, OSError):
        return None
    return data if record.offset == offset else None

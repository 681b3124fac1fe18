"""A consume queue's extension: tag code, store timestamp and a bit map for each message, where an entry has only 8
bytes.

The queue's entry holds an address instead of the tag code. ``docs/format/consume-queue.md`` has the grammar. Source:
RocketMQ 4.9.7 ``ConsumeQueueExt`` (with ``enableConsumeQueueExt``).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import attrs
import structlog

from gantrymq.kernel.env import Env
from gantrymq.kernel.fast import QueueEntries
from gantrymq.kernel.filters import EXTENSION_ADDRESSES_END
from gantrymq.kernel.layouts import ENTRY
from gantrymq.kernel.store.log.segments import Segments, StoreDamaged
from gantrymq.kernel.store.queues.queue_outages import QueueOutages

log = structlog.get_logger("gantrymq.queues")

FILE_BYTES: Final = 48 * 1024 * 1024
"""RocketMQ's ``mappedFileSizeConsumeQueueExt``."""
"""A queue's entry, as in :mod:`gantrymq.kernel.store.queues.consume_queue`."""
_UNIT: Final = struct.Struct(">hqqh")
"""Size of the unit, tag code, store timestamp (ms), bytes of the bit map that follows."""
_END: Final = struct.pack(">h", -1)
_END_ROOM: Final = 4
"""The bytes that a unit must leave free in its file; otherwise -1 says that the next unit is in the next file."""
_BASE: Final = -(2**63)
_READ_BYTES: Final = 64 * 1024


@attrs.frozen
class ExtensionUnit:
    """One unit of the extension. ``size`` is the size of the unit in bytes."""

    size: int
    tag_code: int
    store_timestamp: int
    bits: bytes


def is_address(code: int) -> bool:
    """Return whether the third field of a queue entry is an address in the extension and not a tag code."""
    return code < EXTENSION_ADDRESSES_END


def last_address(entries: bytes | None) -> int | None:
    """Return the last address among the entries of a queue."""
    return next((code for _, _, code in reversed(list(ENTRY.iter_unpack(entries or b""))) if is_address(code)), None)


class QueueExtension:
    """The extension of one queue, in ``folder``. One thread writes; reading may be done from any."""

    def __init__(
        self,
        env: Env,
        folder: str,
        staging: str,
        file_bytes: int = FILE_BYTES,
        outages: QueueOutages | None = None,
    ) -> None:
        """``outages``: shared with the extensions of other queues; None if this is the only one."""
        self._env = env
        self._outages = outages or QueueOutages(env)
        self.folder = folder
        self._staging = staging
        self._file_bytes = file_bytes
        self._segments = self._make_segments()
        self._end = 0

    def _make_segments(self) -> Segments:
        return Segments(self._env, self.folder, self._file_bytes, self._staging, sparse=True)

    @property
    def exists(self) -> bool:
        """Whether there are files."""
        return len(self._segments) > 0

    @property
    def is_unsynced(self) -> bool:
        """Whether something was written since the last :meth:`sync`."""
        return any(segment.unsynced for segment in self._segments)

    def load(self) -> None:
        """Find the files; damaged ones are deleted, because their content can be read from the log."""
        if not self._env.is_dir(self.folder):
            return
        try:
            self._segments.load()
        except StoreDamaged as error:
            log.error("queue_extension_discarded", path=self.folder, reason=str(error))
            self.discard()
        self._end = self._segments.end

    def discard(self) -> None:
        """Delete everything."""
        self._segments.close()
        if self.exists or self._env.is_dir(self.folder):
            self._env.rmtree(self.folder)
        self._segments = self._make_segments()
        self._end = 0
        self._outages.extension_written(self.folder)

    # ------------------------------------------------------------------------------------------------------- read

    def unit(self, address: int) -> ExtensionUnit | None:
        """Return the unit at an address; None where there is none."""
        return self._unit(address - _BASE, self._segments.pread(address - _BASE, 2**15))

    @staticmethod
    def _unit(offset: int, data: bytes | None) -> ExtensionUnit | None:
        if data is None or offset < 0 or len(data) < _UNIT.size:
            return None
        size, code, stored, bits = _UNIT.unpack_from(data)
        if size < _UNIT.size or bits < 0 or size != _UNIT.size + bits or len(data) < size:
            return None
        return ExtensionUnit(size, code, stored, data[_UNIT.size : size])

    def resolve(self, entries: bytes | None, read: Callable[[Segments, int, int], bytes | None]) -> bytes | None:
        """Replace addresses in entries by tag codes; an address without a valid unit stays.

        ``read`` gives bytes of the files, or None instead of waiting for the disk: then the result is None.
        """
        if not entries or not self.exists:
            return entries
        rows = list(ENTRY.iter_unpack(entries))
        codes = self._tag_codes([code for _, _, code in rows if is_address(code)], read)
        if codes is None:
            return None
        found = iter(codes)
        return b"".join(ENTRY.pack(at, size, next(found) if is_address(code) else code) for at, size, code in rows)

    def _tag_codes(
        self, addresses: Sequence[int], read: Callable[[Segments, int, int], bytes | None]
    ) -> list[int] | None:
        codes: list[int] = []
        first, block = 0, b""
        for address in addresses:
            offset = address - _BASE
            if not first <= offset <= first + len(block) - _UNIT.size:
                found = read(self._segments, offset, _READ_BYTES)
                if found is None:
                    return None
                first, block = offset, found
            at = offset - first
            if at + _UNIT.size <= len(block) and (unit := _UNIT.unpack_from(block, at))[0] >= _UNIT.size:
                codes.append(unit[1])
            else:
                codes.append(address)
        return codes

    # ------------------------------------------------------------------------------------------------------ write

    def take(self, more: QueueEntries, stored: Mapping[int, int], known_end: int) -> QueueEntries:
        """Store the tag codes and store timestamps of entries; returns the entries with addresses instead of the tag
        codes.

        ``stored`` has the timestamps by log offset. An entry whose record ends at or before ``known_end`` is already
        stored. If the units cannot be written, the entries are returned unchanged, as in RocketMQ.
        """
        rows = list(ENTRY.iter_unpack(more.entries))
        known = sum(offset + size <= known_end for offset, size, _ in rows)
        try:
            places = self.put([(code, stored[offset]) for offset, _, code in rows[known:]])
        except OSError as error:
            self._outages.extension_failed(self.folder, error)
            return more
        self._outages.extension_written(self.folder)
        entries = [ENTRY.pack(*row) for row in rows[:known]]
        entries += [ENTRY.pack(*row[:2], place) for row, place in zip(rows[known:], places, strict=True)]
        return more._replace(entries=b"".join(entries))

    def put(self, rows: Sequence[tuple[int, int]]) -> list[int]:
        """Add a unit without a bit map for each tag code and store timestamp; returns their addresses in order.

        :class:`OSError` when they could not be written; then the next call writes at the same places.
        """
        addresses: list[int] = []
        offset = begin = self._end
        piece = bytearray()
        for code, stored in rows:
            if self._file_bytes - offset % self._file_bytes - _END_ROOM < _UNIT.size:
                self._write(begin, bytes(piece) + _END)
                offset += self._file_bytes - offset % self._file_bytes
                begin, piece = offset, bytearray()
            addresses.append(offset + _BASE)
            piece += _UNIT.pack(_UNIT.size, code, stored, 0)
            offset += _UNIT.size
        self._write(begin, bytes(piece))
        self._end = offset
        return addresses

    def _write(self, offset: int, data: bytes) -> None:
        if not len(self._segments):
            self._env.mkdirs(self.folder)
        self._segments.ensure(offset)
        self._segments.write(offset, data)

    def sync(self) -> None:
        """Flush everything that was written."""
        self._segments.sync()

    # --------------------------------------------------------------------------------------------------- both ends

    def cut_behind(self, address: int | None) -> None:
        """Truncate behind the unit at ``address``; delete everything if no entry has an address (None)."""
        if not self.exists:
            return
        unit = None if address is None else self.unit(address)
        if address is None or address - _BASE >= self._segments.end or address - _BASE < self._segments.start:
            self.discard()
            return
        self._end = address - _BASE + (_UNIT.size if unit is None else unit.size)
        self._segments.truncate(self._end)

    def drop_before(self, address: int | None) -> None:
        """Delete the files that lie completely before ``address``; with None, delete nothing."""
        if address is not None:
            self._segments.delete_before(address - _BASE)

    def close(self) -> None:
        """Close the files; the next use opens them again."""
        self._segments.close()

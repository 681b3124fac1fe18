"""The flushed part of the store: RocketMQ's ``checkpoint``, and GantryMQ's watermark file beside it.

The checkpoint has only timestamps. The file ``gantrymq.watermark`` has log offsets: the log below ``durable`` is
flushed, and the consume queues below ``dispatched``. It also names the checkpoint that it belongs to, so that it is not
used after RocketMQ's broker has written to the store. ``docs/format/store.md``.
"""

from __future__ import annotations

import struct
import zlib
from enum import Enum
from typing import Final

import attrs

from gantrymq.kernel.env import Env, File
from gantrymq.kernel.errors import NO_ROOM, NoRoom

CHECKPOINT_BYTES: Final = 4096
_CHECKPOINT = struct.Struct(">3q")
_MARGIN_MS: Final = 3000
"""How much older than the checkpoint a record must be to count as flushed (``StoreCheckpoint.getMinTimestamp``)."""

_SLOT_STEP: Final = 512
"""Each of the two slots has its own sector, so writing one cannot tear the other."""
_SLOT = struct.Struct(">4sIqqqqII")
_START_AT: Final = 2 * _SLOT_STEP
"""Position of the slot with the log's start, also in its own sector."""
_START = struct.Struct(">4sIq")
_START_MAGIC: Final = b"GMQS"
_CRC = struct.Struct(">I")
_MAGIC: Final = b"GMQW"
_VERSION: Final = 1


@attrs.frozen
class Checkpoint:
    """Store timestamps (ms) of the last flushed record in the log, the consume queues and the index."""

    log_timestamp: int = 0
    queue_timestamp: int = 0
    index_timestamp: int = 0

    @property
    def safe_timestamp(self) -> int:
        """Records that were stored at or before this time are flushed in log and queue; never negative."""
        return max(min(self.log_timestamp, self.queue_timestamp) - _MARGIN_MS, 0)

    def encode(self) -> bytes:
        """Return the first 24 bytes of the file."""
        return _CHECKPOINT.pack(self.log_timestamp, self.queue_timestamp, self.index_timestamp)


def decode_checkpoint(data: bytes) -> Checkpoint:
    """Return the checkpoint in ``data``; all zero if it is too short. Negative times count as 0."""
    if len(data) < _CHECKPOINT.size:
        return Checkpoint()
    return Checkpoint(*(max(value, 0) for value in _CHECKPOINT.unpack_from(data)))


@attrs.frozen
class Marks:
    """The content of the watermark file: log offsets, the number of queue entries at ``dispatched``, the kind of
    stop."""

    durable: int
    dispatched: int
    units: int
    clean: bool

    def encode(self, sequence: int, checkpoint: Checkpoint) -> bytes:
        """Return one slot of the file."""
        data = _SLOT.pack(
            _MAGIC, _VERSION, sequence, self.durable, self.dispatched, self.units, self.clean,
            zlib.crc32(checkpoint.encode()),
        )  # fmt: skip
        return data + _CRC.pack(zlib.crc32(data))


def decode_marks(data: bytes, checkpoint: Checkpoint) -> tuple[Marks | None, int]:
    """Return the newest slot in ``data`` that belongs to ``checkpoint``, and the highest sequence number of any slot.

    A slot that is torn, has another version, or contradicts itself is ignored.
    """
    marks, highest, _ = _find_marks(data, checkpoint)
    return marks, highest


def _find_marks(data: bytes, checkpoint: Checkpoint) -> tuple[Marks | None, int, int | None]:
    """As :func:`decode_marks`, and the position of that slot in the file; None if there is none."""
    best: Marks | None = None
    place: int | None = None
    best_sequence = highest = 0
    for start in (0, _SLOT_STEP):
        slot = data[start : start + _SLOT.size + _CRC.size]
        if len(slot) < _SLOT.size + _CRC.size or _CRC.unpack_from(slot, _SLOT.size)[0] != zlib.crc32(slot[:-4]):
            continue
        magic, version, sequence, durable, dispatched, units, clean, belongs_to = _SLOT.unpack_from(slot)
        highest = max(highest, sequence)
        right = magic == _MAGIC and version == _VERSION and belongs_to == zlib.crc32(checkpoint.encode())
        if right and 0 <= dispatched <= durable and units >= 0 and sequence > best_sequence:
            best = Marks(durable, dispatched, units, bool(clean))
            best_sequence, place = sequence, start
    return best, highest, place


class SlotState(Enum):
    """What a slot of the watermark file is. ``OTHER``: it belongs to another checkpoint."""

    EMPTY = "empty"
    TORN = "torn"
    OTHER = "other"
    VALID = "valid"


def slot_states(data: bytes, checkpoint: Checkpoint) -> tuple[SlotState, SlotState]:
    """Return the states of the two slots in ``data``, for the check of a store."""
    return _slot_state(data, 0, checkpoint), _slot_state(data, _SLOT_STEP, checkpoint)


def _slot_state(data: bytes, start: int, checkpoint: Checkpoint) -> SlotState:
    slot = data[start : start + _SLOT.size + _CRC.size]
    if not slot.strip(b"\0"):
        return SlotState.EMPTY
    if len(slot) < _SLOT.size + _CRC.size or _CRC.unpack_from(slot, _SLOT.size)[0] != zlib.crc32(slot[:-4]):
        return SlotState.TORN
    alone = bytes(start) + slot
    return SlotState.OTHER if decode_marks(alone, checkpoint)[0] is None else SlotState.VALID


def raw_times(data: bytes) -> tuple[int, ...] | None:
    """Return the three times of a checkpoint as they are written; None if it is too short."""
    return _CHECKPOINT.unpack_from(data) if len(data) >= _CHECKPOINT.size else None


def has_start(data: bytes) -> bool:
    """Return whether the watermark file ``data`` has bytes where the log's start is recorded."""
    return bool(data[_START_AT : _START_AT + _START.size + _CRC.size].strip(b"\0"))


def corrected_marks(data: bytes, before: Checkpoint, after: Checkpoint) -> bytes | None:
    """Return the watermark file ``data`` for the corrected checkpoint ``after``: one slot is replaced.

    The other slot still belongs to the checkpoint ``before``. None if no slot belongs to it.
    """
    marks, sequence, place = _find_marks(data, before)
    if marks is None or place is None:
        return None
    changed = bytearray(data.ljust(CHECKPOINT_BYTES, b"\0"))
    slot = marks.encode(sequence + 1, after)
    target = _SLOT_STEP - place
    changed[target : target + len(slot)] = slot
    return bytes(changed)


def _encode_start(offset: int) -> bytes:
    data = _START.pack(_START_MAGIC, _VERSION, offset)
    return data + _CRC.pack(zlib.crc32(data))


def decode_start(data: bytes) -> int | None:
    """Return the log offset in the third slot of the watermark file; None if it was never written or is torn."""
    slot = data[_START_AT : _START_AT + _START.size + _CRC.size]
    if len(slot) < _START.size + _CRC.size or _CRC.unpack_from(slot, _START.size)[0] != zlib.crc32(slot[:-4]):
        return None
    magic, version, offset = _START.unpack_from(slot)
    return int(offset) if magic == _START_MAGIC and version == _VERSION and offset >= 0 else None


class MarkFiles:
    """Both files of the store in ``root``.

    :attr:`checkpoint`, :attr:`marks` and :attr:`log_start` are the values that were read or last written. ``log_start``
    is the offset of the log's first byte, None if it was not recorded.
    """

    def __init__(self, env: Env, root: str) -> None:
        self._root = root
        self._checkpoint_file = self._open(env, f"{root}/checkpoint")
        self._marks_file = self._open(env, f"{root}/gantrymq.watermark")
        self.checkpoint = decode_checkpoint(self._checkpoint_file.pread(_CHECKPOINT.size, 0))
        data = self._marks_file.pread(3 * _SLOT_STEP, 0)
        self.log_start = decode_start(data)
        self.marks, self._sequence, self._place = _find_marks(data, self.checkpoint)

    @staticmethod
    def _open(env: Env, path: str) -> File:
        file = env.open(path, create=True)
        if file.size() < CHECKPOINT_BYTES:
            file.preallocate(CHECKPOINT_BYTES)
        return file

    def save(self, marks: Marks, log_timestamp: int, queue_timestamp: int, index_timestamp: int) -> None:
        """Write and flush both. After an :class:`OSError` the previous ones remain valid.

        So does :class:`NoRoom`, and a later call may try again.
        """
        checkpoint = Checkpoint(log_timestamp, queue_timestamp, index_timestamp)
        self._sequence += 1
        # Never the slot that belongs to the checkpoint on the disk. After a save that failed, or a crash in one, that
        # may be the slot whose turn it is.
        place = self._sequence % 2 * _SLOT_STEP if self._place is None else _SLOT_STEP - self._place
        self._write(self._marks_file, marks.encode(self._sequence, checkpoint), place)
        self._marks_file.datasync()
        if checkpoint != self.checkpoint:
            # Only now: until here the other slot belongs to the checkpoint on the disk.
            self._write(self._checkpoint_file, checkpoint.encode(), 0)
            self._checkpoint_file.datasync()
            self.checkpoint = checkpoint
        self._place = place
        self.marks = marks

    def save_start(self, offset: int) -> None:
        """Record durably that the log begins at ``offset``. :class:`OSError` if that cannot be written.

        The space is reserved, so this works on a full disk.
        """
        self._write(self._marks_file, _encode_start(offset), _START_AT)
        self._marks_file.datasync()
        self.log_start = offset

    def _write(self, file: File, data: bytes, offset: int) -> None:
        try:
            file.pwrite(data, offset)
        except OSError as error:
            if error.errno in NO_ROOM:
                raise NoRoom(self._root, error) from error
            raise

    def close(self) -> None:
        """Close both files."""
        self._checkpoint_file.close()
        self._marks_file.close()

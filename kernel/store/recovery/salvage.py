"""How recovery handles bytes that are not records: find the next record, save what is cut off."""

from __future__ import annotations

from gantrymq.kernel.batch import DispatchBatch
from gantrymq.kernel.env import Env
from gantrymq.kernel.store.log.scan import scan_block
from gantrymq.kernel.store.log.segments import Segment, Segments, read_around

_CHUNK_BYTES = 1024 * 1024
_MAGIC_START = b"\xda\xa3\x20"
"""The common start of both record magics; the size (4 bytes) precedes it."""


def find_record(segments: Segments, start: int) -> tuple[int, int] | None:
    """Offset and store timestamp of the first intact record at or behind ``start``; None if there is none."""
    for segment in segments:
        if segment.end <= start:
            continue
        try:
            found = _find_in(segments, segment, max(start - segment.base, 0))
        except OSError:
            if segments.at(segment.base) is segment:
                raise
            continue  # another thread has deleted the file
        if found is not None:
            return found
    return None


def _find_in(segments: Segments, segment: Segment, start: int) -> tuple[int, int] | None:
    for first, last in segment.file.data_ranges(start):
        for position in range(first, last, _CHUNK_BYTES):
            # With some bytes of the next chunk, for a magic that crosses the boundary.
            chunk = read_around(segment, position, min(_CHUNK_BYTES + 8, last - position))
            at = chunk.find(_MAGIC_START, 4)
            while at >= 0:
                batch = _record_at(segments, segment.base + position + at - 4, segment.end)
                if batch is not None:
                    return batch.offsets[0], batch.store_timestamps[0]
                at = chunk.find(_MAGIC_START, at + 1)
            if segments.at(segment.base) is not segment:
                return None  # another thread has deleted the file
    return None


def _record_at(segments: Segments, offset: int, limit: int) -> DispatchBatch | None:
    try:
        batch, _ = scan_block(segments, offset, limit, 1, check_body=True)
    except OSError:
        return None
    return batch if len(batch) else None


def save_to_lost_and_found(env: Env, segments: Segments, start: int, end: int, folder: str) -> tuple[str, ...]:
    """Copy the bytes from ``start`` to ``end`` durably into ``folder``, with zeros for unreadable blocks. Returns the
    paths, one for each file."""
    paths = []
    for segment in segments:
        first, last = max(start, segment.base), min(end, segment.end)
        if first >= last:
            continue
        path = free_name(env, f"{folder}/commitlog-{first:020d}")
        file = env.open(path, create=True)
        try:
            for offset in range(first, last, _CHUNK_BYTES):
                data = read_around(segment, offset - segment.base, min(_CHUNK_BYTES, last - offset))
                file.pwrite(data, offset - first)
            file.datasync()
        finally:
            file.close()
        paths.append(path)
    if paths:
        env.sync_dir(folder)
    return tuple(paths)


def free_name(env: Env, path: str) -> str:
    """Return ``path`` with the first number from ``.1`` on that no file or folder has."""
    number = 1
    while env.exists(f"{path}.{number}"):
        number += 1
    return f"{path}.{number}"

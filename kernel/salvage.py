"""What a recovery does with bytes that are no records: find where the log goes on, keep aside what is cut off."""

from __future__ import annotations

from gantrymq.kernel.env import Env
from gantrymq.kernel.fast import scan
from gantrymq.kernel.segments import Segments

_CHUNK_BYTES = 1024 * 1024
_MAGIC_START = b"\xda\xa3\x20"
"""What both record magics begin with; the size, 4 bytes, stands before it."""


def find_record(segments: Segments, start: int) -> tuple[int, int] | None:
    """Offset and store timestamp of the first whole record at or behind ``start``; None if there is none."""
    for segment in segments:
        if segment.end <= start:
            continue
        for first, last in segment.file.data_ranges(max(start - segment.base, 0)):
            for position in range(first, last, _CHUNK_BYTES):
                # With some bytes of the next chunk, for a magic that lies across.
                chunk = segment.file.pread(min(_CHUNK_BYTES + 8, last - position), position)
                at = chunk.find(_MAGIC_START, 4)
                while at >= 0:
                    found = position + at - 4
                    data = segment.file.view(found, segment.end - segment.base - found)
                    batch, _ = scan(data, segment.base + found, 1, check_body=True)
                    if len(batch):
                        return batch.offsets[0], batch.store_timestamps[0]
                    at = chunk.find(_MAGIC_START, at + 1)
    return None


def keep_aside(env: Env, segments: Segments, start: int, end: int, folder: str) -> tuple[str, ...]:
    """Copy the bytes from ``start`` to ``end`` into ``folder``, to last. Returns the paths, one for each file."""
    paths = []
    for segment in segments:
        first, last = max(start, segment.base), min(end, segment.end)
        if first >= last:
            continue
        path = _free_name(env, f"{folder}/commitlog-{first:020d}")
        file = env.open(path, create=True)
        try:
            for offset in range(first, last, _CHUNK_BYTES):
                data = segment.file.pread(min(_CHUNK_BYTES, last - offset), offset - segment.base)
                file.pwrite(data, offset - first)
            file.datasync()
        finally:
            file.close()
        paths.append(path)
    if paths:
        env.sync_dir(folder)
    return tuple(paths)


def _free_name(env: Env, path: str) -> str:
    number = 1
    while env.exists(f"{path}.{number}"):
        number += 1
    return f"{path}.{number}"

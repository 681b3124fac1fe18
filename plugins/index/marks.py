"""The flushed part of the index: ``gantrymq.index``, beside the watermark file. ``docs/format/index.md``.

Entries and header of the current file change continuously and are flushed periodically, hash slots only when a file is
full or the broker stops. For each file, the marks list the headers that may be on the disk, and the valid state. So a
start can distinguish a crash from a clean stop, and a file that another broker has written from one that only GantryMQ
wrote.
"""

from __future__ import annotations

import json

import attrs
import structlog

from gantrymq.kernel.env import Env
from gantrymq.plugins.index.layout import HEADER_BYTES, Header, decode_header

log = structlog.get_logger("gantrymq.index")

VERSION = 1


@attrs.frozen
class FileMark:
    """One file. ``found``: the headers that it may have on the disk; ``state``: its header when the mark was made.

    If ``found`` has only ``state``, the slots on the disk match it; otherwise they must be rebuilt.
    """

    name: str
    found: tuple[bytes, ...]
    state: bytes

    @property
    def header(self) -> Header:
        """:attr:`state`, decoded."""
        return decode_header(self.state)


@attrs.frozen
class IndexMarks:
    """All keys of the log below ``offset`` are in ``files``."""

    offset: int
    files: tuple[FileMark, ...]

    def encode(self) -> bytes:
        """Return the file's text."""
        files = [
            {"name": mark.name, "found": [header.hex() for header in mark.found], "state": mark.state.hex()}
            for mark in self.files
        ]
        return json.dumps({"version": VERSION, "offset": self.offset, "files": files}).encode()


def decode_marks(data: bytes) -> IndexMarks:
    """Return the marks in ``data``. :class:`ValueError` for invalid data."""
    try:
        tree = json.loads(data)
        if tree["version"] != VERSION:
            raise ValueError(f"version {tree['version']!r:.20}")
        files = tuple(
            FileMark(str(item["name"]), tuple(_header(text) for text in item["found"]), _header(item["state"]))
            for item in tree["files"]
        )
        return IndexMarks(int(tree["offset"]), files)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not the marks of an index: {error!r}") from None


def _header(text: str) -> bytes:
    header = bytes.fromhex(text)
    if len(header) != HEADER_BYTES:
        raise ValueError(f"a header has {HEADER_BYTES} bytes, this has {len(header)}")
    return header


def read_marks(env: Env, path: str) -> IndexMarks | None:
    """Return the marks in ``path``; None if the file is missing or invalid: then the state of the index is unknown."""
    try:
        return decode_marks(env.read_bytes(path)) if env.exists(path) else None
    except (ValueError, OSError) as error:
        log.warning("index_marks_unreadable", path=path, error=str(error))
        return None

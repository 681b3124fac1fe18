"""How far the index is known to be good: ``gantrymq.index``, beside the watermark file. ``docs/format/index.md``.

Entries and header of the file in use change all the time and are synced now and then, hash slots only when a file is
full or the broker stops. The marks say, for each file, which headers may be found on the disk and what is true: so a
crash is told from an orderly stop, and a file that another broker wrote to from one that only we did.
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
    """One file. ``found``: the headers that it may have on the disk; ``state``: what it held when the mark was made.

    With ``state`` alone in ``found`` the slots on the disk are those of that state; else they are built again.
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
        """The file's text."""
        files = [
            {"name": mark.name, "found": [header.hex() for header in mark.found], "state": mark.state.hex()}
            for mark in self.files
        ]
        return json.dumps({"version": VERSION, "offset": self.offset, "files": files}).encode()


def decode_marks(data: bytes) -> IndexMarks:
    """The marks in ``data``. :class:`ValueError` when it is no such file."""
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
    """The marks in ``path``; None when there are none, or none that can be read: then nothing is known of the index."""
    try:
        return decode_marks(env.read_bytes(path)) if env.exists(path) else None
    except (ValueError, OSError) as error:
        log.warning("index_marks_unreadable", path=path, error=str(error))
        return None

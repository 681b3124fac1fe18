"""The flushed part of the files of the strategy ``state_table``: the file ``gantrymq.transaction``.

RocketMQ 3.x uses the checkpoint's timestamp instead, which covers too much if two records have the same timestamp. Its
broker ignores this file.
"""

from __future__ import annotations

import json
from typing import Final

import attrs
import structlog

from gantrymq.kernel.env import Env

log = structlog.get_logger("gantrymq.transaction")


@attrs.frozen
class StateMarks:
    """``offset``: the redo log has ``entries`` flushed entries for all records before this log offset.

    ``rows``: the number of the next row of the table then; ``open_from``: no record before this log offset was open.
    ``clean``: the table is flushed too. ``settled``: no record before this log offset is open, as determined while
    another strategy was used.
    """

    offset: int
    entries: int
    rows: int
    open_from: int
    clean: bool = False
    settled: int = 0

    def encode(self) -> bytes:
        """Return the file's content."""
        return json.dumps(attrs.asdict(self)).encode()


NAME: Final = "gantrymq.transaction"


def marks_path(root: str) -> str:
    """Return the path of the file in the store at ``root``."""
    return f"{root}/{NAME}"


def decode_marks(data: bytes) -> StateMarks:
    """Decode the file. ``ValueError``, ``KeyError`` or ``TypeError`` if it is invalid."""
    found = json.loads(data)
    numbers = [found[name] for name in ("offset", "entries", "rows", "open_from", "settled")]
    if any(type(number) is not int or number < 0 for number in numbers) or type(found["clean"]) is not bool:
        raise ValueError("a value is out of its range")
    offset, entries, rows, open_from, settled = numbers
    return StateMarks(offset, entries, rows, open_from, found["clean"], settled)


def read_marks(env: Env, root: str) -> StateMarks | None:
    """Return the marks of the store; None if the file is missing or invalid (which is logged)."""
    path = marks_path(root)
    if not env.exists(path):
        return None
    try:
        return decode_marks(env.read_bytes(path))
    except (ValueError, KeyError, TypeError) as error:
        log.error("state_marks_unreadable", path=path, error=repr(error))
        return None

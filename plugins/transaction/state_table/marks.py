"""How far the files of the strategy ``state_table`` can be relied upon: the file ``gantrymq.transaction``.

RocketMQ 3.x looks at the checkpoint's timestamp instead, which vouches for more than it may when two records have the
same one. Its broker ignores this file.
"""

from __future__ import annotations

import json

import attrs
import structlog

from gantrymq.kernel.env import Env

log = structlog.get_logger("gantrymq.transaction")


@attrs.frozen
class StateMarks:
    """``offset``: of all records before this place in the log, the ``entries`` of the redo log are on the disk.

    ``rows``: the number of the next row of the table then; ``open_from``: no record before this place in the log was
    open. ``clean``: the table is on the disk too. ``settled``: of records before this place in the log none is open,
    as was found out while another strategy was in use.
    """

    offset: int
    entries: int
    rows: int
    open_from: int
    clean: bool = False
    settled: int = 0

    def encode(self) -> bytes:
        """The file's content."""
        return json.dumps(attrs.asdict(self)).encode()


def marks_path(root: str) -> str:
    """Where the file lies in the store at ``root``."""
    return f"{root}/gantrymq.transaction"


def read_marks(env: Env, root: str) -> StateMarks | None:
    """The marks of the store; None when there are none, or none that can be read, which is logged."""
    path = marks_path(root)
    if not env.exists(path):
        return None
    try:
        found = json.loads(env.read_bytes(path))
        numbers = [found[name] for name in ("offset", "entries", "rows", "open_from", "settled")]
        if any(type(number) is not int or number < 0 for number in numbers) or type(found["clean"]) is not bool:
            raise ValueError("a value is out of its range")
        offset, entries, rows, open_from, settled = numbers
        return StateMarks(offset, entries, rows, open_from, found["clean"], settled)
    except (ValueError, KeyError, TypeError) as error:
        log.error("state_marks_unreadable", path=path, error=repr(error))
        return None

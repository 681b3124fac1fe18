"""The manifest of a backup: which objects it consists of, and of which part of a store they are.

A manifest comes from outside, so everything in it is checked.
"""

from __future__ import annotations

import json
import re
from typing import Final

import attrs

from gantrymq.kernel.errors import StartError
from gantrymq.kernel.store.log.record import TOPIC_PATTERN
from gantrymq.kernel.store.recovery.queue_ends import QueueEnd
from gantrymq.kernel.store.store import RESTORING
from gantrymq.maintenance.backup_targets import Target
from gantrymq.maintenance.store_files import UNIT, is_queue_id

VERSION: Final = 1
OBJECT_BYTES: Final = 64 * 1024 * 1024
"""The most bytes of the log in one object."""
STATE_MAX_BYTES: Final = 256 * 1024 * 1024
"""A larger state file is refused: brokers write none of this size."""
MANIFEST_MAX_BYTES: Final = 256 * 1024 * 1024
_DERIVED: Final = frozenset(
    {"lock", "abort", "checkpoint", "gantrymq.watermark", "gantrymq.index", "gantrymq.reserve", "gantrymq.transaction",
     "timerwheel", "config/exporterStarts.json", RESTORING}
)  # fmt: skip
"""Files that describe others, which a restore or the next start builds again. ``config/timercheck`` stays: with it and
without the timer's log, the broker rebuilds the timer from its queue and delivers nothing twice."""
_QUEUE_END_MAX: Final = 2**63 // UNIT
_OBJECT: Final = re.compile(r"(log/\d{20}-[0-9a-f]{16}|state/[0-9a-f]{64})(-[0-9a-f]{8})?")
"""The names of objects; a manifest comes from outside and must not name files elsewhere."""
_RUN: Final = re.compile(r"[0-9a-f]{8}")
"""The name of a run; the names of its backup and its objects end with it."""


class BadBackup(StartError):
    """The backup is incomplete, or its bytes are not those that were written."""


@attrs.frozen
class Piece:
    """An object. ``offset``: its place in the log; -1 for a state file, which has a ``path`` in the store instead."""

    name: str
    size: int
    sha256: str
    offset: int = -1
    path: str = ""


@attrs.frozen
class Manifest:
    """One backup. Offsets and sizes are bytes of the log, times ms since 1970.

    ``queues``: where the queues ended.
    """

    created: int
    file_bytes: int
    queue_units: int
    start: int
    end: int
    last_timestamp: int
    log: tuple[Piece, ...]
    state: tuple[Piece, ...]
    run: str = ""
    queues: tuple[QueueEnd, ...] = ()

    @property
    def name(self) -> str:
        """The name of the backup; names are in the order of their times."""
        return f"{self.created:014d}-{self.run}" if self.run else f"{self.created:014d}"

    def encode(self) -> bytes:
        """The manifest's object."""
        return json.dumps({"version": VERSION, **attrs.asdict(self)}, indent=1).encode()


def decode_manifest(data: bytes) -> Manifest:
    """:class:`BadBackup` for anything that is not a manifest of this version."""
    try:
        tree = json.loads(data)
        if tree.pop("version") != VERSION:
            raise ValueError("another version")
        tree["log"] = tuple(Piece(**piece) for piece in tree["log"])
        tree["state"] = tuple(Piece(**piece) for piece in tree["state"])
        tree["queues"] = tuple(_queue_end(*each) for each in tree.get("queues", ()))
        found = Manifest(**tree)
        position = found.start
        if not isinstance(position, int) or position < 0:
            raise ValueError(f"no log begins at {position}")
        for piece in found.log:
            if piece.offset != position or piece.size <= 0:
                raise ValueError(f"the log has no piece at {position}")
            position += piece.size
        if position != found.end or found.file_bytes <= 0 or found.queue_units <= 0:
            raise ValueError(f"the log ends at {position}, not at {found.end}")
        if not isinstance(found.created, int) or (found.run and not _RUN.fullmatch(found.run)):
            raise ValueError(f"its name {found.created}-{found.run} is not that of a backup")
        for piece in found.state:
            if not is_state(piece.path):
                raise ValueError(f"{piece.path!r} is not a state file")
        for piece in (*found.log, *found.state):
            if not _OBJECT.fullmatch(piece.name):
                raise ValueError(f"{piece.name!r} is not an object of a backup")
            if not 0 <= piece.size <= (OBJECT_BYTES if piece.offset >= 0 else STATE_MAX_BYTES):
                raise ValueError(f"{piece.name} cannot have {piece.size} bytes")
        return found
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise BadBackup(f"not a backup that this version can read: {error}") from None


def _queue_end(topic: str, queue_id: int, end: int) -> QueueEnd:
    if not TOPIC_PATTERN.fullmatch(topic) or not is_queue_id(str(queue_id)) or not 0 < end < _QUEUE_END_MAX:
        raise ValueError(f"{topic!r} can have no queue {queue_id} that ends at {end}")
    return topic, queue_id, int(end)


def is_state(path: str) -> bool:
    """Whether ``path``, relative to the store, is a state file."""
    parts = path.split("/")
    return (parts[0] == "config" or len(parts) == 1) and path not in _DERIVED and not {"", ".", ".."} & set(parts)


def list_backups(target: Target) -> list[str]:
    """The names of the complete backups, oldest first."""
    return [name.removesuffix(".json") for name in target.names("backups") if name.endswith(".json")]


def read_backup(target: Target, name: str | None = None) -> Manifest:
    """The manifest of a backup, by default the newest. :class:`BadBackup` if there is none, or it is too large."""
    while True:
        names = list_backups(target)
        if not names or (name is not None and name not in names):
            wanted = "no backup" if name is None else f"no backup {name}"
            raise BadBackup(f"there is {wanted} here; complete backups: {', '.join(names) or 'none'}")
        try:
            return read_manifest(target, name or names[-1])
        except FileNotFoundError:
            continue  # a run deleted it after it was listed


def read_manifest(target: Target, name: str) -> Manifest:
    """The manifest of a backup by its name. ``FileNotFoundError`` if it is gone, :class:`BadBackup` if it is bad."""
    data = target.read(f"backups/{name}.json", MANIFEST_MAX_BYTES)
    if len(data) > MANIFEST_MAX_BYTES:
        raise BadBackup(f"the manifest has more than {MANIFEST_MAX_BYTES} bytes, so no broker's backup wrote it")
    return decode_manifest(data)

"""Offsets in a file on this machine, for consumers that share nothing with others (``broadcast=True``).

The format is RocketMQ's: ``LocalFileOffsetStore`` of 4.9.7 reads and writes it. ``save`` blocks: call it in a thread.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

import msgspec

from gantrymq.client.errors import GantryError
from gantrymq.client.namespace import Namespace
from gantrymq.remoting.bodies.offsets import OrderedOffsets, ResetOffsets
from gantrymq.remoting.bodies.queues import MessageQueue
from gantrymq.remoting.errors import FatalRemoteFault, RemoteFault


def default_path(host: str, group: str, unit_name: str | None = None) -> Path:
    """Where RocketMQ's client of the default instance keeps them, for the client's address ``host``."""
    unit = "" if unit_name is None else f"@{unit_name}"
    return Path.home() / ".rocketmq_offsets" / f"{host}@DEFAULT{unit}" / group / "offsets.json"


class LocalOffsets:
    """The offsets of one group in the file at ``path``, which has topics' real names in ``namespace``."""

    def __init__(self, path: Path, namespace: Namespace | None = None) -> None:
        self._path = path
        self._namespace = namespace
        self._offsets: dict[MessageQueue, int] = {}
        self._changed = False
        self._saving = threading.Lock()

    def load(self) -> None:
        """Read the file, or RocketMQ's copy of its predecessor (.bak) if the file is missing or empty, or cannot be
        read; without both there are no offsets yet.

        Raises :class:`GantryError` where something is there and cannot be read.
        """
        problem: Exception | None = None
        for path in (self._path, self._path.with_name(self._path.name + ".bak")):
            try:
                data = path.read_bytes()
                if not data:
                    continue
                self._offsets = OrderedOffsets.from_bytes(data).offsets
            except FileNotFoundError:
                continue
            except (OSError, FatalRemoteFault, RemoteFault, msgspec.MsgspecError, ValueError) as error:
                problem = problem or error
                continue
            return
        if problem is not None:
            raise GantryError(
                f"the offsets in {self._path} cannot be read ({problem}): correct the file, or delete it and its .bak "
                "to begin where start= says"
            )

    def get(self, queue: MessageQueue) -> int | None:
        """Return the group's offset in ``queue``; None if it has not begun there."""
        return self._offsets.get(self._real(queue))

    def set(self, queue: MessageQueue, offset: int) -> None:
        """The group is at ``offset`` of ``queue``; :meth:`save` makes it last."""
        queue = self._real(queue)
        if self._offsets.get(queue) != offset:
            self._offsets[queue] = offset
            self._changed = True

    def save(self) -> None:
        """Write what has changed, so that a crash leaves the file as it was or as it is. Raises OSError.

        Several threads may call it; each returns when what was set before its call is in the file.
        """
        with self._saving:
            if not self._changed:
                return
            self._changed = False
            try:
                self._write(ResetOffsets(offset_table=dict(self._offsets)).to_bytes())
            except OSError:
                self._changed = True
                raise

    def _real(self, queue: MessageQueue) -> MessageQueue:
        return queue if self._namespace is None else self._namespace.queue(queue)

    def _write(self, data: bytes) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._path.with_name(self._path.name + ".tmp")
        with fresh.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, self._path)

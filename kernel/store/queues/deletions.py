"""Which topics were deleted, so that no replay of the log brings their messages back: ``gantrymq.deleted``.

The log keeps the records of a deleted topic until its files expire, and whatever builds queues from the log again,
after a kill or for queues that are damaged, would put them back. So each deletion is noted on the disk before it
happens, with the end of the log at that moment: records of the topic before it are dead. A topic that is created again
under the name has its records behind it. ``docs/format/store.md``.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Final

import structlog

from gantrymq.kernel.env import Env
from gantrymq.kernel.errors import NO_ROOM

log = structlog.get_logger("gantrymq.deletions")

REMEMBERED_MAX: Final = 100_000
"""Deletions that are kept; past it the oldest are forgotten: a rebuild of all queues could bring those topics back."""
SPARE_LINES: Final = 1000
"""Lines beside those that count; with more the file is written anew."""
ROOM_BYTES: Final = 64 * 1024
"""Room is reserved in steps of so much, so that a full disk does not keep anybody from deleting topics."""


class Deletions:
    """The file at ``path``. One thread changes it; ``ends`` maps a topic to the offset before which it is dead."""

    def __init__(self, env: Env, path: str) -> None:
        self._env = env
        self._path = path
        self._size = 0
        self._lines = 0
        self.ends: dict[str, int] = {}
        self.end = 0
        """The highest of the offsets: nothing at or behind it is dead."""

    def load(self, *, trusted: bool = True) -> None:
        """Read the file; a line that a crash tore is left out.

        Not ``trusted``: another broker has written to the store since, and may have cut the log and used the offsets
        again, so nothing of it counts.
        """
        self.ends, self.end, self._size, self._lines = {}, 0, 0, 0
        if not self._env.exists(self._path):
            return
        if not trusted:
            log.warning("deletions_forgotten", path=self._path, reason="another broker has written to this store")
            self._env.unlink(self._path)
            return
        data = self._env.read_bytes(self._path).rstrip(b"\0")
        for line in data.splitlines():
            try:
                topic, end = json.loads(line)
                known = isinstance(topic, str) and type(end) is int and end > 0
            except (ValueError, TypeError, RecursionError):
                known = False
            if known:
                self._note(topic, end)
            else:
                log.warning("deletion_unreadable", path=self._path, line=repr(line[:200]))
        if data != self._text():
            self._rewrite()
        else:
            self._size, self._lines = len(data), len(self.ends)

    def add(self, topic: str, end: int) -> None:
        """Note, to last, that records of ``topic`` before the log's offset ``end`` are dead.

        :class:`OSError` when it cannot be written; then nothing has changed.
        """
        if self.ends.get(topic) == end:
            return
        if self._lines > 2 * len(self.ends) + SPARE_LINES:
            with suppress(OSError):  # a full disk; what is there counts as before
                self._rewrite()
        line = _line(topic, end)
        self._reserve(len(line))
        file = self._env.open(self._path)
        try:
            try:
                file.pwrite(line, self._size)
                file.datasync()
            except OSError:
                with suppress(OSError):  # what was refused must not count at the next start
                    file.pwrite(bytes(len(line)), self._size)
                raise
        finally:
            file.close()
        self._size += len(line)
        self._lines += 1
        self._note(topic, end)

    def settle(self, start: int, end: int) -> None:
        """The log reaches from ``start`` to ``end``: deletions before it are forgotten, none reaches beyond it.

        Beyond the end other records get the offsets of those that were lost, and these are alive. OSError as in
        :meth:`add`.
        """
        settled = {topic: min(dead, end) for topic, dead in self.ends.items() if min(dead, end) > start}
        if settled != self.ends:
            self.ends, self.end = settled, max(settled.values(), default=0)
            self._rewrite()
        try:
            self._reserve(0)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            log.warning("deletions_file_not_reserved", path=self._path, reason=str(error))

    def _note(self, topic: str, end: int) -> None:
        end = max(end, self.ends.pop(topic, 0))
        self.ends[topic] = end
        self.end = max(self.end, end)
        if len(self.ends) > REMEMBERED_MAX:
            del self.ends[next(iter(self.ends))]

    def _text(self) -> bytes:
        return b"".join([_line(topic, end) for topic, end in self.ends.items()])

    def _rewrite(self) -> None:
        text = self._text()
        self._env.replace(self._path, text)
        self._size, self._lines = len(text), len(self.ends)

    def _reserve(self, size: int) -> None:
        """Let the file have room, on the disk, for ``size`` bytes more."""
        created = not self._env.exists(self._path)
        file = self._env.open(self._path, create=True)
        try:
            if created or file.size() < self._size + size:
                file.preallocate((self._size + size) // ROOM_BYTES * ROOM_BYTES + ROOM_BYTES)
                file.datasync()
        finally:
            file.close()
        if created:
            self._env.sync_dir(self._path.rpartition("/")[0])


def _line(topic: str, end: int) -> bytes:
    return json.dumps([topic, end], separators=(",", ":")).encode() + b"\n"

"""The deleted topics, ``gantrymq.deleted``, so that no replay of the log restores their messages.

The log keeps the records of a deleted topic until its files expire, and every rebuild of queues from the log would
restore them. So each deletion is written to the disk before it happens, with the end of the log at that moment: records
of the topic before this end are deleted. If the topic is created again, its new records lie behind it.
``docs/format/store.md``.
"""

from __future__ import annotations

import json
from collections.abc import Container
from contextlib import suppress
from typing import Final

import structlog

from gantrymq.kernel.env import Env
from gantrymq.kernel.errors import NO_ROOM

log = structlog.get_logger("gantrymq.deletions")

REMEMBERED_MAX: Final = 100_000
"""The most deletions in the file; beyond it the oldest are dropped, and a rebuild of all queues could restore those
topics."""
SPARE_LINES: Final = 1000
"""Obsolete lines after which the file is rewritten."""
ROOM_BYTES: Final = 64 * 1024
"""Step in which disk space is reserved, so that topics can be deleted on a full disk."""


class Deletions:
    """The file at ``path``. One thread changes it; ``ends`` maps a topic to the log offset before which its records are
    deleted."""

    def __init__(self, env: Env, path: str) -> None:
        self._env = env
        self._path = path
        self._size = 0
        self._lines = 0
        self.ends: dict[str, int] = {}
        self.end = 0
        """The highest of these offsets: no record at or behind it is deleted."""

    def load(self, *, trusted: bool = True) -> None:
        """Read the file; torn lines are ignored.

        If not ``trusted``, another broker has written to the store since. It may have truncated the log and reused
        offsets, so the file is dropped.
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
            deletion = read_deletion(line)
            if deletion is not None:
                self._note(*deletion)
            else:
                log.warning("deletion_unreadable", path=self._path, line=repr(line[:200]))
        if data != self._text():
            self._rewrite()
        else:
            self._size, self._lines = len(data), len(self.ends)

    def add(self, topic: str, end: int) -> None:
        """Record durably that the records of ``topic`` before the log offset ``end`` are deleted.

        :class:`OSError` when it cannot be written; then nothing has changed.
        """
        if self.ends.get(topic) == end:
            return
        if self._lines > 2 * len(self.ends) + SPARE_LINES:
            with suppress(OSError):  # a full disk; the old file remains valid
                self._rewrite()
        line = _line(topic, end)
        self._reserve(len(line))
        file = self._env.open(self._path)
        try:
            try:
                file.pwrite(line, self._size)
                file.datasync()
            except OSError:
                with suppress(OSError):  # a refused deletion must not be valid at the next start
                    file.pwrite(bytes(len(line)), self._size)
                raise
        finally:
            file.close()
        self._size += len(line)
        self._lines += 1
        self._note(topic, end)

    def settle(self, start: int, end: int, with_messages: Container[str] = ()) -> None:
        """Adapt to a log from ``start`` to ``end``: drop deletions before it, and limit the others to its end.

        Topics ``with_messages`` keep theirs: these messages came later, which does not mean that the topic exists. New
        records get the offsets of lost records beyond the end, and they are not deleted. OSError as in :meth:`add`.
        """
        limited = {topic: min(dead, end) for topic, dead in self.ends.items()}
        settled = {topic: dead for topic, dead in limited.items() if dead > start or topic in with_messages}
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
        """Reserve disk space for ``size`` more bytes of the file."""
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


def read_deletion(line: bytes) -> tuple[str, int] | None:
    """The topic of a line, and the log offset before which its records are deleted; None for an invalid line."""
    try:
        topic, end = json.loads(line)
    except (ValueError, TypeError, RecursionError):
        return None
    return (topic, end) if isinstance(topic, str) and type(end) is int and end > 0 else None


def _line(topic: str, end: int) -> bytes:
    return json.dumps([topic, end], separators=(",", ":")).encode() + b"\n"

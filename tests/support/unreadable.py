"""Consume queues whose files cannot be opened, read or written, and records that the disk cannot read."""

from __future__ import annotations

import errno

import pytest

from gantrymq.kernel.errors import UnreadableRange
from gantrymq.kernel.store.log.commitlog import CommitLog
from gantrymq.kernel.store.log.record import Record
from gantrymq.kernel.store.log.segments import Segments
from gantrymq.kernel.store.queues.consume_queue import ConsumeQueue


def break_queue(patch: pytest.MonkeyPatch, topic: str, queue_id: int = 0) -> None:
    """Let reads of this queue fail, as if the process had no file descriptor left, until ``patch`` is undone."""
    entries, peek = ConsumeQueue.entries, ConsumeQueue.peek

    def check(queue: ConsumeQueue) -> None:
        if (queue.topic, queue.queue_id) == (topic, queue_id):
            raise OSError(24, "Too many open files")

    def failing_entries(queue: ConsumeQueue, offset: int, count: int) -> bytes:
        check(queue)
        return entries(queue, offset, count)

    def failing_peek(queue: ConsumeQueue, offset: int, count: int) -> bytes | None:
        check(queue)
        return peek(queue, offset, count)

    patch.setattr(ConsumeQueue, "entries", failing_entries)
    patch.setattr(ConsumeQueue, "peek", failing_peek)


def fail_reads(patch: pytest.MonkeyPatch, offset: int) -> None:
    """Let the disk fail to read the record at the log offset ``offset``, until ``patch`` is undone."""
    read = CommitLog.read_record

    def read_record(self: CommitLog, at: int) -> Record:
        if at == offset:
            raise UnreadableRange(at, 4, "I/O error")
        return read(self, at)

    patch.setattr(CommitLog, "read_record", read_record)


def run_out_of_descriptors(patch: pytest.MonkeyPatch, log: CommitLog) -> None:
    """Let reads of ``log`` fail as if the process could not open its files, until ``patch`` is undone."""
    pread = Segments.pread

    def failing(self: Segments, offset: int, size: int) -> bytes:
        if self is log.segments:
            raise OSError(errno.EMFILE, "Too many open files")
        return pread(self, offset, size)

    patch.setattr(Segments, "pread", failing)


def fail_writes(patch: pytest.MonkeyPatch, folder: str, number: int = errno.ENOSPC) -> None:
    """Let writes to the existing files in ``folder`` fail with this error number, until ``patch`` is undone."""
    write = Segments.write

    def failing(self: Segments, offset: int, data: bytes | memoryview, zeros: int = 0) -> None:
        if self.folder == folder:
            raise OSError(number, errno.errorcode[number])
        write(self, offset, data, zeros)

    patch.setattr(Segments, "write", failing)


def fail_log_reads(patch: pytest.MonkeyPatch, offset: int, size: int, number: int = errno.EIO) -> None:
    """Let reads of this range of the log fail with this error number, until ``patch`` is undone."""
    pread = Segments.pread

    def failing(self: Segments, at: int, count: int) -> bytes:
        if self.folder.endswith("/commitlog") and at < offset + size and at + count > offset:
            raise OSError(number, errno.errorcode[number])
        return pread(self, at, count)

    patch.setattr(Segments, "pread", failing)

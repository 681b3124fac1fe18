"""Consume queues whose files cannot be opened or read."""

from __future__ import annotations

import pytest

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

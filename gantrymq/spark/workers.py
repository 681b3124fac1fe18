"""Spares the tasks of Spark's Python workers waits and work that Spark causes there."""

from __future__ import annotations

import gc
import os
import socket
import stat
from contextlib import suppress
from typing import Any

from pyspark import TaskContext


class TaskObject:
    """An object that a task receives before its data. When it arrives, :func:`acknowledge_at_once` is called."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if TaskContext.get() is not None:
            acknowledge_at_once()


def acknowledge_at_once() -> None:
    """Acknowledge what has arrived on the TCP connections of this process.

    Spark's JVM sends a task its function in one packet and its data in the next, and sends that one only after the
    acknowledgment of the first (Nagle's algorithm). A worker has nothing to send between them, so Linux delays the
    acknowledgment by 40 ms, which is longer than it takes to read 30,000 messages. Elsewhere this does nothing.
    """
    option = getattr(socket, "TCP_QUICKACK", None)
    if option is None:
        return
    with suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):  # no socket, no TCP, or the listing's own descriptor, which is closed by now
                number = int(name)
                if stat.S_ISSOCK(os.fstat(number).st_mode):
                    with socket.socket(fileno=os.dup(number)) as connection:
                        connection.setsockopt(socket.IPPROTO_TCP, option, 1)


def keep_modules() -> None:
    """In a task, exclude what is loaded from garbage collection, once.

    A Python worker collects all garbage after each task. To visit the objects of all modules takes it 15 to 40 ms,
    longer than it takes to read 30,000 messages.
    """
    if TaskContext.get() is not None and not gc.get_freeze_count():
        gc.freeze()

"""Pause processes of the tests at random, as a busy machine does."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SHELLS = {"bash", "fish", "zsh"}
"""Their commands are not paused: they take such a command for suspended, and go on without it."""
STALLERS = 2
"""The maximum number of processes that are paused at the same time."""


@contextmanager
def stalling(root: int, longest_s: float) -> Iterator[None]:
    """During the block, pause ``root`` and its descendants, each for up to ``longest_s`` seconds."""
    done = threading.Event()
    stallers = [threading.Thread(target=_stall, args=(root, longest_s, done)) for _ in range(STALLERS)]
    for staller in stallers:
        staller.start()
    try:
        yield
    finally:
        done.set()
        for staller in stallers:
            staller.join()


def _stall(root: int, longest_s: float, done: threading.Event) -> None:
    chance = random.Random()
    while not done.wait(chance.uniform(0, longest_s / 2)):
        process = chance.choice(_family(root))
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGSTOP)
            done.wait(chance.uniform(longest_s / 10, longest_s))
            os.kill(process, signal.SIGCONT)


def _family(root: int) -> list[int]:
    """The process and its descendants, without those that a test has paused itself (proc(5))."""
    children = defaultdict(list)
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            name, _, rest = path.read_text().partition("(")[2].rpartition(")")
            state, parent = rest.split()[:2]
            children[int(parent)].append((int(path.parent.name), name, state))
    found = [root]
    parents = [root]
    while parents:
        for process, name, state in children[parents.pop()]:
            if name not in SHELLS:
                parents.append(process)
            if state not in "TtZX":
                found.append(process)
    return found

"""Replaces clocks, random numbers and other sources of nondeterminism during a run by values that follow from the seed.

It patches modules of Python, trio and anyio, because programs use them directly and have no setting for it.
"""

from __future__ import annotations

import os
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import anyio._backends._trio  # it keeps the function of trio that it finds: the real one
import anyio.to_thread
import trio

from gantrymq.testing.simulated.env import START_MS
from gantrymq.testing.simulated.network import process_of

T = TypeVar("T")

_PROCESS_ID = 4242
_RANDOM_FUNCTIONS = tuple(name for name in random.__all__ if callable(getattr(random.Random, name, None)))


@contextmanager
def all_from(seed: int) -> Iterator[None]:
    """Replace clocks, random numbers, the process id, the order of tasks, and threads, for this thread only: a loop of
    another thread would take random numbers away from the run."""
    chance = random.Random(f"{seed} secrets")  # noqa: S311 - chance that can be repeated is the point
    programs = random.Random(f"{seed} programs")  # noqa: S311 - chance that can be repeated is the point
    with ExitStack() as stack:
        replaced: list[tuple[Any, str, Any]] = [
            (time, "time", wall := _simulated(time.time, START_MS / 1000)),
            (time, "time_ns", lambda: int(wall() * 1e9)),
            (time, "monotonic", _simulated(time.monotonic)),
            (time, "perf_counter", _simulated(time.perf_counter)),
            (os, "getpid", lambda: _PROCESS_ID),
            (secrets, "randbelow", chance.randrange),
            (secrets, "token_bytes", lambda size=None: chance.randbytes(32 if size is None else size)),
            (os, "urandom", programs.randbytes),
            *((random, name, getattr(programs, name)) for name in _RANDOM_FUNCTIONS),
            (trio.to_thread, "run_sync", _at_once),
            (anyio.to_thread, "run_sync", _at_once),
        ]
        for module, name, new in replaced:
            old = getattr(module, name)
            stack.callback(setattr, module, name, old)
            setattr(module, name, _in_this_thread(new, old))
        stack.enter_context(_same_order(seed))
        stack.enter_context(_stoppable())
        yield


def _in_this_thread(new: Callable[..., T], old: Callable[..., T]) -> Callable[..., T]:
    """Return a function that is ``new`` in the thread of this call and ``old`` in any other."""
    thread = threading.get_ident()

    def call(*arguments: Any, **options: Any) -> T:
        return (new if threading.get_ident() == thread else old)(*arguments, **options)

    return call


class _RandomOfThread:
    """``own`` random numbers for the thread that makes it, and ``other`` ones for any other."""

    def __init__(self, own: random.Random, other: random.Random) -> None:
        self._own = own
        self._other = other
        self._thread = threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own if threading.get_ident() == self._thread else self._other, name)


def _simulated(real: Callable[[], float], start: float = 0.0) -> Callable[[], float]:
    """Return a clock of simulated time, which is ``start`` at the start of the run: a program that limits how long it
    works must not do less on a slow machine. Outside of the run it is the ``real`` one."""

    def seconds() -> float:
        try:
            return start + trio.current_time()
        except RuntimeError:
            return real()

    return seconds


async def _at_once(function: Callable[..., T], *arguments: Any, **_options: Any) -> T:
    """Run the work without a thread: otherwise the clock would jump meanwhile, and runs would differ."""
    await trio.lowlevel.checkpoint()
    return function(*arguments)


@contextmanager
def _stoppable() -> Iterator[None]:
    """Do not run tasks of a stopped process; trio has no setting for that."""
    runner: Any = trio._core._run.Runner
    reschedule = runner.reschedule

    def hold(self: Any, task: trio.lowlevel.Task, *arguments: Any) -> None:
        reschedule(self, task, *arguments)
        process = process_of(task)
        if process is not None and process.stopped:
            process.held.append(self.runq.pop())

    runner.reschedule = hold
    try:
        yield
    finally:
        runner.reschedule = reschedule


@contextmanager
def _same_order(seed: int) -> Iterator[None]:
    """Make the order deterministic in which trio runs tasks; trio has this setting for tests with their own seed."""
    run: Any = trio._core._run
    before = run._ALLOW_DETERMINISTIC_SCHEDULING, run._r
    run._ALLOW_DETERMINISTIC_SCHEDULING = True
    run._r = _RandomOfThread(random.Random(seed), run._r)  # noqa: S311 - chance that can be repeated is the point
    try:
        yield
    finally:
        run._ALLOW_DETERMINISTIC_SCHEDULING, run._r = before

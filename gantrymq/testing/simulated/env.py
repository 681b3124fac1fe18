"""A machine's environment: a disk in memory, a simulated clock, and addresses on the simulated network."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any, Self

import trio

from gantrymq.kernel.env import Listener, Waker
from gantrymq.kernel.fast.plain_flusher import Flusher
from gantrymq.testing.memory_env import MemoryEnv
from gantrymq.testing.simulated.network import Network

START_MS = 1_700_000_000_000
"""The correct wall clock time at the start of a simulation."""
BOOTED_S = 5_000.0
"""The monotonic time at the start: not 0, and different from trio's clock, so that tests notice a confusion."""


class SimulatedEnv(MemoryEnv):
    """One run of the machine at ``host``. ``clock_ms`` is the error of its wall clock during the run.

    ``sync_s``: the shortest and the longest time of a flush of the commit log.
    """

    def __init__(self, network: Network, host: str, seed: int, clock_ms: int = 0) -> None:
        super().__init__(seed, START_MS)
        self.clock_ms = clock_ms
        self.sync_s = (0.0005, 0.002)
        self.spawn: Callable[[Callable[[], Awaitable[Any]]], None] = _not_bound
        """Starts a task of the process at this machine."""
        self._network = network
        self._host = host
        self._chance = random.Random(seed)  # noqa: S311 - chance that can be repeated is the point

    def _successor(self, seed: int) -> Self:
        env = type(self)(self._network, self._host, seed, self.clock_ms)
        env.sync_s = self.sync_s
        return env

    def wall_ms(self) -> int:
        return START_MS + self.clock_ms + int(trio.current_time() * 1000)

    def monotonic(self) -> float:
        return BOOTED_S + trio.current_time()

    def bind(self, host: str, port: int) -> Listener:
        self.check()
        return self._network.bind(self._host if host in ("", "0.0.0.0") else host, port)  # noqa: S104 - compared

    def flusher(self) -> Flusher:
        return SimulatedFlusher(self)

    async def sync(self) -> None:
        """Wait for the duration of a flush."""
        await trio.sleep(self._chance.uniform(*self.sync_s))


class SimulatedFlusher(Flusher):
    """Flushes on request, in a task that sleeps for the duration of a flush, without a thread."""

    def __init__(self, env: SimulatedEnv) -> None:
        super().__init__()
        self._env = env
        self._waker: Waker | None = None
        self._working = False

    @property
    def fast_flushes(self) -> int:
        # Without this flusher's task, a flush would take no simulated time.
        return 0

    def ask(self) -> None:
        if not self._working:
            self._working = True
            self._env.spawn(self._work)

    def run(self, waker: Waker) -> None:
        """Only record the waker; requests do the work."""
        self._waker = waker

    def stop(self) -> None:
        self.flush()

    async def _work(self) -> None:
        try:
            while self.durable < self._appended[0]:
                await self._env.sync()
                if not self._env.alive:
                    return
                self.flush()
                if self._waker is not None:
                    self._waker.wake()
        finally:
            self._working = False


def _not_bound(_task: Callable[[], Awaitable[Any]]) -> None:
    raise RuntimeError("no process runs on this machine")

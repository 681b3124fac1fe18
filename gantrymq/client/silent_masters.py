"""Notice early that the master whose answer sends wait for has been replaced.

A broker that hangs, or whose machine is gone, keeps its connections: sends would wait for their whole timeout although
a slave has been promoted meanwhile. So a send that has waited for half a second has its topic's route asked for, beside
it. Once the route shows the master at another address, the connections to the old one are ended: what waits there fails
as on any lost connection, and is sent again where retries allow it.
"""

from __future__ import annotations

import itertools
from typing import Final

import anyio

from gantrymq.client.connections import Connections
from gantrymq.client.routes import Routes
from gantrymq.remoting.bodies.queues import MessageQueue

TICK_SECONDS: Final = 0.1
SILENT_TICKS: Final = 5
"""A send that began more ticks ago has no answer for at least half a second."""
ASK_TICKS: Final = 10
"""The shortest interval between queries because of one broker."""


class SilentMasters:
    """Sends call :meth:`begin` and :meth:`end`; :meth:`run` watches those that wait.

    Time is counted in ticks of :meth:`run`: a send needs no clock, and where something blocks the event loop no tick
    passes, so that an answer which is there unread does not count as missing.
    """

    def __init__(self, routes: Routes, connections: Connections) -> None:
        self._routes = routes
        self._connections = connections
        self._waits: dict[int, tuple[int, MessageQueue, str]] = {}
        """Begun at which tick, to which queue and address; in order."""
        self._numbers = itertools.count()
        self._tick = 0
        self._is_used = False
        self._wake: anyio.Event | None = None
        self._ask_again: dict[str, int] = {}
        self._asking: set[str] = set()

    def begin(self, queue: MessageQueue, address: str) -> int:
        """A send to ``queue`` waits for the master at ``address`` from now on; the number is for :meth:`end`."""
        number = next(self._numbers)
        self._waits[number] = (self._tick, queue, address)
        self._is_used = True
        if self._wake is not None:
            self._wake.set()
            self._wake = None
        return number

    def end(self, number: int) -> None:
        """The send no longer waits."""
        self._waits.pop(number, None)

    async def run(self) -> None:
        """Until cancelled. Sleeps while no send waits."""
        async with anyio.create_task_group() as tasks:
            while True:
                if not self._is_used and not self._waits:
                    wake = self._wake = anyio.Event()
                    await wake.wait()
                self._is_used = False
                await anyio.sleep(TICK_SECONDS)
                self._tick += 1
                for address, queue in self._silent().items():
                    name = queue.broker_name
                    if self._abandon_if_replaced(name, address) or name in self._asking:
                        continue
                    if self._tick >= self._ask_again.get(name, 0):
                        self._ask_again[name] = self._tick + ASK_TICKS
                        self._asking.add(name)
                        tasks.start_soon(self._ask, queue, address)

    def _silent(self) -> dict[str, MessageQueue]:
        """The addresses that sends have waited for too long for, each with the queue of the oldest."""
        found: dict[str, MessageQueue] = {}
        for tick, queue, address in self._waits.values():
            if self._tick - tick <= SILENT_TICKS:
                break
            found.setdefault(address, queue)
        return found

    async def _ask(self, queue: MessageQueue, address: str) -> None:
        try:
            await self._routes.renew(queue.topic)
        finally:
            self._asking.discard(queue.broker_name)
        self._abandon_if_replaced(queue.broker_name, address)

    def _abandon_if_replaced(self, name: str, address: str) -> bool:
        new = self._routes.new_master(name, address)
        if new is None:
            return False
        self._connections.abandon(address, f"broker {name} has its master at {new} now")
        return True

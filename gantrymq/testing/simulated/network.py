"""Machines that reach each other over links which can be made bad, one by one."""

from __future__ import annotations

import errno
import os
import socket
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

import attrs
import trio

from gantrymq.testing.simulated._connection import Connection
from gantrymq.testing.simulated.link import Link

OBSERVER: Final = "10.255.255.254"
"""Where the test itself sits. Nothing that holds for all links holds for those of this machine."""
_FIRST_PORT: Final = 30_000


@attrs.define(eq=False)
class Process:
    """A program that runs at ``host``, until it is no longer ``alive``. ``stopped``: as by SIGSTOP."""

    host: str
    alive: bool = True
    stopped: bool = False
    held: list[Any] = attrs.field(factory=list)
    """Its tasks that could run since it was stopped."""

    def stop(self) -> None:
        """Run nothing of it until :meth:`resume`; what its tasks wait for goes on, and their deadlines pass."""
        self.stopped = True

    def resume(self) -> None:
        """Go on, as after SIGCONT."""
        self.stopped = False
        held, self.held = self.held, []
        trio.lowlevel.current_task()._runner.runq.extend(held)


_running: ContextVar[Process | None] = ContextVar("gantrymq_simulated_process", default=None)


def running() -> Process:
    """The process that the current task belongs to; the observer's if that was not said."""
    return _running.get() or Process(OBSERVER)


def process_of(task: trio.lowlevel.Task) -> Process | None:
    """The process that ``task`` belongs to, if that was said."""
    return task.context.get(_running)


@contextmanager
def on(process: Process | str) -> Iterator[None]:
    """The block, and the tasks that are started in it, belong to this process, or to one at this machine."""
    token = _running.set(Process(process) if isinstance(process, str) else process)
    try:
        yield
    finally:
        _running.reset(token)


class MemoryListener:
    """A :class:`gantrymq.kernel.env.Listener` of the network."""

    def __init__(self, network: Network, address: tuple[str, int]) -> None:
        self.address = address
        self.listening = False
        self._network = network
        self._waiting: deque[Connection] = deque()
        # Counts down with each read: readable for as long as somebody waits.
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC | os.EFD_SEMAPHORE)

    def fileno(self) -> int:
        return self._descriptor

    def listen(self, backlog: int) -> None:
        self.listening = True

    def knock(self, connection: Connection) -> None:
        """Somebody wants to be accepted."""
        self._waiting.append(connection)
        os.eventfd_write(self._descriptor, 1)

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        os.eventfd_read(self._descriptor)
        connection = self._waiting.popleft()
        return connection.server_end, connection.client

    def close(self) -> None:
        self._network.forget(self)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        while self._waiting:
            self._waiting.popleft().server_end.close()


class Network:
    """All machines, named by their addresses (10.0.0.1), and one link for each direction between two of them.

    Connections are carried in ``nursery``. What chance decides follows from ``seed``.
    """

    def __init__(self, seed: int, nursery: trio.Nursery) -> None:
        self.seed = seed
        self.fingerprint = 0
        """Of what arrived where and when: equal for two runs in which the same has happened."""
        self._nursery = nursery
        self._links: dict[tuple[str, str], Link] = {}
        self._listeners: dict[tuple[str, int], MemoryListener] = {}
        self._connections: dict[Connection, None] = {}
        self._up: dict[str, trio.Event] = {}
        self._ports = _FIRST_PORT

    # ------------------------------------------------------------------------------------------------- the weather

    def link(self, source: str, target: str) -> Link:
        """The direction from one machine to the other."""
        found = self._links.get((source, target))
        if found is None:
            found = self._links[source, target] = Link(source, target, f"{self.seed} {source} {target}")
        return found

    def between(self, some: str | Iterable[str], others: str | Iterable[str] | None = None) -> list[Link]:
        """The links from each of ``some`` to each of ``others`` and back; without others: among each other."""
        first = [some] if isinstance(some, str) else list(some)
        second = first if others is None else [others] if isinstance(others, str) else list(others)
        pairs = {(a, b): None for a in first for b in second if a != b}
        return [self.link(*pair) for pair in {**pairs, **{(b, a): None for a, b in pairs}}]

    def heal(self) -> None:
        """Every link as good as new, and clear."""
        for link in self._links.values():
            link.mend()
            link.clear()

    def cut(self, some: str, other: str) -> int:
        """Reset every connection between the two machines; how many there were."""
        found = [each for each in self._connections if {each.client[0], each.server[0]} == {some, other}]
        for connection in found:
            connection.reset()
        return len(found)

    # ------------------------------------------------------------------------------------------------ the machines

    def switch_on(self, host: str) -> None:
        """The machine answers, if only that nobody listens there."""
        self._up_event(host).set()

    def switch_off(self, host: str) -> None:
        """The machine is gone without a word: who talks to it waits, and learns of it when it is there again."""
        self._up[host] = trio.Event()
        self._leave(host, silently=True)

    def kill(self, host: str) -> None:
        """What runs at the machine has ended; the machine itself tells everybody who was connected."""
        self._leave(host, silently=False)

    def _leave(self, host: str, *, silently: bool) -> None:
        for listener in [each for each in self._listeners.values() if each.address[0] == host]:
            self.forget(listener)
        for connection in self._connections:
            connection.leave(host, self._up_event(host), silently=silently)

    def _up_event(self, host: str) -> trio.Event:
        found = self._up.get(host)
        if found is None:
            found = self._up[host] = trio.Event()
            found.set()
        return found

    # --------------------------------------------------------------------------------------------------- sockets

    def bind(self, host: str, port: int) -> MemoryListener:
        """Take an address of a machine; OSError when it is taken."""
        address = (host, port or self._next_port())
        if address in self._listeners:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        listener = self._listeners[address] = MemoryListener(self, address)
        return listener

    def forget(self, listener: MemoryListener) -> None:
        """Its address is free."""
        if self._listeners.get(listener.address) is listener:
            del self._listeners[listener.address]

    async def connect(self, address: tuple[str, int]) -> Connection:
        """Connect the current task's process; what comes out has its end as ``client_end``. OSError as of a system."""
        process = running()
        there, back = self.link(process.host, address[0]), self.link(address[0], process.host)
        await self._pass(there)
        await self._up_event(address[0]).wait()
        if not process.alive:
            raise OSError(errno.ENETDOWN, "Network is down")
        listener = self._listeners.get(address)
        if listener is None or not listener.listening:
            await self._pass(back)
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        connection = Connection((process.host, self._next_port()), address, there, back)
        connection.there.told = connection.back.told = self._told
        with on(Process(OBSERVER)):  # what is on its way arrives, whether or not this process is stopped meanwhile
            self._nursery.start_soon(self._carry, connection)
        listener.knock(connection)
        try:
            await self._pass(back)
        except BaseException:
            connection.client_end.close()
            raise
        return connection

    async def _pass(self, link: Link) -> None:
        await trio.sleep(link.takes(0))
        await link.passable()

    async def _carry(self, connection: Connection) -> None:
        self._connections[connection] = None
        try:
            await connection.carry()
        finally:
            del self._connections[connection]

    def _told(self, link: Link, size: int) -> None:
        text = f"{trio.current_time()!r} {link.source} {link.target} {size}"
        self.fingerprint = zlib.crc32(text.encode(), self.fingerprint)

    def _next_port(self) -> int:
        self._ports += 1
        return self._ports

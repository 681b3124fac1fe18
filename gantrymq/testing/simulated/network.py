"""Machines, and the links between them, each with its own faults."""

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
"""The machine of the test itself, whose links have no faults."""
_FIRST_PORT: Final = 30_000


@attrs.define(eq=False)
class Process:
    """A program that runs at ``host`` while it is ``alive``. ``stopped``: paused as by SIGSTOP."""

    host: str
    alive: bool = True
    stopped: bool = False
    held: list[Any] = attrs.field(factory=list)
    """Its tasks that have become runnable since it was paused."""

    def stop(self) -> None:
        """Run none of its tasks until :meth:`resume`; meanwhile events happen, and deadlines pass."""
        self.stopped = True

    def resume(self) -> None:
        """Continue, as after SIGCONT."""
        self.stopped = False
        held, self.held = self.held, []
        trio.lowlevel.current_task()._runner.runq.extend(held)


_running: ContextVar[Process | None] = ContextVar("gantrymq_simulated_process", default=None)


def running() -> Process:
    """Return the process of the current task; by default the observer's."""
    return _running.get() or Process(OBSERVER)


def process_of(task: trio.lowlevel.Task) -> Process | None:
    """Return the process of ``task``, or None."""
    return task.context.get(_running)


@contextmanager
def on(process: Process | str) -> Iterator[None]:
    """Assign the block, and tasks that are started in it, to this process, or to one at this machine."""
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
        # Each read decreases it by 1, so that it is readable while connections wait.
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC | os.EFD_SEMAPHORE)

    def fileno(self) -> int:
        return self._descriptor

    def listen(self, backlog: int) -> None:
        self.listening = True

    def knock(self, connection: Connection) -> None:
        """A connection waits to be accepted."""
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

    Connections run in ``nursery``. ``seed`` determines all random choices.
    """

    def __init__(self, seed: int, nursery: trio.Nursery) -> None:
        self.seed = seed
        self.fingerprint = 0
        """A hash of the delivered bytes with their connections and times; equal for identical runs."""
        self._nursery = nursery
        self._links: dict[tuple[str, str], Link] = {}
        self._listeners: dict[tuple[str, int], MemoryListener] = {}
        self._connections: dict[Connection, None] = {}
        self._up: dict[str, trio.Event] = {}
        self._ports = _FIRST_PORT

    # ------------------------------------------------------------------------------------------------------- faults

    def link(self, source: str, target: str) -> Link:
        """Return the link from one machine to the other."""
        found = self._links.get((source, target))
        if found is None:
            found = self._links[source, target] = Link(source, target, f"{self.seed} {source} {target}")
        return found

    def between(self, some: str | Iterable[str], others: str | Iterable[str] | None = None) -> list[Link]:
        """Return the links from each of ``some`` to each of ``others`` and back; without ``others``, among ``some``."""
        first = [some] if isinstance(some, str) else list(some)
        second = first if others is None else [others] if isinstance(others, str) else list(others)
        pairs = {(a, b): None for a in first for b in second if a != b}
        return [self.link(*pair) for pair in {**pairs, **{(b, a): None for a, b in pairs}}]

    def heal(self) -> None:
        """Remove all faults and clogs of all links."""
        for link in self._links.values():
            link.heal()
            link.clear()

    def cut(self, some: str, other: str) -> int:
        """Reset every connection between the two machines; returns their number."""
        found = [each for each in self._connections if {each.client[0], each.server[0]} == {some, other}]
        for connection in found:
            connection.reset()
        return len(found)

    # ------------------------------------------------------------------------------------------------ the machines

    def switch_on(self, host: str) -> None:
        """Switch the machine on: it answers connection attempts, if only with a refusal."""
        self._up_event(host).set()

    def switch_off(self, host: str) -> None:
        """Switch the machine off without notice to its peers: they wait, and learn of it when it is on again."""
        self._up[host] = trio.Event()
        self._leave(host, silently=True)

    def kill(self, host: str) -> None:
        """The process at the machine has ended; the machine's system notifies all connected peers."""
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
        """Bind an address of a machine; OSError if it is in use."""
        address = (host, port or self._next_port())
        if address in self._listeners:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        listener = self._listeners[address] = MemoryListener(self, address)
        return listener

    def forget(self, listener: MemoryListener) -> None:
        """Release the address of a listener."""
        if self._listeners.get(listener.address) is listener:
            del self._listeners[listener.address]

    async def connect(self, address: tuple[str, int]) -> Connection:
        """Connect the current task's process; ``client_end`` of the result is its end. Raises OSError as a system
        does."""
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
        connection.there.on_delivery = connection.back.on_delivery = self._add_to_fingerprint
        with on(Process(OBSERVER)):  # data in transit arrives, also if this process is paused meanwhile
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

    def _add_to_fingerprint(self, link: Link, size: int) -> None:
        text = f"{trio.current_time()!r} {link.source} {link.target} {size}"
        self.fingerprint = zlib.crc32(text.encode(), self.fingerprint)

    def _next_port(self) -> int:
        self._ports += 1
        return self._ports

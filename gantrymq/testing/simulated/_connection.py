"""A connection through the simulated network: two pairs of real sockets, and the transfer between them.

Each machine has one end of its own pair. The connection reads written data at once, delays it as the link determines,
and writes it to the pair of the other machine. The descriptors are real, so epoll and trio handle them as usual, and
written data is readable at once, before the clock can jump.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Final

import trio

from gantrymq.testing.simulated.link import Link

PIECE_BYTES: Final = 16 * 1024
WINDOW_BYTES: Final = 256 * 1024
"""The most bytes in transit in one direction; a sender of more waits, as with TCP."""
BUFFER_BYTES: Final = 64 * 1024
"""The size of the system's buffer for each end."""


class Sign(Enum):
    """A signal in transit behind the data."""

    END = "end"
    RESET = "reset"


class Reset(Exception):
    """Both ends must be closed at once."""


class Pipe:
    """One direction: from a machine's socket (``source``) to the other's (``sink``), over ``link``."""

    def __init__(self, link: Link, source: trio.socket.SocketType, sink: trio.socket.SocketType, port: int) -> None:
        self.link = link
        self.twin = self
        """The other direction."""
        self.on_delivery: Callable[[Link, int], None] = lambda link, size: None
        """Called with the size of each piece of data that arrives."""
        self._source = source
        self._sink = sink
        self._port = port
        self._flight: deque[tuple[float, bytes | Sign]] = deque()
        self._bytes = 0
        self._last = 0.0
        self._moved = trio.lowlevel.ParkingLot()
        self._taking = trio.CancelScope()
        self._deaf: trio.Event | None = None

    def put(self, item: bytes | Sign) -> None:
        """Send ``item``; it arrives after everything sent before."""
        size = len(item) if isinstance(item, bytes) else 0
        self._last = max(self._last, trio.current_time() + self.link.takes(size))
        self._flight.append((self._last, item))
        self._bytes += size
        self._moved.unpark_all()

    def silence(self) -> None:
        """Read nothing more from the source; data in transit still arrives."""
        self._taking.cancel()

    def deafen(self, heard_again: trio.Event) -> None:
        """Stop delivering, because the process at the sink has ended; data that arrives after its restart causes a
        reset."""
        self._deaf = heard_again

    async def take(self) -> None:
        """Send data of the source until its end or :meth:`silence`."""
        with self._taking:
            while True:
                while self._bytes >= WINDOW_BYTES:
                    await self._moved.park()
                try:
                    data = await self._source.recv(PIECE_BYTES)
                except OSError:
                    self.put(Sign.RESET)
                    return
                self.put(data or Sign.END)
                if not data:
                    return

    async def give(self) -> None:
        """Write arriving data to the sink until its end. :class:`Reset` if the connection ends otherwise."""
        while True:
            while not self._flight:
                await self._moved.park()
            due, item = self._flight[0]
            await trio.sleep_until(due)
            await self.link.passable()
            self._flight.popleft()
            if item is Sign.RESET:
                raise Reset
            if self._deaf is not None:
                await self._deaf.wait()
                self.twin.put(Sign.RESET)
                continue
            if not isinstance(item, bytes):
                try:
                    self._sink.shutdown(socket.SHUT_WR)
                except OSError:
                    raise Reset from None
                return
            await self._hand_over(item)
            self._bytes -= len(item)
            self._moved.unpark_all()

    async def _hand_over(self, data: bytes) -> None:
        self.on_delivery(self.link, len(data))
        data, last = self.link.spoil(data, self._port)
        view = memoryview(data)
        try:
            while view:
                view = view[await self._sink.send(view) :]
        except OSError:
            raise Reset from None
        if last:
            raise Reset


class Connection:
    """The connecting host, the host and port of the other side, and the two directions."""

    def __init__(self, client: tuple[str, int], server: tuple[str, int], there: Link, back: Link) -> None:
        self.client = client
        self.server = server
        self.client_end, near = _pair()
        self.server_end, far = _pair()
        self._near, self._far = (trio.socket.from_stdlib_socket(end) for end in (near, far))
        self.there = Pipe(there, self._near, self._far, server[1])
        self.back = Pipe(back, self._far, self._near, server[1])
        self.there.twin, self.back.twin = self.back, self.there
        self._ending = trio.CancelScope()

    def leave(self, host: str, up: trio.Event, *, silently: bool) -> None:
        """The process at ``host`` has ended; its system notifies the other side, unless that has ended too."""
        for own, other in ((self.there, self.back), (self.back, self.there)):
            if own.link.source == host:
                own.silence()
                other.deafen(up)
                if not silently:
                    own.put(Sign.RESET)

    def reset(self) -> None:
        """Close both sides at once."""
        self._ending.cancel()

    async def carry(self) -> None:
        """Transfer data until both sides have closed the connection, or it is reset."""
        try:
            with self._ending:
                async with trio.open_nursery() as nursery:
                    for pipe in (self.there, self.back):
                        nursery.start_soon(pipe.take)
                        nursery.start_soon(pipe.give)
        except* Reset:
            pass
        finally:
            self._near.close()
            self._far.close()


def _pair() -> tuple[socket.socket, socket.socket]:
    pair = socket.socketpair()
    for end in pair:
        end.setblocking(False)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    return pair

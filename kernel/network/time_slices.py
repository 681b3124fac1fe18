"""Requests that wait for their turn, so that one peer's heavy requests hold up nobody else's light ones.

The sweep answers requests where they come, for as long as a turn may take (``limits.turn_budget``). What is left waits
here, by connection, in the order in which it came, and the connections take turns. A connection with requests that
wait is not read meanwhile: its peer's next requests stay in the socket.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import attrs
import trio

if TYPE_CHECKING:
    from gantrymq.kernel.config.declarations import LimitsSection
    from gantrymq.kernel.network.connection import Connection
    from gantrymq.kernel.processors import Request

SLICES: Final = 4
"""A long piece of work rests so often in the time of one turn: some of them may run at once."""
REQUEST_BYTES: Final = 512
"""What a request is taken to need in memory beside its header and body."""


@attrs.define(eq=False)
class _Peer:
    """A connection's requests that wait, and those that tasks work on."""

    queue: deque[Request] = attrs.field(factory=deque)
    in_flight: int = 0
    heavy: int = 0
    is_blocked: bool = False
    """Whether the first request waits for one of the same connection to end."""
    is_held: bool = False
    """Whether one is answered in steps, and all others wait for its end."""


class WaitingRequests:
    """The queues, and what waiting requests take in memory."""

    def __init__(self, limits: LimitsSection) -> None:
        self._limits = limits
        self._peers: dict[Connection, _Peer] = {}
        self._ready: deque[Connection] = deque()
        self._bytes = 0

    def __bool__(self) -> bool:
        """Whether the next turn finds a request here that it may answer."""
        return bool(self._ready)

    def __contains__(self, connection: Connection) -> bool:
        """Whether requests of the connection wait: further ones have to wait behind them."""
        peer = self._peers.get(connection)
        return peer is not None and (bool(peer.queue) or peer.is_held)

    @property
    def bytes(self) -> int:
        """What the requests that wait or are worked on take in memory, roughly."""
        return self._bytes

    def has_room(self, request: Request) -> bool:
        """Whether the request may wait, or be worked on by a task."""
        return self._bytes + size_of(request) <= self._limits.waiting_bytes

    def put(self, request: Request) -> None:
        """Let the request wait behind all others of its connection, which is not read until they are answered."""
        connection = request.connection
        peer = self._peer(connection)
        if not peer.queue and not peer.is_held:
            connection.pause()
            self._ready.append(connection)
        peer.queue.append(request)
        self._bytes += size_of(request)

    def first(self) -> Request:
        """The first request of the connection whose turn it is."""
        return self._peers[self._ready[0]].queue[0]

    def block(self) -> None:
        """The connection whose turn it is has to wait until one of its requests :meth:`ended`."""
        self._peers[self._ready.popleft()].is_blocked = True

    def take(self, belongs: Callable[[Request], bool], most: int) -> list[Request]:
        """The first request of the connection whose turn it is, with those behind it that ``belongs`` lets through."""
        connection = self._ready.popleft()
        peer = self._peers[connection]
        queue = peer.queue
        taken = [queue.popleft()]
        while queue and len(taken) < most and belongs(queue[0]):
            taken.append(queue.popleft())
        self._bytes -= sum(map(size_of, taken))
        if queue:
            self._ready.append(connection)
        else:
            connection.resume()
            self._forget(connection, peer)
        return taken

    def put_back(self, requests: Sequence[Request]) -> None:
        """These requests of one connection are its first ones again, in this order."""
        connection = requests[0].connection
        peer = self._peer(connection)
        if not peer.queue:
            connection.pause()
            self._ready.append(connection)
        peer.queue.extendleft(reversed(requests))
        self._bytes += sum(map(size_of, requests))

    def hold(self, request: Request) -> None:
        """The request is about to be answered in steps: what its connection sends next waits for :meth:`release`.

        Nothing of the connection waits, or the request is the :meth:`first` of those that do, and is taken.
        """
        connection = request.connection
        peer = self._peer(connection)
        if peer.queue:
            self._ready.popleft()
            peer.queue.popleft()
        else:
            connection.pause()
            self._bytes += size_of(request)
        peer.is_held = True

    def release(self, connection: Connection, size: int) -> None:
        """The request that was held is done with, which was so large."""
        peer = self._peers[connection]
        peer.is_held = False
        self._bytes -= size
        if peer.queue:
            self._ready.append(connection)
        else:
            connection.resume()
            self._forget(connection, peer)

    # ------------------------------------------------------------------------------------------------------- tasks

    def may_begin(self, request: Request, *, heavy: bool) -> bool:
        """Whether a task may begin to work on the request, as far as its connection goes."""
        peer = self._peers.get(request.connection)
        if peer is None:
            return True
        return peer.in_flight < self._limits.requests_in_flight and not (heavy and peer.heavy)

    def begun(self, request: Request, *, heavy: bool) -> None:
        """A task works on the request."""
        peer = self._peer(request.connection)
        peer.in_flight += 1
        peer.heavy += heavy
        self._bytes += size_of(request)

    def ended(self, connection: Connection, size: int, *, heavy: bool) -> None:
        """The task is done with the request, which was so large."""
        peer = self._peers[connection]
        peer.in_flight -= 1
        peer.heavy -= heavy
        self._bytes -= size
        if peer.is_blocked:
            peer.is_blocked = False
            self._ready.append(connection)
        self._forget(connection, peer)

    # ------------------------------------------------------------------------------------------------------ pieces

    def _peer(self, connection: Connection) -> _Peer:
        peer = self._peers.get(connection)
        if peer is None:
            peer = self._peers[connection] = _Peer()
        return peer

    def _forget(self, connection: Connection, peer: _Peer) -> None:
        if not (peer.queue or peer.in_flight or peer.is_held):
            del self._peers[connection]


def size_of(request: Request) -> int:
    """What a request takes in memory, roughly; the same each time it is asked for."""
    return request.size + REQUEST_BYTES


class Pace:
    """Lets a long piece of work rest often enough for others: ``await pace.rest()`` between its steps."""

    def __init__(self, clock: Callable[[], float], slice_s: float, give_way: Callable[[], None]) -> None:
        """``give_way`` is called before each rest: who waits for events shall not wait long."""
        self._clock = clock
        self._slice_s = slice_s
        self._give_way = give_way
        self._until = clock() + slice_s

    async def rest(self) -> None:
        """Let other tasks run if the slice of time is over."""
        if self._clock() >= self._until:
            self._give_way()
            await trio.lowlevel.checkpoint()
            self._until = self._clock() + self._slice_s

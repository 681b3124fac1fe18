"""Requests that wait for their turn, so that heavy requests of one peer do not delay others.

The sweep answers requests as they arrive while the time of the turn lasts (``limits.turn_budget``). The rest waits here
per connection in order of arrival, and the connections take turns. A connection with waiting requests is not read
meanwhile: its next requests stay in the socket.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

if TYPE_CHECKING:
    from gantrymq.kernel.config.declarations import LimitsSection
    from gantrymq.kernel.network.connection import Connection
    from gantrymq.kernel.processors import Request

SLICES: Final = 4
"""How often long work pauses in the time of one turn, because several may run at once."""
REQUEST_BYTES: Final = 512
"""The assumed memory of a request besides its header and body."""


@attrs.define(eq=False)
class _Peer:
    """A connection's waiting requests, and those that tasks process."""

    queue: deque[Request] = attrs.field(factory=deque)
    in_flight: int = 0
    heavy: int = 0
    is_blocked: bool = False
    """Whether the first request waits for another request of the connection to end."""
    is_held: bool = False
    """Whether a request is being answered in steps and all others wait for its end."""


class WaitingRequests:
    """The queues of waiting requests, and their memory."""

    def __init__(self, limits: LimitsSection) -> None:
        self._limits = limits
        self._peers: dict[Connection, _Peer] = {}
        self._ready: deque[Connection] = deque()
        self._bytes = 0

    def __bool__(self) -> bool:
        """Return whether a request waits that the next turn can answer."""
        return bool(self._ready)

    def __contains__(self, connection: Connection) -> bool:
        """Return whether requests of the connection wait; further ones must wait behind them."""
        peer = self._peers.get(connection)
        return peer is not None and (bool(peer.queue) or peer.is_held)

    @property
    def bytes(self) -> int:
        """The approximate memory of requests that wait or are processed."""
        return self._bytes

    def has_room(self, request: Request) -> bool:
        """Return whether the limit allows the request to wait or to be processed by a task."""
        return self._bytes + size_of(request) <= self._limits.waiting_bytes

    def put(self, request: Request) -> None:
        """Queue the request behind the others of its connection, which is not read until they are answered."""
        connection = request.connection
        peer = self._peer(connection)
        if not peer.queue and not peer.is_held:
            connection.pause()
            self._ready.append(connection)
        peer.queue.append(request)
        _own_frame(request)
        self._bytes += size_of(request)

    def first(self) -> Request:
        """Return the first request of the connection whose turn it is."""
        return self._peers[self._ready[0]].queue[0]

    def block(self) -> None:
        """The connection whose turn it is must wait until one of its requests has :meth:`ended`."""
        self._peers[self._ready.popleft()].is_blocked = True

    def take(self, belongs: Callable[[Request], bool], most: int) -> list[Request]:
        """Return the first request of the connection whose turn it is, and the following ones for which ``belongs`` is
        true."""
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
        """Put these requests of one connection back to the front of its queue, in this order."""
        connection = requests[0].connection
        peer = self._peer(connection)
        if not peer.queue:
            connection.pause()
            self._ready.append(connection)
        peer.queue.extendleft(reversed(requests))
        for request in requests:
            _own_frame(request)
        self._bytes += sum(map(size_of, requests))

    def hold(self, request: Request) -> None:
        """The request will be answered in steps: later requests of its connection wait for :meth:`release`.

        Either no request of the connection waits, or the request is the :meth:`first` one and leaves the queue.
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
        """The held request has ended; ``size`` is its memory."""
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
        """Return whether the limits of its connection allow a task to begin the request."""
        peer = self._peers.get(request.connection)
        if peer is None:
            return True
        return peer.in_flight < self._limits.requests_in_flight and not (heavy and peer.heavy)

    def begun(self, request: Request, *, heavy: bool) -> None:
        """A task has begun the request."""
        peer = self._peer(request.connection)
        peer.in_flight += 1
        peer.heavy += heavy
        self._bytes += size_of(request)

    def ended(self, connection: Connection, size: int, *, heavy: bool) -> None:
        """The task has ended the request; ``size`` is its memory."""
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


def _own_frame(request: Any) -> None:
    """Let a compiled request keep only its own frame alive, not all bytes that were received with it."""
    own_frame = getattr(request, "own_frame", None)
    if own_frame is not None:
        own_frame()


def size_of(request: Request) -> int:
    """Return the approximate memory of a request; constant for each request."""
    return request.size + REQUEST_BYTES


class Pace:
    """Lets long work pause often enough for others: ``await pace.checkpoint()`` between its steps."""

    def __init__(self, clock: Callable[[], float], slice_s: float, yield_to_tasks: Callable[[], None]) -> None:
        """``yield_to_tasks`` is called before each pause, so that the sweep does not wait long for events."""
        self._clock = clock
        self._slice_s = slice_s
        self._yield_to_tasks = yield_to_tasks
        self._until = clock() + slice_s

    async def checkpoint(self) -> None:
        """Let other tasks run if the time slice is used up."""
        if self._clock() >= self._until:
            self._yield_to_tasks()
            await trio.lowlevel.checkpoint()
            self._until = self._clock() + self._slice_s

"""The task that serves all connections of the broker.

All sockets are in one ``epoll``. The task waits for the epoll's own descriptor and then processes every ready socket:
receive, split frames, decode headers, pass all requests on in one call, write all responses with one ``send`` per
connection. A task per connection would cost more than the work itself. A turn is limited in bytes and rows; the rest
stays ready in the level-triggered epoll, which rotates its ready list, so connections take turns.
"""

from __future__ import annotations

import contextlib
import select
import socket
from collections import OrderedDict
from collections.abc import Callable

import structlog
import trio

from gantrymq.kernel.config.declarations import LimitsSection
from gantrymq.kernel.env import Env, Listener
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.fast import Readers, read_ready, read_requests, write_ready
from gantrymq.kernel.fast.durations import Durations
from gantrymq.kernel.network.adaptive_wait import AdaptiveWait, PollingTrial
from gantrymq.kernel.network.admission import Admission
from gantrymq.kernel.network.connection import Connection, ConnectionsBatch
from gantrymq.kernel.network.listening import OUT_OF_DESCRIPTORS
from gantrymq.kernel.network.reading_time import ReadingTime
from gantrymq.kernel.processors import Request
from gantrymq.remoting.bad_bytes import BadBytesLog
from gantrymq.remoting.errors import FatalRemoteFault
from gantrymq.remoting.lenient_header import EFFORT

log = structlog.get_logger("gantrymq.sweep")

RECEIVE_BYTES = 256 * 1024
EVENTS_A_TURN = 512
ACCEPTS_A_TURN = 128
CHECKED_AT_ONCE = 256
TURNS_WITHOUT_CHECKPOINT = 64
STAY_S = 0.0015
LINGER_S = 0.001
"""A pass through the scheduler costs more than a small turn. So the sweep continues while events are ready, and lingers
for the next ones: other tasks run at the latest after these two times together."""
SPINS = 200
"""How often it polls before it lingers, after a turn of one request: about 100 microseconds. A sender of one message at
a time may then be answered sooner than this thread could be woken: :class:`PollingTrial` finds out."""

LONE_TURNS = 8
"""After this many turns in a row with a single request, all of one connection, that connection's sender is alone."""
TRIAL_TURNS = 64
"""The number of turns of a lone sender in a block of :class:`PollingTrial`."""

TURN_VALUES = 1024
"""Values of headers in other forms than that of RocketMQ's Java client, after which a turn receives nothing more:
Python reads them in some microseconds each."""

_GONE = select.EPOLLHUP | select.EPOLLERR
_NOWHERE = -1


class Sweep:
    """Receives requests and sends responses. ``handle`` gets all requests of a turn, ``progress`` runs after it."""

    def __init__(
        self,
        env: Env,
        limits: LimitsSection,
        handle: Callable[[list[Request]], None],
        connections_changed: Callable[[ConnectionsBatch], None],
        progress: Callable[[], None],
    ) -> None:
        self._env = env
        self._limits = limits
        self._handle = handle
        self._connections_changed, self._progress = connections_changed, progress
        self._bad_bytes = BadBytesLog(log, env.monotonic)
        self._epoll = select.epoll()
        self.waker = env.waker()
        self._waker_descriptor = self.waker.fileno()
        self._epoll.register(self._waker_descriptor, select.EPOLLIN)
        self._listener: Listener | None = None
        self._accepting_on = _NOWHERE
        """The listener's descriptor while the epoll has it."""
        self._listening = self._short = False
        self._admission = Admission(limits, self.drop)
        self._connections: dict[int, Connection] = {}
        self._dirty: dict[Connection, None] = {}
        self._handed_over: list[tuple[socket.socket, tuple[str, int]]] = []
        self._unsent = 0
        self._unchecked: list[Connection] = []
        """Connections that this round of :meth:`check_deadlines` has not checked yet."""
        self._unread = 0
        """Bytes of unfinished frames of those that it has checked."""
        self._received = self._received_before_round = 0
        """All bytes received, now and when the round began: unfinished frames grow by at most their difference."""
        self._count_at = max(limits.buffered_bytes, limits.sweep_bytes)
        """The value of ``_received`` after which unfinished frames are counted before the round ends."""
        self._reading = ReadingTime()
        self._rest: OrderedDict[Connection, None] = OrderedDict()
        """Connections with complete frames in memory for the next turn, without paused ones."""
        self._unserved: list[int] = []
        """Descriptors that were ready when the turn's limits were reached: they come first in the next turn, because
        the epoll returns the same ones first each time."""
        self._changes = ConnectionsBatch()
        self._numbers = 0
        self._in_turn = self._has_sent = False
        self.is_handling = False
        """Whether ``handle`` runs now; ``progress`` follows."""
        self._now = 0.0
        self._lingering = AdaptiveWait()
        self._spinning = AdaptiveWait()
        self._trial = PollingTrial()
        self._block_began = 0.0
        self._few = self._yields_to_tasks = False
        self._lone: Connection | None = None
        self._lone_turns = 0
        self.has_waiting: Callable[[], bool] = bool
        """Whether requests wait for a turn: ``handle`` is then also called without new requests."""
        self._turn_times: Durations | None = None
        self.readers = Readers()
        """The readers that parse requests of some codes in place of the decoder."""

    # ------------------------------------------------------------------------------------------------- listening

    def bind(self, host: str, port: int) -> tuple[str, int]:
        """Bind the address (port 0: any) without accepting yet; returns the bound address."""
        try:
            self._listener = self._env.bind(host, port)
        except (OSError, OverflowError) as error:
            raise _cannot_listen(host, port, error) from None
        return self._listener.address

    def listen(self) -> None:
        """Accept connections from now on. ``StartError`` if another process listens at the address since the bind."""
        if self._listener is None:
            raise RuntimeError("bind first")
        try:
            self._listener.listen(1024)
        except OSError as error:
            raise _cannot_listen(*self._listener.address, error) from None
        self._listening = True
        self._accept_again(self._listener)

    def serve_connection(self, sock: socket.socket, peer: tuple[str, int]) -> None:
        """Serve a connection that was accepted elsewhere, from the next turn on. ``sock`` must not block."""
        self._handed_over.append((sock, peer))
        self.waker.wake()

    def stop_listening(self) -> None:
        """Accept no new connections; open ones continue."""
        if self._listener is not None:
            if self._accepting_on != _NOWHERE:
                self._epoll.unregister(self._accepting_on)
            self._accepting_on = _NOWHERE
            self._listener.close()
            self._listener = None

    def close(self) -> None:
        """Close everything."""
        self.stop_listening()
        for sock, _ in self._handed_over:
            sock.close()
        for connection in list(self._connections.values()):
            self._flush(connection)
            self.drop(connection, "the broker stops")
        self._report_changes()
        self._epoll.close()
        self.waker.close()

    # --------------------------------------------------------------------------------------------------- running

    @property
    def connections(self) -> list[Connection]:
        """The open connections."""
        return list(self._connections.values())

    def wake(self) -> None:
        """Cause the next turn soon; safe to call from any thread."""
        self.waker.wake()

    @property
    def serves_one_client(self) -> bool:
        """Whether a request is handled now, and this and the last turns had one each, all of one connection."""
        return self.is_handling and self._lone_turns >= LONE_TURNS

    def yield_to_tasks(self) -> None:
        """Another task has work: do not linger the next time, so that it runs."""
        self._yields_to_tasks = True

    async def run(self, is_full: Callable[[], bool]) -> None:
        """Run turns until cancelled. While ``is_full()``, nothing is received, and only the waker causes the next
        turn."""
        while True:
            if is_full():
                self._set_reads(False)
                await trio.lowlevel.wait_readable(self._waker_descriptor)
            elif self._rest or self.has_waiting():
                await trio.lowlevel.checkpoint()
            else:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
            leave_at = self._env.monotonic() + STAY_S
            for turns in range(TURNS_WITHOUT_CHECKPOINT):
                if not self.turn(receive=not is_full(), linger=turns > 0) or self._now > leave_at:
                    break

    def turn(self, *, receive: bool = True, linger: bool = False) -> bool:
        """Process everything that is ready, waiting briefly if ``linger``; returns whether another turn may follow at
        once."""
        if receive is not self._reading.reads:
            self._set_reads(receive)
        waiting = receive and self.has_waiting()
        rest = receive and bool(self._rest)
        events = self._events(linger and receive and not waiting and not rest)
        if not events and not waiting and not rest:
            return False
        if self._unserved:
            places = {descriptor: place for place, descriptor in enumerate(self._unserved)}
            events.sort(key=lambda event: places.get(event[0], len(places)))
            self._unserved = []
        self._in_turn, self._has_sent = True, False
        self._now = now = self._env.monotonic()
        requests: list[Request] = []
        effort_until = EFFORT.values + TURN_VALUES
        self._serve(events, requests, now, self._limits.sweep_bytes if receive else 0, effort_until)
        while self._handed_over:
            self._open(*self._handed_over.pop(), now)
        if rest:
            self._read_rest(requests, now, effort_until)
        self._few = len(requests) == 1
        if self._few and requests[0].connection is self._lone:
            self._lone_turns += 1
            if not self._lone_turns % TRIAL_TURNS:
                if self._lone_turns > TRIAL_TURNS:
                    self._trial.record(now - self._block_began)
                self._block_began = now
        elif requests:
            self._lone, self._lone_turns = (requests[0].connection if self._few else None), 0
        if requests or waiting:
            self.is_handling = True
            self._handle(requests)
            self.is_handling = False
        self._progress()
        self._report_changes()
        self._in_turn = False
        # Only the waker was ready and nothing was sent, so no client is about to send the next request.
        quiet = not self._dirty and not self._has_sent and len(events) == 1 and events[0][0] == self._waker_descriptor
        self._flush_dirty()
        if self._turn_times is not None and requests:
            self._turn_times.add(self._env.monotonic() - now)
        return receive and not quiet

    def _set_reads(self, reads: bool) -> None:
        self._reading.set_reads(reads, self._env.monotonic())

    def _serve(
        self, events: list[tuple[int, int]], requests: list[Request], now: float, budget: int, effort_until: int
    ) -> None:
        """Receive what the events are about, ``budget`` bytes at most, and append the requests to ``requests``.

        New connections come last: they may get the descriptors of connections that they displace, and an event of the
        earlier connection must not be applied to the later one, which no plugin has seen yet.
        """
        position, accepts = 0, False
        while True:
            position, size = read_ready(
                events, position, self._connections, requests, now, self._read, self._limits.frame_bytes,
                self.readers, budget, self._limits.sweep_rows,
            )  # fmt: skip
            self._received += size
            budget = 0 if EFFORT.values >= effort_until else budget - size
            if position == len(events):
                break
            descriptor, event = events[position]
            position += 1
            if descriptor == self._waker_descriptor:
                self.waker.drain()
            elif descriptor == self._accepting_on:
                accepts = True
            else:
                connection = self._connections.get(descriptor)
                if connection is None:
                    continue
                if event & select.EPOLLOUT:
                    self._dirty[connection] = None
                if connection.is_paused:
                    connection.notice(event)
                elif not event & (select.EPOLLIN | _GONE):
                    pass
                elif budget > 0 and len(requests) < self._limits.sweep_rows:
                    if connection not in self._rest:
                        size = self._receive(connection, requests, now)
                        self._received += size
                        budget -= size
                        if EFFORT.values >= effort_until:
                            budget = 0
                else:
                    self._unserved.append(descriptor)
        if self._received > self._count_at:
            self._count_unread()
        if accepts:
            self._accept(now)

    def _events(self, linger: bool) -> list[tuple[int, int]]:
        """Return the ready descriptors and event bits; lingers unless recent waits had no result."""
        if not linger or self._yields_to_tasks:
            self._yields_to_tasks = self._yields_to_tasks and not linger
            return self._epoll.poll(0, EVENTS_A_TURN)
        if self._few and self._trial.polls and self._spinning.should_wait():
            for _ in range(SPINS):
                events = self._epoll.poll(0, EVENTS_A_TURN)
                if events:
                    self._spinning.record(True)
                    return events
            self._spinning.record(False)
        if not self._lingering.should_wait():
            return self._epoll.poll(0, EVENTS_A_TURN)
        events = self._epoll.poll(LINGER_S, EVENTS_A_TURN)
        self._lingering.record(events)
        return events

    def measure_turns(self) -> Durations:
        """Measure turns with requests from now on, until their responses are sent; returns the growing counts."""
        self._turn_times = self._turn_times or Durations()
        return self._turn_times

    def send_responses(self) -> None:
        """Send the responses so far, in place of at the end of the turn."""
        if self._dirty:
            self._has_sent = True
            self._flush_dirty()

    def touch(self, connection: Connection, size: int) -> None:
        """The connection has ``size`` more bytes to send. Within a turn they wait for its end, up to the limit."""
        self._unsent += size
        self._dirty[connection] = None
        if self._unsent > self._limits.buffered_bytes:
            self._flush_dirty()
            self._shed(self._unsent, lambda other: other.outbound_bytes, "unread responses fill the memory")
        elif connection.outbound_bytes - connection.largest_response > self._limits.write_buffer_bytes:
            self._flush(connection)
        if not self._in_turn:
            self._flush_dirty()

    def is_congested(self, connection: Connection) -> bool:
        """Return whether more than a quarter of the write buffer waits, even after an attempt to send it.

        A quarter, because further responses can follow without this check.
        """
        if connection.outbound_bytes > self._limits.write_buffer_bytes // 4:
            self._flush(connection)
        return connection.outbound_bytes > self._limits.write_buffer_bytes // 4

    def watch(self, connection: Connection) -> None:
        """Update the events of the connection in the epoll."""
        self._epoll.modify(connection.sock.fileno(), connection.interest)
        if not connection.is_paused and _has_frame(connection.inbound):
            self._rest[connection] = None
            if not self._in_turn:
                self.waker.wake()

    def drop(self, connection: Connection, reason: str) -> None:
        """Close ``connection``; the turn's ``connections_changed`` reports it."""
        if connection.closed:
            return
        connection.closed = True
        descriptor = connection.sock.fileno()
        self._connections.pop(descriptor, None)
        self._admission.closed(connection)
        self._dirty.pop(connection, None)
        self._rest.pop(connection, None)
        if connection is self._lone:
            self._lone, self._lone_turns = None, 0
        with contextlib.suppress(OSError, ValueError):
            self._epoll.unregister(descriptor)
        connection.sock.close()
        self._unsent -= connection.outbound_bytes
        connection.outbound_bytes = 0
        connection.outbound.clear()
        connection.inbound.clear()
        log.debug("connection_closed", peer=connection.address, reason=reason)
        connection.ended()
        self._changes.closed.append(connection)
        if not self._in_turn:
            self.waker.wake()

    def identified(self, connection: Connection) -> None:
        """The connection has an identity; the turn's ``connections_changed`` reports it."""
        self._changes.identified.append(connection)
        if not self._in_turn:
            self.waker.wake()

    def check_deadlines(self) -> None:
        """Close connections that are idle, take too long over a frame, or fill the memory; accept again after a
        shortage. Call it four times a second; it then checks each connection at least once a second.

        Time in which the sweep did not read its sockets does not count, except for less than a second.
        """
        now = self._env.monotonic()
        if not self._unchecked:
            self._unchecked = list(self._connections.values())
            self._unread, self._received_before_round = 0, self._received
        # A quarter per call: checking ten thousand at once would delay clients noticeably.
        count = max(CHECKED_AT_ONCE, len(self._connections) // 4)
        connections, self._unchecked = self._unchecked[:count], self._unchecked[count:]
        self._reading.check(now)
        idle_since = self._reading.before(now, self._limits.idle)
        frame_since = self._reading.before(now, self._limits.frame_deadline)
        accepted_since = self._reading.before(now, self._limits.first_frame)
        for connection in connections:
            self._unread += len(connection.inbound)
            if connection.is_paused:
                connection.excuse(now)
            elif connection.active_at < idle_since:
                self.drop(connection, "idle")
            elif connection.partial_since is not None and connection.partial_since < frame_since:
                self.drop(connection, "a frame took too long")
            elif connection.silent_since is not None and connection.silent_since < accepted_since:
                self.drop(connection, "no frame came")
        if not self._unchecked:
            if self._unread > self._limits.buffered_bytes:
                self._count_unread()  # some may have been closed or served since they were checked
            else:
                self._count_later(self._unread, self._received_before_round)
        if self._listener is not None and self._listening and self._accepting_on == _NOWHERE:
            self._accept_again(self._listener)

    # ---------------------------------------------------------------------------------------------------- pieces

    def _count_unread(self) -> None:
        """Count the unfinished frames, about a millisecond's work for ten thousand connections, and apply their common
        limit."""
        total = sum(len(connection.inbound) for connection in self._connections.values())
        left = self._shed(total, lambda connection: len(connection.inbound), "unfinished frames fill the memory")
        self._count_later(left, self._received)

    def _count_later(self, unread: int, received: int) -> None:
        """Unfinished frames had ``unread`` bytes when ``received`` bytes had come in: count them when they may exceed
        their limit.

        They may exceed it by as much as one turn receives, so that a total just below the limit is not counted again
        in each turn.
        """
        self._count_at = received + max(self._limits.buffered_bytes - unread, self._limits.sweep_bytes)

    def _shed(self, total: int, size_of: Callable[[Connection], int], reason: str) -> int:
        """If ``total`` exceeds the common limit, close the connections with the most until a quarter is free; return
        what is left of it."""
        if total <= self._limits.buffered_bytes:
            return total
        for connection in sorted(self._connections.values(), key=size_of, reverse=True):
            size = size_of(connection)
            log.warning("connection_closed", peer=connection.address, reason=reason, bytes=size)
            self.drop(connection, reason)
            total -= size
            if total <= self._limits.buffered_bytes * 3 // 4:
                break
        return total

    def _accept_again(self, listener: Listener) -> None:
        self._accepting_on = listener.fileno()
        self._epoll.register(self._accepting_on, select.EPOLLIN)

    def _accept(self, now: float) -> None:
        assert self._listener is not None
        for _ in range(ACCEPTS_A_TURN):
            try:
                sock, peer = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in OUT_OF_DESCRIPTORS:
                    if not self._short:  # once per shortage, not for each attempt
                        log.warning("accept_failed", error=str(error), connections=len(self._connections))
                    self._short = True
                    self._epoll.unregister(self._accepting_on)
                    self._accepting_on = _NOWHERE
                    return
                continue
            self._short = False
            self._open(sock, peer, now)

    def _open(self, sock: socket.socket, peer: tuple[str, int], now: float) -> None:
        if not self._admission.admits(peer[0], now):
            sock.close()
            return
        self._numbers += 1
        connection = Connection(self, sock, self._numbers, peer, now)
        self._connections[sock.fileno()] = connection
        self._admission.opened(connection)
        self._epoll.register(sock.fileno(), select.EPOLLIN)
        self._changes.opened.append(connection)

    def _receive(self, connection: Connection, requests: list[Request], now: float) -> int:
        try:
            data = connection.sock.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return 0
        except OSError as error:
            self.drop(connection, str(error))
            return 0
        if not data:
            self.drop(connection, "closed by the peer")
            return 0
        connection.active_at = now
        self._read(connection, data, requests, now)
        return len(data)

    def _read(self, connection: Connection, data: bytes, requests: list[Request], now: float) -> None:
        """Decode the requests of a connection; ``data`` is what it received now."""
        inbound = connection.inbound
        if inbound:
            inbound += data
        try:
            received, taken = read_requests(connection, inbound or data, self._limits.frame_bytes, self.readers)
        except FatalRemoteFault as error:
            self._bad_bytes.report(connection.address, error)
            self.drop(connection, str(error))
            return
        if inbound:
            del inbound[:taken]
        elif taken < len(data):
            inbound += data[taken:]
        if taken:
            connection.silent_since = None
        if not inbound:
            connection.partial_since = None
        elif taken or connection.partial_since is None:
            connection.partial_since = now
        requests += received
        if inbound and taken and _has_frame(inbound):
            self._rest[connection] = None

    def _read_rest(self, requests: list[Request], now: float, effort_until: int) -> None:
        """Continue with frames of an earlier turn, of at least one connection."""
        for _ in range(len(self._rest)):
            connection, _none = self._rest.popitem(last=False)
            if not connection.is_paused:  # otherwise :meth:`watch` adds it again
                self._read(connection, b"", requests, now)
            if EFFORT.values >= effort_until or len(requests) >= self._limits.sweep_rows:
                return

    def _report_changes(self) -> None:
        changes = self._changes
        if changes.opened or changes.closed or changes.identified:
            self._changes = ConnectionsBatch()
            self._connections_changed(changes)

    def _flush_dirty(self) -> None:
        while self._dirty:
            dirty, self._dirty = self._dirty, {}
            left, sent = write_ready(dirty)
            self._unsent -= sent
            for connection in left:
                self._flush(connection)

    def _flush(self, connection: Connection) -> None:
        if connection.closed:
            return
        before = connection.outbound_bytes
        try:
            connection.write()
        except OSError as error:
            self._unsent -= before - connection.outbound_bytes
            self.drop(connection, str(error))
            return
        self._unsent -= before - connection.outbound_bytes
        if connection.outbound_bytes - connection.largest_response > self._limits.write_buffer_bytes:
            reason = "its unread responses exceed limits.write_buffer_bytes"
            log.warning("slow_reader_closed", peer=connection.address, reason=reason)
            self.drop(connection, "the peer does not read its responses")
            return
        wants = bool(connection.outbound)
        if wants != connection.wants_write:
            connection.wants_write = wants
            self.watch(connection)


def _cannot_listen(host: str, port: int, error: Exception) -> StartError:
    reason = getattr(error, "strerror", None) or error
    return StartError(f"cannot listen on {host}:{port}: {reason}; choose another address with --listen HOST:PORT")


def _has_frame(inbound: bytearray) -> bool:
    return len(inbound) >= 4 and int.from_bytes(inbound[:4], "big") + 4 <= len(inbound)

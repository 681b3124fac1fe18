"""The nameserver's sockets: a task for each connection reads frames, calls the handlers, and writes the responses.

A connection costs a task and the bytes of an unfinished frame. Invalid bytes close only their own connection.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import attrs
import structlog
import trio

from gantrymq.nameserver.access import Identity, read_identities
from gantrymq.nameserver.audit import Audit
from gantrymq.nameserver.kv import KVConfig
from gantrymq.nameserver.live import MinimumChange
from gantrymq.nameserver.notices import Notices
from gantrymq.nameserver.requests import Requests
from gantrymq.nameserver.routecache import RouteCache
from gantrymq.nameserver.routes import EXPIRY_SECONDS, Routes
from gantrymq.nameserver.switches import Switches
from gantrymq.nameserver.totals import MetricsSink, Totals
from gantrymq.remoting._port_stream import PortStream
from gantrymq.remoting.address import format_address
from gantrymq.remoting.bad_bytes import BadBytesLog
from gantrymq.remoting.channel import OUTGOING
from gantrymq.remoting.command import decode, encode
from gantrymq.remoting.descriptors import descriptors_allowed
from gantrymq.remoting.errors import FatalRemoteFault, GantryError
from gantrymq.remoting.frame import FRAME_MAX_BYTES, Frame, cut_frames
from gantrymq.remoting.outages import Outages
from gantrymq.remoting.peers import LOOPBACK, FairShares, PeerRule, is_loopback, site_of
from gantrymq.remoting.tls import IN_TEST_MODE, FileChanges, ServerTls, TlsUnusable

_RECEIVE_BYTES = 64 * 1024
RESPONSES_BYTES = 256 * 1024
"""Responses to requests that arrive together are sent together, in writes of about this size."""
TURN_SECONDS = 0.005
"""How long the nameserver answers requests of one connection before it serves the others."""
ACCEPT_PAUSE_SECONDS = 0.1
REFUSALS_REPORT_SECONDS = 10.0
WATCH_SECONDS = 10.0
"""How often the nameserver looks for changed certificates and identities."""
DESCRIPTOR_SHARE = 4
"""Connections use at most a quarter of the process's descriptors, because a broker may run in the same process."""

log = structlog.get_logger("gantrymq.nameserver")


class NotProtected(GantryError):
    """The nameserver would listen at other addresses than loopback without a list of peers that may change routes."""

    def __init__(self, address: str) -> None:
        super().__init__(
            f"nameserver {address}: every machine that can connect could change the routes; listen on 127.0.0.1, name"
            " the brokers' and administrators' addresses with --peers or their keys with --access, or start with"
            " --insecure on a network where every machine is trusted"
        )


@attrs.frozen(kw_only=True)
class NameServerConfig:
    """Where to listen, and the limits. Times in seconds, sizes in bytes.

    ``kv_path``: the file of the KV config; None keeps it in memory. ``switches``: the switches at the start.
    ``peers``: addresses and networks whose brokers and administrators may change the tables, besides this machine.
    ``access``: the file of identities (:mod:`gantrymq.nameserver.access`) that may change the tables: then each change
    must be signed or come over a connection with a listed certificate, and from an address in ``peers`` if there are
    any. ``audit``: the file to which administrative changes and refusals are appended.
    ``insecure``: without ``peers``, any peer may change them, and the nameserver may listen at any address.
    ``tls``: the certificates, with which it speaks TLS at the same port; ``plain``: whether it then serves plain
    connections too.
    ``frame_seconds``: the longest time from the first byte of a frame to its last.
    ``buffered_max``: the most bytes of unfinished frames and unanswered requests of all connections.
    ``unread_max``: the most bytes of responses that wait for all connections' peers to read them.
    """

    host: str = "127.0.0.1"
    port: int = 9876
    kv_path: Path | None = None
    switches: Switches = Switches()  # noqa: RUF009 - frozen
    peers: tuple[str, ...] = ()
    access: Path | None = None
    audit: Path | None = None
    insecure: bool = False
    tls: ServerTls | None = None
    plain: bool = True
    connections_max: int = 10_000
    frame_max: int = FRAME_MAX_BYTES
    buffered_max: int = 16 * FRAME_MAX_BYTES
    unread_max: int = 16 * FRAME_MAX_BYTES
    idle_seconds: float = 120.0
    frame_seconds: float = 15.0
    write_seconds: float = 15.0
    expiry_seconds: float = EXPIRY_SECONDS
    first_scan_seconds: float = 5.0
    scan_seconds: float = 10.0


class Connection:
    """The connection of one peer. The tables identify a broker's connection by this object; closing it ends its
    task."""

    def __init__(self, stream: trio.abc.Stream, peer: str, may_change: bool = True) -> None:
        self.stream = stream
        self.peer = peer
        self.may_change = may_change
        """Whether peers at this address may change the tables: registrations, permissions, topics, the KV config,
        settings."""
        self.buffer = bytearray()
        """The bytes of an unfinished frame."""
        self.answering = 0
        """The bytes of the requests that are being answered; a registration waits for the ones before it."""
        self.unread = 0
        """The bytes of responses that wait for the peer to read them."""
        self.scope = trio.CancelScope()

    @property
    def buffered(self) -> int:
        """The bytes that were received and are not answered yet."""
        return len(self.buffer) + self.answering

    @property
    def subject(self) -> str | None:
        """The subject of the peer's certificate."""
        return getattr(self.stream, "subject", None)

    def close(self) -> None:
        """End the connection soon."""
        self.scope.cancel()


class NameServer:
    """A nameserver; :meth:`serve` runs it until cancelled. Time is trio's clock."""

    def __init__(self, config: NameServerConfig | None = None) -> None:
        """Read the files of the KV config, of the identities and of TLS, and open that of the audit.

        :class:`ValueError` or OSError if one of them, or a text of ``peers``, is not valid.
        """
        self.config = config or NameServerConfig()
        tls = self.config.tls
        self._context = None if tls is None else tls.make_context()
        self._client_context: ssl.SSLContext | None = None
        self._tls_changes = None if tls is None else FileChanges(tls)
        if tls is not None and tls.test_mode:
            log.warning("tls_in_test_mode", reason=IN_TEST_MODE)
        access = self.config.access
        self._identities: Mapping[str, Identity] | None = None if access is None else read_identities(access)
        self._audit = None if self.config.audit is None else Audit(self.config.audit)
        self._cache = RouteCache()
        self._notices = Notices()
        self._bad_bytes = BadBytesLog(log, trio.current_time)
        self.routes = Routes(trio.current_time, self.config.expiry_seconds, self)
        kv = KVConfig(self.config.kv_path)
        self.requests = Requests(
            self.routes, kv, self.config.switches, _readable_settings(self.config), self._cache,
            lambda: self._identities, self._audit,
        )  # fmt: skip
        self.connections: set[Connection] = set()
        self.totals = Totals()
        self._shares: FairShares[Connection] = FairShares()
        self._peers = PeerRule((*LOOPBACK, *self.config.peers))
        self._connections_max = min(self.config.connections_max, descriptors_allowed(DESCRIPTOR_SHARE))
        self.address = ""
        self._buffered = self._unread = 0
        self._outages = Outages(log, trio.current_time)
        self._refused = self._handshakes_refused = 0
        self._report_refusals_at = self._report_handshakes_at = 0.0

    async def serve(self, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen and answer until cancelled. Reports the bound address as "host:port". OSError if it is in use,
        :class:`NotProtected` if machines that are not in ``peers`` could change routes."""
        listeners = await trio.open_tcp_listeners(self.config.port, host=self.config.host)
        host, port = listeners[0].socket.getsockname()[:2]
        self.address = format_address(host, port)
        if not (is_loopback(host) or self.config.insecure or self.config.peers or self.config.access):
            for listener in listeners:
                await listener.aclose()
            raise NotProtected(self.address)
        if self.config.tls is not None and not self.config.plain:
            # 905 goes to brokers that speak TLS only, as this nameserver does
            self._client_context = self.config.tls.make_client_context()
            OUTGOING.set(attrs.evolve(OUTGOING.get(), tls=self._current_outgoing))
        self.requests.begin()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._scan)
            nursery.start_soon(self._notices.run)
            if self._tls_changes is not None:
                nursery.start_soon(self._watch_tls, self._tls_changes)
            if self._audit is not None:
                nursery.start_soon(self._audit.run)
            if self.config.access is not None:
                nursery.start_soon(self._watch_access, self.config.access)
            for listener in listeners:
                nursery.start_soon(self._listen, listener, nursery)
            log.info("nameserver_listening", address=self.address)
            task_status.started(self.address)

    def collect_metrics(self, metrics: MetricsSink) -> None:
        """Report what this nameserver has counted, and what it has now."""
        self.totals.report(metrics)
        metrics.counter(
            "gantrymq_nameserver_refused_changes_total",
            "Changes of routes or settings that the nameserver refused, because the sender has no right to them",
            self.requests.refused_changes,
        )
        metrics.gauge("gantrymq_nameserver_connections", "Connections to the nameserver", len(self.connections))
        metrics.gauge("gantrymq_nameserver_brokers", "Brokers that are registered", self.routes.count_brokers())

    def topic_changed(self, topic: str) -> None:
        """For the tables: the route of one topic has changed."""
        self._cache.drop(topic)

    def brokers_changed(self) -> None:
        """For the tables: any route may have changed."""
        self._cache.clear()

    def minimum_changed(self, change: MinimumChange) -> None:
        """For the tables: notify brokers if the switch is on; of a departure only if slaves act as masters."""
        if self.requests.switches.notify_min_broker_id_changed and (change.left is None or change.acting):
            self._notices.add(change)

    async def _scan(self) -> None:
        await trio.sleep(self.config.first_scan_seconds)
        while True:
            self.expire_brokers()
            await trio.sleep(self.config.scan_seconds)

    def expire_brokers(self) -> None:
        """Remove expired brokers and close their connections."""
        for live in self.routes.expire():
            log.warning("broker_expired", broker=live.identity.name, address=live.identity.address)
            if isinstance(live.connection, Connection):
                live.connection.close()

    async def _listen(self, listener: trio.SocketListener, nursery: trio.Nursery) -> None:
        short = False
        async with listener:
            while True:
                try:
                    stream = await listener.accept()
                except OSError as error:
                    if not short:  # log once for each shortage of descriptors or memory, not at each attempt
                        log.warning("accept_failed", error=str(error), open=len(self.connections))
                    short = True
                    await trio.sleep(ACCEPT_PAUSE_SECONDS)
                else:
                    short = False
                    nursery.start_soon(self._accept, stream)

    async def _accept(self, stream: trio.SocketStream) -> None:
        async with stream:
            try:
                host, port = stream.socket.getpeername()[:2]
                own = stream.socket.getsockname()[0]
            except OSError:  # the peer has closed it already
                return
            site = site_of(host)
            if len(self.connections) >= self._connections_max:
                displaced = self._shares.to_displace(site)
                if displaced is None:
                    self._count_refusal(host)
                    return
                self._count_refusal(displaced.peer)
                displaced.close()
            any_peer = not self.config.peers and (self.config.insecure or self.config.access is not None)
            may_change = host == own or self._peers.admits(host) or any_peer
            peer = format_address(host, port)
            if self._context is None:
                await self.serve_stream(stream, peer, site, may_change)
                return
            count = partial(self._count_handshake, peer)
            either = PortStream(stream, self._current_context, self.config.plain, self.config.frame_seconds, count)
            await self.serve_stream(either, peer, site, may_change)

    def _current_context(self) -> ssl.SSLContext:
        assert self._context is not None
        return self._context

    def _current_outgoing(self) -> ssl.SSLContext:
        assert self._client_context is not None
        return self._client_context

    async def _watch_tls(self, changes: FileChanges) -> None:
        """Use changed certificates for new connections; those that cannot be used are logged once, and tried again."""
        tls = changes.files
        while True:
            await trio.sleep(WATCH_SECONDS)
            try:
                if not await trio.to_thread.run_sync(changes.is_load_due):
                    continue
                outgoing = self._client_context and await trio.to_thread.run_sync(tls.make_client_context)
                self._context = await trio.to_thread.run_sync(tls.make_context)
                self._client_context = outgoing
                changes.loaded()
            except (TlsUnusable, OSError) as error:
                if changes.refused(str(error)):
                    self.totals.failed_reloads += 1
                    log.error("tls_files_refused", reason=str(error))
            else:
                log.info("tls_files_loaded", certificate=tls.certificate)

    async def _watch_access(self, path: Path) -> None:
        """Put a changed file of identities in force; one that is wrong leaves those of before, and is logged once."""
        refused = ""
        while True:
            await trio.sleep(WATCH_SECONDS)
            try:
                found = await trio.to_thread.run_sync(read_identities, path)
            except (ValueError, OSError) as error:
                if str(error) != refused:
                    log.error("access_file_refused", reason=str(error))
                refused = str(error)
                continue
            refused = ""
            if found != self._identities:
                self._identities = found
                log.info("access_file_loaded", path=str(path), identities=len(found))

    def _count_refusal(self, peer: str) -> None:
        """Log the first refusal, and then the number of refusals every ten seconds."""
        self._refused += 1
        self.totals.refused_connections += 1
        if trio.current_time() >= self._report_refusals_at:
            log.warning("connection_refused", peer=peer, limit=self._connections_max, refused=self._refused)
            self._refused, self._report_refusals_at = 0, trio.current_time() + REFUSALS_REPORT_SECONDS

    def _count_handshake(self, peer: str, result: str, reason: str) -> None:
        """Count a handshake; log the first one that is refused, and then the last one with their number every ten
        seconds."""
        self.totals.handshakes[result] += 1
        if result == "ok":
            return
        if self._audit is not None:
            self._audit.handshake_refused(peer, reason)
        self._handshakes_refused += 1
        if trio.current_time() >= self._report_handshakes_at:
            log.warning("tls_refused", peer=peer, reason=reason, refused=self._handshakes_refused)
            self._handshakes_refused, self._report_handshakes_at = 0, trio.current_time() + REFUSALS_REPORT_SECONDS

    async def serve_stream(self, stream: trio.abc.Stream, peer: str, site: str = "", may_change: bool = True) -> None:
        """Serve one connected peer until it disconnects or violates the protocol, then close and clean up.

        ``site`` is the key under which connections share limits. ``may_change``: whether the peer may change the
        tables.
        """
        connection = Connection(stream, peer, may_change)
        self.connections.add(connection)
        self._shares.add(site, connection)
        reason = "closed"
        try:
            with connection.scope:
                reason = await self._converse(connection)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            reason = "reset"
        except Exception as error:
            # A bug closes only this connection.
            log.error("connection_failed", peer=peer, error=repr(error))
            reason = "failed"
        finally:
            self.connections.discard(connection)
            self._shares.remove(site, connection)
            self._buffered -= connection.buffered
            for live in self.routes.remove_connection(connection):
                log.info("broker_left", broker=live.identity.name, address=live.identity.address, reason=reason)
            log.debug("connection_closed", peer=peer, reason=reason)
            await trio.aclose_forcefully(stream)

    async def _converse(self, connection: Connection) -> str:
        """Read, answer and write; returns why the connection ended."""
        buffer = connection.buffer
        deadline = trio.current_time() + self.config.idle_seconds
        while True:
            with trio.move_on_at(deadline) as wait:
                received = await connection.stream.receive_some(_RECEIVE_BYTES)
            if wait.cancelled_caught:
                return "a frame took too long" if buffer else "idle"
            if not received or connection.scope.cancel_called:
                return "closed"
            if not buffer:
                deadline = trio.current_time() + self.config.frame_seconds
            buffer += received
            self._buffered += len(received)
            if self._buffered > self.config.buffered_max and not self._keeps_buffer(connection):
                return "too much buffered"
            try:
                frames, taken = cut_frames(buffer, self.config.frame_max)
                if frames:
                    del buffer[:taken]
                    connection.answering = taken
                    if not await self._answer_all(connection, frames):
                        return "the peer does not read"
                    self._buffered -= connection.answering
                    connection.answering = 0
                    # the remaining frame began in the last bytes received
                    limit = self.config.frame_seconds if buffer else self.config.idle_seconds
                    deadline = trio.current_time() + limit
            except FatalRemoteFault as fault:
                self._bad_bytes.report(connection.peer, fault)
                return "bad bytes"

    def _keeps_buffer(self, connection: Connection) -> bool:
        """Close the connections with the most bytes that are not answered yet until those of all are within the limit;
        returns whether ``connection`` is none of them."""
        while self._buffered > self.config.buffered_max:
            most = max(self.connections, key=lambda each: (each.buffered, each is connection))
            self._outages.warning(
                "unfinished_frames_limit_reached",
                peer=most.peer,
                buffered=most.buffered,
                limit=self.config.buffered_max,
            )
            if most is connection:
                return False
            self._buffered -= most.buffered
            most.buffer.clear()
            most.answering = 0
            most.close()
        return True

    async def _answer_all(self, connection: Connection, frames: list[Frame]) -> bool:
        """Answer requests in their order, and empty ``frames``; False if the peer does not read the responses in
        time, or too much waits to be read."""
        texts: list[bytes] = []
        size = 0
        turn_ends = time.perf_counter() + TURN_SECONDS
        frames.reverse()
        while frames:
            if time.perf_counter() > turn_ends:
                await trio.lowlevel.checkpoint()
                turn_ends = time.perf_counter() + TURN_SECONDS
            text = await self._answer(connection, frames.pop())
            texts.append(text)
            size += len(text)
            if size and (not frames or size > RESPONSES_BYTES):
                text = b"".join(texts)
                texts.clear()
                size = 0
                if not await self._write(connection, text):
                    return False
        return True

    async def _answer(self, connection: Connection, frame: Frame) -> bytes:
        """The encoded response; empty if there is none."""
        request = decode(frame)
        if request.is_response:  # the nameserver sends no requests
            return b""
        response = await self.requests.answer(request, connection)
        return b"" if request.is_oneway else encode(response)

    async def _write(self, connection: Connection, data: bytes) -> bool:
        """Send responses; False if the peer does not read them in time, or too much waits to be read."""
        connection.unread = len(data)
        self._unread += connection.unread
        try:
            if self._unread > self.config.unread_max and not self._keeps_place(connection):
                return False
            with trio.move_on_after(self.config.write_seconds) as wait:
                await connection.stream.send_all(data)
            return not wait.cancelled_caught
        finally:
            self._unread -= connection.unread
            connection.unread = 0

    def _keeps_place(self, connection: Connection) -> bool:
        """Close the connections with the most unread bytes until those of all are within the limit; returns whether
        ``connection`` is none of them."""
        while self._unread > self.config.unread_max:
            most = max(self.connections, key=lambda each: (each.unread, each is not connection))
            self._outages.warning(
                "unread_responses_limit_reached", peer=most.peer, unread=most.unread, limit=self.config.unread_max
            )
            if most is connection:
                return False
            self._unread -= most.unread
            most.unread = 0
            most.close()
        return True


def _readable_settings(config: NameServerConfig) -> dict[str, str]:
    """The settings that have a counterpart in RocketMQ, by its names (``NamesrvConfig``, ``NettyServerConfig``)."""
    return {
        "bindAddress": config.host,
        "listenPort": str(config.port),
        "kvConfigPath": "" if config.kv_path is None else str(config.kv_path),
        "serverChannelMaxIdleTimeSeconds": f"{config.idle_seconds:.0f}",
    }

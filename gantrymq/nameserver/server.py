"""The nameserver's sockets: one task a connection, which reads frames, has them answered, and writes the answers.

A connection costs a task and what it has sent of an unfinished frame. Bad bytes close that connection and no other.
"""

from __future__ import annotations

from pathlib import Path

import attrs
import structlog
import trio

from gantrymq.nameserver.kv import KVConfig
from gantrymq.nameserver.requests import Requests
from gantrymq.nameserver.routes import EXPIRY_SECONDS, Routes
from gantrymq.remoting.address import format_address
from gantrymq.remoting.command import decode, encode
from gantrymq.remoting.descriptors import descriptors_allowed
from gantrymq.remoting.errors import FatalRemoteFault
from gantrymq.remoting.frame import FRAME_MAX_BYTES, Frame, cut_frames

_RECEIVE_BYTES = 64 * 1024
ACCEPT_PAUSE_SECONDS = 0.1
DESCRIPTOR_SHARE = 4
"""A quarter of the process's descriptors: a broker may live in the same process."""

log = structlog.get_logger()


@attrs.frozen(kw_only=True)
class NameServerConfig:
    """Where to listen, and the limits. Times in seconds, sizes in bytes.

    ``kv_path``: file of the KV config; None keeps it in memory. ``order_topics``: routes tell the KV config's order of
    a topic (``orderMessageEnable``). ``frame_seconds``: how long one frame may take from its first byte to its last.
    ``buffered_max``: how much all connections together may have sent of unfinished frames.
    """

    host: str = "127.0.0.1"
    port: int = 9876
    kv_path: Path | None = None
    order_topics: bool = False
    connections_max: int = 10_000
    frame_max: int = FRAME_MAX_BYTES
    buffered_max: int = 16 * FRAME_MAX_BYTES
    idle_seconds: float = 120.0
    frame_seconds: float = 15.0
    write_seconds: float = 15.0
    expiry_seconds: float = EXPIRY_SECONDS
    first_scan_seconds: float = 5.0
    scan_seconds: float = 10.0


class Connection:
    """One peer. The tables know a broker's connection by this object; closing it ends its task."""

    def __init__(self, stream: trio.abc.Stream, peer: str) -> None:
        self.stream = stream
        self.peer = peer
        self.buffer = bytearray()
        self.scope = trio.CancelScope()

    def close(self) -> None:
        """End the connection soon."""
        self.scope.cancel()


class NameServer:
    """A nameserver; :meth:`serve` runs it until cancelled. Time is trio's clock."""

    def __init__(self, config: NameServerConfig | None = None) -> None:
        """Reads the KV config's file: :class:`ValueError` or OSError when that fails."""
        self.config = config or NameServerConfig()
        self.routes = Routes(trio.current_time, self.config.expiry_seconds)
        self.requests = Requests(
            self.routes, KVConfig(self.config.kv_path), self.config.order_topics, _told(self.config)
        )
        self.connections: set[Connection] = set()
        self._connections_max = min(self.config.connections_max, descriptors_allowed(DESCRIPTOR_SHARE))
        self.address = ""
        self._buffered = 0

    async def serve(self, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen and answer until cancelled. Reports the bound address as "host:port"; OSError when it is taken."""
        listeners = await trio.open_tcp_listeners(self.config.port, host=self.config.host)
        self.address = format_address(*listeners[0].socket.getsockname()[:2])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._scan)
            for listener in listeners:
                nursery.start_soon(self._listen, listener, nursery)
            log.info("nameserver listens", address=self.address)
            task_status.started(self.address)

    async def _scan(self) -> None:
        await trio.sleep(self.config.first_scan_seconds)
        while True:
            self.expire_brokers()
            await trio.sleep(self.config.scan_seconds)

    def expire_brokers(self) -> None:
        """Remove the brokers that gave no sign for too long, and close their connections."""
        for live in self.routes.expire():
            log.warning("broker expired", broker=live.identity.name, address=live.identity.address)
            if isinstance(live.connection, Connection):
                live.connection.close()

    async def _listen(self, listener: trio.SocketListener, nursery: trio.Nursery) -> None:
        short = False
        async with listener:
            while True:
                try:
                    stream = await listener.accept()
                except OSError as error:
                    if not short:  # once a shortage of descriptors or memory, not with each attempt
                        log.warning("cannot accept, pausing", error=str(error), open=len(self.connections))
                    short = True
                    await trio.sleep(ACCEPT_PAUSE_SECONDS)
                else:
                    short = False
                    nursery.start_soon(self._accept, stream)

    async def _accept(self, stream: trio.SocketStream) -> None:
        async with stream:
            try:
                peer = format_address(*stream.socket.getpeername()[:2])
            except OSError:  # it is gone already
                return
            if len(self.connections) >= self._connections_max:
                log.warning("connection refused", peer=peer, open=len(self.connections))
                return
            await self.serve_stream(stream, peer)

    async def serve_stream(self, stream: trio.abc.Stream, peer: str) -> None:
        """Serve one connected peer until it leaves or misbehaves, then close and clean up after it."""
        connection = Connection(stream, peer)
        self.connections.add(connection)
        reason = "closed"
        try:
            with connection.scope:
                reason = await self._converse(connection)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            reason = "reset"
        except Exception as error:
            # A fault of ours costs this connection, not the others.
            log.error("connection failed", peer=peer, error=repr(error))
            reason = "failed"
        finally:
            self.connections.discard(connection)
            self._buffered -= len(connection.buffer)
            for live in self.routes.remove_connection(connection):
                log.info("broker left", broker=live.identity.name, address=live.identity.address, reason=reason)
            log.debug("connection closed", peer=peer, reason=reason)
            await trio.aclose_forcefully(stream)

    async def _converse(self, connection: Connection) -> str:
        """Read, answer, write; returns why it ended."""
        buffer = connection.buffer
        deadline = trio.current_time() + self.config.idle_seconds
        while True:
            with trio.move_on_at(deadline) as wait:
                received = await connection.stream.receive_some(_RECEIVE_BYTES)
            if wait.cancelled_caught:
                return "a frame took too long" if buffer else "idle"
            if not received:
                return "closed"
            if not buffer:
                deadline = trio.current_time() + self.config.frame_seconds
            buffer += received
            self._buffered += len(received)
            if self._buffered > self.config.buffered_max:
                log.warning("connection closed for its unfinished frames", peer=connection.peer, buffered=len(buffer))
                return "too much buffered"
            try:
                frames, taken = cut_frames(buffer, self.config.frame_max)
                if frames:
                    del buffer[:taken]
                    self._buffered -= taken
                    if not await self._answer_all(connection, frames):
                        return "the peer does not read"
                    # what is left began with the last bytes received
                    limit = self.config.frame_seconds if buffer else self.config.idle_seconds
                    deadline = trio.current_time() + limit
            except FatalRemoteFault as fault:
                log.warning("connection closed for bad bytes", peer=connection.peer, reason=str(fault))
                return "bad bytes"

    async def _answer_all(self, connection: Connection, frames: list[Frame]) -> bool:
        """Answer requests in their order; False when the peer does not take the answers in time."""
        for frame in frames:
            request = decode(frame)
            if request.is_response:  # we ask nobody
                continue
            response = await self.requests.answer(request, connection)
            if request.is_oneway:
                continue
            with trio.move_on_after(self.config.write_seconds) as wait:
                await connection.stream.send_all(encode(response))
            if wait.cancelled_caught:
                return False
        return True


def _told(config: NameServerConfig) -> dict[str, str]:
    """The settings that have a counterpart in RocketMQ, by its names (``NamesrvConfig``, ``NettyServerConfig``)."""
    return {
        "bindAddress": config.host,
        "listenPort": str(config.port),
        "kvConfigPath": "" if config.kv_path is None else str(config.kv_path),
        "serverChannelMaxIdleTimeSeconds": f"{config.idle_seconds:.0f}",
    }

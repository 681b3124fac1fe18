"""One connection to the dashboard: Hypercorn's HTTP/1.1, whose failures and waits end with the connection.

Hypercorn's own server ends with the first connection that raises anything but OSError, and it does not interrupt the
sending of a response where it is cancelled.
"""

from __future__ import annotations

import ssl
from contextlib import closing
from typing import Any

import h11
import structlog
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from hypercorn.utils import parse_socket_addr
from starlette.types import ASGIApp

from gantrymq.remoting._server_handshake import accept_tls

log = structlog.get_logger("gantrymq.dashboard")


async def serve_connection(
    app: ASGIApp, config: Config, context: ssl.SSLContext | None, connected: trio.SocketStream
) -> None:
    """Serve one connection until it ends. ``context``: with TLS. A failure ends it, and nothing else."""
    with closing(connected.socket):
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_close_when_cancelled, connected)
                await _serve(app, config, context, connected)
                nursery.cancel_scope.cancel()
        except* Exception as failed:
            log.debug("dashboard_connection_failed", exc_info=failed)  # no warning: any peer can cause it


async def _close_when_cancelled(connected: trio.SocketStream) -> None:
    try:
        await trio.sleep_forever()
    finally:
        connected.socket.close()  # Hypercorn shields what it sends, which this ends


async def _serve(app: ASGIApp, config: Config, context: ssl.SSLContext | None, connected: trio.SocketStream) -> None:
    stream: trio.abc.Stream = connected
    if context is not None:
        with trio.fail_after(config.ssl_handshake_timeout):
            stream = await accept_tls(connected, context)
    await _Connection(app, config, stream, connected.socket).run()


class _Connection(TCPServer):
    protocol: Any

    def __init__(self, app: ASGIApp, config: Config, stream: Any, sock: trio.socket.SocketType) -> None:
        wrapped = ASGIWrapper(app)  # type: ignore[arg-type]
        super().__init__(wrapped, config, WorkerContext(None), ConnectionState({}), stream)
        self._socket = sock

    async def run(self) -> None:
        """As Hypercorn, but with no other protocol than HTTP/1.1."""
        peer = parse_socket_addr(self._socket.family, self._socket.getpeername())
        own = parse_socket_addr(self._socket.family, self._socket.getsockname())
        is_encrypted = isinstance(self.stream, trio.SSLStream)
        try:
            async with TaskGroup() as self._task_group:
                self.protocol = _Http1(
                    self.app, self.config, self.context, self._task_group, ConnectionState({}), is_encrypted, peer, own,
                    self.protocol_send,
                )  # fmt: skip
                await self.idle_task.restart(self._task_group, self._idle_timeout)
                await self._read_data()
        finally:
            await self._close()


class _Http1(H11Protocol):
    """A request that offers to continue with HTTP/2 or a WebSocket is answered as any other (RFC 9110, 7.8)."""

    async def _check_protocol(self, event: h11.Request) -> None:
        """Hypercorn would change to HTTP/2 here."""

    async def _create_stream(self, request: h11.Request) -> None:
        fields = [(name, value) for name, value in request.headers if name != b"upgrade"]
        await super()._create_stream(
            h11.Request(method=request.method, target=request.target, headers=fields, http_version=request.http_version)
        )

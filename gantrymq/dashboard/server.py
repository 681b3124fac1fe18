"""The web server of the dashboard: Hypercorn on trio, with the client of the cluster beside it."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import structlog
import trio
from hypercorn.config import Config

from gantrymq.client import connect
from gantrymq.client.connect_options import outgoing_of
from gantrymq.client.errors import GantryError
from gantrymq.dashboard.access import Access
from gantrymq.dashboard.api import Source, make_app
from gantrymq.dashboard.connection import serve_connection
from gantrymq.kernel.network.listening import serve_connections
from gantrymq.remoting.address import format_address, parse_address
from gantrymq.remoting.channel import OUTGOING
from gantrymq.remoting.peers import is_loopback
from gantrymq.remoting.tls import FileChanges, ServerTls, TlsUnusable

log = structlog.get_logger("gantrymq.dashboard")

BACKLOG: Final = 64
CONNECTIONS_MAX: Final = 256
HEAD_MAX_BYTES: Final = 16 * 1024
IDLE_S: Final = 15.0
"""How long a connection may take for its TLS handshake, and be silent before and between requests."""
UNREAD_S: Final = 20.0
"""How long a peer may leave what was sent to it unread; on Linux only."""
RETRY_S: Final = 1.0
RELOAD_S: Final = 10.0
"""How often the server looks for changed certificates."""


def listen(address: str, access: Access, *, has_credentials: bool = False) -> socket.socket:
    """A socket that listens at ``host:port``.

    ``ValueError`` if others could use the dashboard without a token: on an address that is not loopback, or where it
    has credentials of its own. OSError if the address cannot be used.
    """
    host, port = parse_address(address, any_port=True)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    info = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)[0]
    if not access.tokens and (has_credentials or not is_loopback(str(info[4][0]))):
        why = "it acts with an access key" if has_credentials else f"other machines can connect to {address}"
        raise ValueError(f"the dashboard needs a file of tokens, because {why}: set tokens, or listen on 127.0.0.1")
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # connections inherit it; Hypercorn has no limit for sending
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNREAD_S * 1000))
        sock.bind(info[4])
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def address_of(sock: socket.socket) -> str:
    """``host:port`` of a listening socket."""
    host, port = sock.getsockname()[:2]
    return format_address(str(host), int(port))


class Certificates:
    """The certificate of the dashboard's port; :class:`TlsUnusable` from the constructor, or OSError."""

    def __init__(self, files: ServerTls) -> None:
        self._files = files
        self._changes = FileChanges(files)
        self.context = files.make_context()

    async def watch(self) -> None:
        """Use changed files for new connections, until cancelled; if they cannot be used, those of before stay."""
        while True:
            await trio.sleep(RELOAD_S)
            try:
                if not await trio.to_thread.run_sync(self._changes.is_load_due):
                    continue
                self._files.make_context()  # so that files that do not fit together change nothing
                self.context.load_cert_chain(self._files.certificate, self._files.key or None)
                self._changes.loaded()
            except (TlsUnusable, OSError) as error:
                if self._changes.refused(str(error)):
                    log.error("tls_files_refused", reason=str(error))
            else:
                log.info("tls_files_loaded", certificate=self._files.certificate)


async def run(
    sock: socket.socket,
    nameservers: str,
    access: Access,
    settings: Mapping[str, Any] | None = None,
    certificates: Certificates | None = None,
) -> None:
    """Serve until cancelled. ``settings``: further arguments of :func:`gantrymq.connect`. ``certificates``: serve
    https.

    Requests to the cluster are signed and encrypted by ``settings`` alone, and not by :data:`OUTGOING` of the caller:
    in a broker's process it has the broker's access key and certificate, which users of the dashboard must not use.
    """
    settings = dict(settings or {})
    OUTGOING.set(outgoing_of(settings))
    source = Source()
    context = None if certificates is None else certificates.context
    serve = partial(serve_connection, make_app(source, access), _config(), context)
    sock.setblocking(False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_connect, source, nameservers, settings)
        nursery.start_soon(source.sample)
        if certificates is not None:
            nursery.start_soon(certificates.watch)
        await serve_connections(sock, "a reader of the dashboard", CONNECTIONS_MAX, serve)


def _config() -> Config:
    config = Config()
    config.h11_max_incomplete_size = HEAD_MAX_BYTES
    config.keep_alive_timeout = IDLE_S
    config.ssl_handshake_timeout = IDLE_S
    config.include_server_header = False
    config.accesslog = None
    config.errorlog = None
    return config


async def _connect(source: Source, nameservers: str, settings: dict[str, Any]) -> None:
    """Keep a client connected; a nameserver may come later than the dashboard."""
    if not nameservers:
        source.problem = "the broker has no nameserver: set broker.nameservers"
        return
    while True:
        try:
            async with connect(nameservers, **settings) as client:
                source.client = client
                try:
                    await trio.sleep_forever()
                finally:
                    source.client = None
        except (GantryError, OSError) as error:
            source.problem = str(error)
        await trio.sleep(RETRY_S)

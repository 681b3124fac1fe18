"""TLS at the broker's port, beside plain connections or instead of them; the first byte distinguishes the two.

Slot: none; not in the default set: ``--enable tls``.
Hooks: collect_metrics, config_section, configure, connections_changed, register_tasks.
Config ``[plugin.tls]``: ``mode``, ``certificate``, ``key``, ``names``, ``ca``, ``client_certificates``,
``test_mode``, ``properties``, ``outgoing``, ``pages``, ``interval``.
Files: those of the certificates, which it only reads.
Provides: Encryption, for the ports of replication, metrics and health pages.
Answers for the TLS part of RocketMQ's ``NettyRemotingServer``.

``tls_socket`` replaces the socket of each new connection before anything is read from it. ``docs/howto/secure.md``.
"""

from __future__ import annotations

import ssl
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import attrs
import structlog
import trio

from gantrymq.kernel import hookimpl
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.tasks import BackgroundTask
from gantrymq.plugins.interfaces import Encryption, RefusalLog
from gantrymq.plugins.tls.config import TlsConfig
from gantrymq.plugins.tls.properties import read_tls
from gantrymq.plugins.tls.tls_socket import TlsSocket
from gantrymq.remoting._port_stream import PortStream
from gantrymq.remoting.address import format_address
from gantrymq.remoting.audit_events import TLS_HANDSHAKE
from gantrymq.remoting.channel import OUTGOING
from gantrymq.remoting.handshakes import HANDSHAKES
from gantrymq.remoting.rare_warnings import RareWarnings
from gantrymq.remoting.tls import IN_TEST_MODE, FileChanges, ServerTls, TlsUnusable

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.config.sections import Config
    from gantrymq.kernel.metrics import Metrics
    from gantrymq.kernel.network.connection import Connection, ConnectionsBatch

log = structlog.get_logger("gantrymq.tls")

HANDSHAKE_S: Final = 10.0
"""How long a handshake may take at a port of another plugin."""
PAGES: Final = frozenset({"metrics", "http"})
"""The ports of web pages."""


class TlsPlugin:
    """Wraps the sockets of new connections, and keeps the certificates."""

    name = "tls"
    essential = True  # without it, an enforcing broker would serve plain connections
    _config: TlsConfig  # these are set by configure
    _broker: Broker
    _files: ServerTls
    _changes: FileChanges
    _context: ssl.SSLContext

    def __init__(self) -> None:
        self._results: Counter[str] = Counter(ok=0, failed=0, unfinished=0, plain=0)
        self._violations: Counter[str] = Counter(altered=0, renegotiation=0)
        self._failed_reloads = 0
        self._client_context: ssl.SSLContext | None = None

    @hookimpl
    def config_section(self) -> tuple[str, type[Any]]:
        """``[plugin.tls]``."""
        return "tls", TlsConfig

    @hookimpl
    def configure(self, broker: Broker, config: Config) -> None:
        """Read the certificates; the broker refuses to start with an unusable file."""
        self._broker = broker
        self._config = section = config.section(TlsConfig)
        self._warnings = RareWarnings(broker.env.monotonic)
        self._mode: str = section.mode
        if self._mode == "disabled" and section.outgoing != "tls":
            return
        try:
            mode, self._files = read_tls(attrs.asdict(section), broker.env.read_bytes)
        except (TlsUnusable, OSError) as error:
            raise StartError(f"plugin.tls.properties: {error}") from None
        if self._mode != "disabled":
            self._mode = mode
        if self._mode == "disabled" and section.outgoing != "tls":
            return
        broker.registry.provide(Encryption, self)
        try:
            if self._mode != "disabled":
                self._context = self._files.make_context()
            self._changes = FileChanges(self._files)
            if section.outgoing == "tls" or (section.outgoing == "auto" and self._mode == "enforcing"):
                self._client_context = self._files.make_client_context()
                OUTGOING.set(attrs.evolve(OUTGOING.get(), tls=self._current_outgoing))
        except (TlsUnusable, OSError) as error:
            raise StartError(f"plugin.tls.{'test_mode' if self._files.test_mode else 'certificate'}: {error}") from None
        if self._files.test_mode:
            log.warning("tls_in_test_mode", reason=IN_TEST_MODE)

    @hookimpl
    def register_tasks(self, broker: Broker) -> list[BackgroundTask]:
        """The watcher of the files."""
        is_used = self._mode != "disabled" or self._client_context is not None
        return [BackgroundTask("tls", self._watch)] if is_used else []

    @hookimpl(tryfirst=True)
    def connections_changed(self, batch: ConnectionsBatch) -> None:
        """Wrap the sockets of new connections: nothing has been read from them."""
        if self._mode == "disabled":
            return
        allows_plain = self._mode == "permissive"
        for connection in batch.opened:
            if not connection.closed:
                connection.sock = TlsSocket(connection, self, self._current, allows_plain)

    def _current(self) -> ssl.SSLContext:
        return self._context

    def _current_outgoing(self) -> ssl.SSLContext:
        assert self._client_context is not None
        return self._client_context

    # ------------------------------------------------------------------------------------------- for the sockets

    def may_work(self) -> bool:
        """Whether handshakes have time left."""
        return HANDSHAKES.is_left()

    def ended(self, connection: Connection, result: str, reason: str) -> None:
        """Count a handshake; a failed one is logged once an hour for each address."""
        self.count(connection.address, "broker", result, reason)

    def violated(self, connection: Connection, kind: str, reason: str) -> None:
        """Count what a peer did after its handshake."""
        self._violations[kind] += 1
        self._note(connection.address, "broker", kind, reason)

    def wrap(self, stream: trio.SocketStream, port: str) -> PortStream | None:
        """As :class:`Encryption` has it, like the two that follow."""
        if not self.encrypts(port):
            return None
        peer = format_address(*stream.socket.getpeername()[:2])
        return PortStream(
            stream,
            self._current,
            self._mode == "permissive",
            HANDSHAKE_S,
            lambda *end: self.count(peer, port, *end),
        )

    def encrypts(self, port: str) -> bool:
        return self._mode != "disabled" and (port not in PAGES or self._config.pages != "plain")

    def client_context(self) -> ssl.SSLContext | None:
        return self._client_context

    def count(self, peer: str, port: str, result: str, reason: str) -> None:
        """Count a handshake with ``peer`` (``host:port``) at the port that the log calls ``port``."""
        self._results[result] += 1
        if result != "ok":
            self._note(peer, port, result, reason)

    def _note(self, peer: str, port: str, result: str, reason: str) -> None:
        refusals = self._broker.registry.find(RefusalLog)
        if refusals is not None:
            refusals.connection_refused(TLS_HANDSHAKE, peer, port, reason)
        host = peer.rpartition(":")[0]
        if self._warnings.is_due(f"{host} {result}"):
            log.warning("tls_refused", peer=host, reason=reason)

    # ------------------------------------------------------------------------------------------------- the files

    async def _watch(self) -> None:
        while True:
            await trio.sleep(self._config.interval)
            await self.reload()

    async def reload(self) -> None:
        """Use changed files for new connections; if they cannot be used, those of before stay until a later attempt."""
        try:
            if not await trio.to_thread.run_sync(self._changes.is_load_due):
                return
            outgoing = self._client_context and await trio.to_thread.run_sync(self._files.make_client_context)
            if self._mode != "disabled":
                self._context = await trio.to_thread.run_sync(self._files.make_context)
            self._client_context = outgoing
            self._changes.loaded()
        except (TlsUnusable, OSError) as error:
            if self._changes.refused(str(error)):
                self._failed_reloads += 1
                log.error("tls_files_refused", reason=str(error))
        else:
            log.info("tls_files_loaded", certificate=self._files.certificate)

    @hookimpl
    def collect_metrics(self, broker: Broker, metrics: Metrics) -> None:
        """Handshakes by result, and files that could not be used."""
        for result, count in self._results.items():
            metrics.counter("gantrymq_tls_handshakes_total", "TLS handshakes by result", count, result=result)
        for kind, count in self._violations.items():
            text = (
                "What peers did after their TLS handshakes, and was refused: altered or repeated records, renegotiation"
            )
            metrics.counter("gantrymq_tls_violations_total", text, count, kind=kind)
        metrics.counter(
            "gantrymq_tls_failed_reloads_total", "Changed certificates that could not be used", self._failed_reloads
        )

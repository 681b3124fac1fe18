"""TLS for the pages of a unit, with the certificate of its brokers (``[plugin.tls]``)."""

from __future__ import annotations

import ssl
from typing import Final

import structlog
import trio

from gantrymq.cli.loading import Loaded
from gantrymq.cli.own_nameserver import NameserverTls
from gantrymq.remoting._first_byte_stream import FirstByteStream
from gantrymq.remoting.tls import FileChanges, TlsUnusable

HANDSHAKE_SECONDS: Final = 10.0

log = structlog.get_logger("gantrymq.processes")


class PagesEncryption:
    """What :class:`gantrymq.plugins.interfaces.Encryption` is for a broker. Changed files apply to new connections;
    if they cannot be used, those of before stay."""

    def __init__(self, tls: NameserverTls) -> None:
        """:class:`TlsUnusable` for files that cannot be used."""
        self._tls = tls
        self._changes = FileChanges(tls.files)
        self._context = tls.files.make_context()

    def wrap(self, stream: trio.SocketStream, port: str) -> FirstByteStream:
        """The stream to use for an accepted connection."""
        return FirstByteStream(stream, self._current, not self._tls.enforcing, HANDSHAKE_SECONDS)

    def encrypts(self, port: str) -> bool:
        """Whether the pages are served with TLS: they are."""
        return True

    def client_context(self) -> ssl.SSLContext | None:
        """None: the parent reads the brokers' pages on the loopback address."""
        return None

    def _current(self) -> ssl.SSLContext:
        try:
            if self._changes.is_load_due():
                self._context = self._tls.files.make_context()
                self._changes.loaded()
        except (TlsUnusable, OSError) as error:
            if self._changes.refused(str(error)):
                log.error("tls_files_refused", reason=str(error))
        return self._context


def encryption_of(loaded: Loaded, tls: NameserverTls | None) -> PagesEncryption | None:
    """The encryption that ``plugin.tls.mode`` and ``plugin.tls.pages`` set; None: the pages are plain."""
    values = {row.key: row.value for row in loaded.config.explain() if row.section == "plugin.tls"}
    return None if tls is None or values.get("pages") == "plain" else PagesEncryption(tls)

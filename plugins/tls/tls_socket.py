"""A connection's socket that decides by its first byte whether it speaks TLS, and encrypts if it does.

It has the methods of a non-blocking socket that the sweep uses, so the sweep works as with a plain one.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from gantrymq.remoting.tls import HANDSHAKE_BYTE, subject_of

if TYPE_CHECKING:
    from gantrymq.kernel.network.connection import Connection

CHUNK_BYTES: Final = 256 * 1024
"""How much is encrypted before it is sent."""
ALERT_BYTE: Final = 0x15
READ_BYTES: Final = 16 * 1024
"""The most bytes that a record of TLS has."""
UNSENT_MAX: Final = 64 * 1024
"""Bytes that TLS itself has to send to a peer that does not read: answers to its key updates."""


class Owner(Protocol):
    """What a socket asks its plugin."""

    def may_work(self) -> bool:
        """Whether handshakes may take time now; else they come again in a later turn."""

    def worked(self, begun: float) -> None:
        """A step of a handshake, which began at ``begun``, is over."""

    def now(self) -> float:
        """Seconds."""

    def ended(self, connection: Connection, result: str, reason: str) -> None:
        """A handshake's result: ``ok``, ``failed``, ``unfinished`` or ``plain``."""

    def violated(self, connection: Connection, kind: str, reason: str) -> None:
        """What the peer did after its handshake: ``altered`` or ``renegotiation``."""


class TlsSocket:
    """Replaces ``connection.sock`` until the first byte says that the peer speaks plain text, or for good."""

    __slots__ = (
        "_allows_plain", "_connection", "_context", "_has_failed", "_in_flight", "_incoming", "_is_open",
        "_outgoing", "_owner", "_raw", "_tls", "_unsent", "subject",
    )  # fmt: skip

    def __init__(
        self, connection: Connection, owner: Owner, context: Callable[[], ssl.SSLContext], allows_plain: bool
    ) -> None:
        self._connection = connection
        self._raw = connection.sock
        self._owner = owner
        self._context = context
        self._allows_plain = allows_plain
        self._tls: ssl.SSLObject | None = None
        self._is_open = False
        self._has_failed = False
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._unsent = b""
        self.subject: str | None = None
        """The subject of the peer's certificate, after the handshake."""
        self._in_flight = 0
        """Bytes of the application whose encrypted form is in ``_unsent``: not reported as sent yet."""

    def fileno(self) -> int:
        """The descriptor of the socket."""
        return self._raw.fileno()

    def recv(self, size: int) -> bytes:
        """Decrypted bytes, all that ``size`` bytes from the network have; ``BlockingIOError`` if there are none yet."""
        if not self._is_open and not self._owner.may_work():
            raise BlockingIOError
        data = self._raw.recv(size)
        if not data:
            return data
        if self._tls is None:
            if data[0] != HANDSHAKE_BYTE:
                return self._plain(data)
            self._tls = self._context().wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._incoming.write(data)
        if not self._is_open:
            self._shake_hands(self._tls)
        try:
            return self._read(self._tls)
        except ssl.SSLError as error:
            with suppress(OSError):
                self._answer()  # the alert
            self._has_failed, self._is_open = True, False
            reason = (error.reason or "it is no TLS").replace("_", " ").lower()
            if " alert " not in reason:  # not the peer's own end
                self._owner.violated(self._connection, "altered", f"a TLS record cannot be read: {reason}")
            raise ConnectionError(f"a TLS record cannot be read: {reason}") from None

    def send(self, data: bytes | memoryview) -> int:
        """Encrypt and send; returns how many bytes of ``data`` the network took.

        Bytes that are encrypted and not sent count as not sent: the next call begins with them again.
        """
        if self._tls is None or not self._is_open:
            raise BlockingIOError
        sent = 0
        while True:
            if self._unsent and not self._push():
                if sent:
                    return sent
                raise BlockingIOError
            sent += self._in_flight
            self._in_flight = 0
            if sent >= len(data):
                return sent
            is_rest = sent or len(data) > CHUNK_BYTES
            self._in_flight = self._tls.write(memoryview(data)[sent : sent + CHUNK_BYTES] if is_rest else data)
            self._unsent = self._outgoing.read()

    def close(self) -> None:
        """Tell the peer that no more follows, if it reads, and close the socket."""
        if self._tls is not None and not self._is_open and not self._has_failed:
            self._has_failed = True
            reason = "the handshake was not finished: the peer has left, or limits.first_frame was over"
            self._owner.ended(self._connection, "unfinished", reason)
        if self._tls is not None and self._is_open and not self._unsent:
            with suppress(OSError):  # SSLError is one: the peer's part is missing
                self._tls.unwrap()
            with suppress(OSError):
                self._raw.send(self._outgoing.read())
        self._raw.close()

    def _plain(self, data: bytes) -> bytes:
        if not self._allows_plain:
            reason = "the peer speaks plain text, and plugin.tls.mode is enforcing"
            self._owner.ended(self._connection, "plain", reason)
            raise ConnectionError(reason)
        self._connection.sock = self._raw
        return data

    def _shake_hands(self, tls: ssl.SSLObject) -> None:
        begun = self._owner.now()
        failure: ssl.SSLError | None = None
        try:
            tls.do_handshake()
        except ssl.SSLError as error:  # SSLWantReadError among them
            failure = error
        # Without the time of the sends: the system may let the peer work first.
        self._owner.worked(begun)
        if failure is not None and not isinstance(failure, ssl.SSLWantReadError):
            self._has_failed = True
            with suppress(OSError):
                self._answer()  # the alert
            reason = (failure.reason or "it is no TLS").replace("_", " ").lower()
            self._owner.ended(self._connection, "failed", reason)
            raise ConnectionError(f"the TLS handshake failed: {reason}")
        self._answer()
        if failure is not None:
            raise BlockingIOError
        self._is_open = True
        self.subject = subject_of(tls.getpeercert())
        if self.subject is not None:
            self._connection.identity = self.subject
        self._owner.ended(self._connection, "ok", tls.version() or "")

    def _read(self, tls: ssl.SSLObject) -> bytes:
        data = self._read_record(tls)
        # Only as long as there may be more: a read that finds nothing raises, which costs as much as a read.
        if data and (self._incoming.pending or tls.pending()):
            parts = [data]
            while self._incoming.pending or tls.pending():
                part = self._read_record(tls)
                if not part:
                    break
                parts.append(part)
            data = b"".join(parts)
        if self._outgoing.pending:
            more = self._outgoing.read()
            if more[0] == ALERT_BYTE:  # while all is well, OpenSSL sends an alert for this reason only
                self._owner.violated(
                    self._connection, "renegotiation", "the peer asked to renegotiate, and was refused"
                )
            self._unsent += more
            if not self._push() and len(self._unsent) > UNSENT_MAX + 2 * CHUNK_BYTES:
                raise ConnectionError("the peer asks for new keys and does not read them")
        if data is None:
            raise BlockingIOError
        return data

    def _read_record(self, tls: ssl.SSLObject) -> bytes | None:
        """The decrypted bytes of the next record; empty at the end, None if it is not there."""
        try:
            return tls.read(READ_BYTES)
        except ssl.SSLWantReadError:
            return None
        except ssl.SSLZeroReturnError:
            return b""

    def _answer(self) -> None:
        """Send what the handshake has for the peer; a socket without room for so little is not read."""
        self._unsent += self._outgoing.read()
        if self._unsent and not self._push():
            raise ConnectionError("the peer does not read the TLS handshake")

    def _push(self) -> bool:
        """Send ``_unsent``; returns whether nothing is left."""
        try:
            sent = self._raw.send(self._unsent)
        except BlockingIOError:
            return False
        if sent == len(self._unsent):
            self._unsent = b""
            return True
        self._unsent = self._unsent[sent:]
        return False

"""A connection's socket that decides by its first byte whether it speaks TLS, and encrypts if it does.

It has the methods of a non-blocking socket that the sweep uses, so the sweep works as with a plain one.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from gantrymq.plugins.tls.fast import RecordLayer
from gantrymq.plugins.tls.plain import CHUNK_BYTES
from gantrymq.remoting.handshakes import has_peer_left
from gantrymq.remoting.tls import HANDSHAKE_BYTE, subject_of

if TYPE_CHECKING:
    from gantrymq.kernel.network.connection import Connection

ALERT_BYTE: Final = 0x15
UNSENT_MAX: Final = 64 * 1024
"""Bytes that TLS itself has to send to a peer that does not read: answers to its key updates."""


class Owner(Protocol):
    """What a socket asks its plugin."""

    def may_work(self) -> bool:
        """Whether handshakes may take time now; else they come again in a later turn."""

    def ended(self, connection: Connection, result: str, reason: str) -> None:
        """A handshake's result: ``ok``, ``failed``, ``unfinished`` or ``plain``."""

    def violated(self, connection: Connection, kind: str, reason: str) -> None:
        """What the peer did after its handshake: ``altered`` or ``renegotiation``."""


class TlsSocket(RecordLayer):
    """Replaces ``connection.sock`` until the first byte says that the peer speaks plain text, or for good."""

    __slots__ = ("_allows_plain", "_connection", "_context", "_has_failed", "_owner", "_raw", "subject")

    def __init__(
        self, connection: Connection, owner: Owner, context: Callable[[], ssl.SSLContext], allows_plain: bool
    ) -> None:
        super().__init__()
        self._connection = connection
        self._raw = connection.sock
        self._owner = owner
        self._context = context
        self._allows_plain = allows_plain
        self._has_failed = False
        self.subject: str | None = None
        """The subject of the peer's certificate, after the handshake."""

    def fileno(self) -> int:
        """The descriptor of the socket."""
        return self._raw.fileno()

    def recv(self, size: int) -> bytes:
        """Decrypted bytes, all that ``size`` bytes from the network have; ``BlockingIOError`` if there are none yet."""
        if self.failure is not None:
            raise self.failure
        if self.has_ended:
            return b""
        if not self.is_open and not self._owner.may_work():
            raise BlockingIOError
        data = self._raw.recv(size)
        if not data:
            return data
        if self.is_open:
            decrypted = self.decrypt(data)
        else:
            if self.tls is None:
                if data[0] != HANDSHAKE_BYTE:
                    return self._plain(data)
                self.tls = self._context().wrap_bio(self.incoming, self.outgoing, server_side=True)
            self.feed(data)
            if not self.tls.shared_ciphers() and has_peer_left(self._raw.fileno()):
                return b""  # the first answer costs the most; later bytes may say why the peer left
            self._shake_hands(self.tls)
            decrypted = self.read()
        if self.failure is not None:
            raise self.failure
        if decrypted is None:
            raise BlockingIOError
        return decrypted

    def send(self, data: bytes | memoryview) -> int:
        """Encrypt and send; returns how many bytes of ``data`` the network took.

        Bytes that are encrypted and not sent count as not sent: the next call begins with them again.
        """
        if self.failure is not None:
            raise self.failure
        if not self.is_open:
            raise BlockingIOError
        sent = 0
        while True:
            if self.unsent and not self._push():
                if sent:
                    return sent
                raise BlockingIOError
            sent += self.in_flight
            self.in_flight = 0
            if sent >= len(data):
                return sent
            is_rest = sent or len(data) > CHUNK_BYTES
            self.encrypt(memoryview(data)[sent : sent + CHUNK_BYTES] if is_rest else data)

    def close(self) -> None:
        """Tell the peer that no more follows, if it reads, and close the socket."""
        if self.tls is not None and not self.is_open and not self._has_failed:
            self._has_failed = True
            reason = "the handshake was not finished: the peer has left, or limits.first_frame was over"
            self._owner.ended(self._connection, "unfinished", reason)
        if self.tls is not None and self.is_open and not self.unsent:
            with suppress(OSError):  # SSLError is one: the peer's part is missing
                self.tls.unwrap()
            with suppress(OSError):
                self._raw.send(self.outgoing.read())
        self._has_failed, self.is_open = True, False
        self._raw.close()

    def _plain(self, data: bytes) -> bytes:
        if not self._allows_plain:
            reason = "the peer speaks plain text, and plugin.tls.mode is enforcing"
            self._owner.ended(self._connection, "plain", reason)
            raise ConnectionError(reason)
        self._connection.sock = self._raw
        return data

    def _shake_hands(self, tls: ssl.SSLObject) -> None:
        failure: ssl.SSLError | None = None
        try:
            tls.do_handshake()
        except ssl.SSLError as error:  # SSLWantReadError among them
            failure = error
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
        self.open(self._raw.fileno())
        self.subject = subject_of(tls.getpeercert())
        if self.subject is not None:
            self._connection.identity = self.subject
        self._owner.ended(self._connection, "ok", tls.version() or "")

    def refuse(self, error: ssl.SSLError) -> OSError:
        """A record cannot be read."""
        with suppress(OSError):
            self._answer()  # the alert
        self._has_failed, self.is_open = True, False
        reason = (error.reason or "it is no TLS").replace("_", " ").lower()
        if " alert " not in reason:  # not the peer's own end
            self._owner.violated(self._connection, "altered", f"a TLS record cannot be read: {reason}")
        return ConnectionError(f"a TLS record cannot be read: {reason}")

    def answer_peer(self) -> None:
        """Send what TLS answers to a key update, or to a renegotiation: an alert."""
        more = self.outgoing.read()
        if more[0] == ALERT_BYTE:  # while all is well, OpenSSL sends an alert for this reason only
            self._owner.violated(self._connection, "renegotiation", "the peer asked to renegotiate, and was refused")
        self.unsent += more
        try:
            is_stuck = not self._push() and len(self.unsent) > UNSENT_MAX + 2 * CHUNK_BYTES
        except OSError as error:
            self.failure = error
        else:
            if is_stuck:
                self.failure = ConnectionError("the peer asks for new keys and does not read them")

    def _answer(self) -> None:
        """Send what the handshake has for the peer; a socket without room for so little is not read."""
        self.unsent += self.outgoing.read()
        if self.unsent and not self._push():
            raise ConnectionError("the peer does not read the TLS handshake")

    def _push(self) -> bool:
        """Send ``_unsent``; returns whether nothing is left."""
        try:
            sent = self._raw.send(self.unsent)
        except BlockingIOError:
            return False
        if sent == len(self.unsent):
            self.unsent = b""
            return True
        self.unsent = self.unsent[sent:]
        return False

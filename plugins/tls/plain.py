"""The inner loop of TLS: decrypt what a connection received, and encrypt what it sends.

This twin is the reference; ``_fast`` is the compiled one.
"""

from __future__ import annotations

import ssl
from typing import Final

KIND: Final = "plain"
READ_BYTES: Final = 16 * 1024
"""The most bytes that a record of TLS has."""
CHUNK_BYTES: Final = 256 * 1024
"""How much is encrypted before it is sent."""


class RecordLayer:
    """The TLS of one connection in memory, between its handshake and its end.

    The kernel's compiled loops use the compiled twin in place of ``recv`` and ``send`` of the class that extends it, as
    long as ``is_open`` is true and nothing is left in ``unsent``.
    """

    __slots__ = ("failure", "has_ended", "in_flight", "incoming", "is_open", "outgoing", "tls", "unsent")

    def __init__(self) -> None:
        self.tls: ssl.SSLObject | None = None
        self.incoming = ssl.MemoryBIO()
        self.outgoing = ssl.MemoryBIO()
        self.is_open = False
        """Whether the handshake is done, and the connection has not failed."""
        self.failure: OSError | None = None
        """The error that ended the connection."""
        self.has_ended = False
        """Whether the peer said that it sends no more."""
        self.unsent = b""
        """Encrypted bytes that the network did not take yet."""
        self.in_flight = 0
        """Bytes of the application whose encrypted form is in ``unsent``: not reported as sent yet."""

    def open(self, descriptor: int) -> None:
        """The handshake is done; ``descriptor`` is that of the socket."""
        self.is_open = True

    def feed(self, data: bytes) -> None:
        """Take bytes from the network during the handshake."""
        self.incoming.write(data)

    def decrypt(self, data: bytes) -> bytes | None:
        """Take bytes from the network after the handshake; returns what :meth:`read` does."""
        self.incoming.write(data)
        return self.read()

    def read(self) -> bytes | None:
        """All decrypted bytes that are there; empty at the end, None if there are none. Sets ``failure``."""
        parts: list[bytes] = []
        tls = self.tls
        assert tls is not None
        try:
            # Only as long as there may be more: a read that finds nothing raises, which costs as much as a read.
            while self.incoming.pending or tls.pending():
                part = tls.read(READ_BYTES)
                if not part:
                    self.has_ended = True
                    break
                parts.append(part)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.has_ended = True
        except ssl.SSLError as error:
            self.failure = self.refuse(error)
            return None
        if self.outgoing.pending:
            self.answer_peer()
        if not parts:
            return b"" if self.has_ended else None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def encrypt(self, data: bytes | memoryview) -> None:
        """Encrypt the first bytes of ``data``: ``unsent`` has their encrypted form, ``in_flight`` their number."""
        assert self.tls is not None
        self.in_flight = self.tls.write(data)
        self.unsent = self.outgoing.read()

    def refuse(self, error: ssl.SSLError) -> OSError:
        """End the connection because of ``error``; returns the error for the one who reads."""
        raise NotImplementedError

    def answer_peer(self) -> None:
        """TLS has something to send while it reads; sets ``failure`` if the peer does not take it."""
        raise NotImplementedError

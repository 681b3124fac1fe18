"""A non-blocking socket of a load: buffers unsent bytes and splits received bytes into frames."""

from __future__ import annotations

import socket
import ssl
import struct

from gantrymq.bench.plan import BenchFailed
from gantrymq.remoting.address import format_address
from gantrymq.remoting.advice import ADVICE
from gantrymq.remoting.channel import tls_reason

CONNECT_SECONDS = 10.0
RECEIVE_BYTES_MIN = 16 * 1024
RECEIVE_BYTES_MAX = 512 * 1024
"""A large buffer costs an mmap and a munmap each time, so a connection has one only while it gets large responses."""
_LENGTH = struct.Struct(">i").unpack_from


class Connection:
    """``number``: its number in the run. ``outstanding``: its requests without a response."""

    def __init__(self, host: str, port: int, number: int, first: bytes, tls: ssl.SSLContext | None = None) -> None:
        """Connect, and send ``first``, which gets no response. :class:`BenchFailed` if that is impossible."""
        self.number = number
        self.outstanding = 0
        try:
            self.socket = socket.create_connection((host, port), CONNECT_SECONDS)
            self._tls = None if tls is None else _Tls(self.socket, tls, host)
            self.socket.sendall(first if self._tls is None else self._tls.encrypt(first))
        except ssl.SSLError as error:
            raise BenchFailed(f"{format_address(host, port)}: {tls_reason(error)}") from None
        except OSError as error:
            reason = error.strerror or str(error) or type(error).__name__
            raise BenchFailed(f"cannot connect to the broker at {format_address(host, port)}: {reason}") from None
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.fd = self.socket.fileno()
        self._rest = b""
        self._unsent = memoryview(b"")
        self._room = RECEIVE_BYTES_MIN
        self._answered = False

    @property
    def is_idle(self) -> bool:
        """Whether no bytes are buffered."""
        return not (self._rest or self._unsent)

    def send(self, data: bytes) -> bool:
        """Send; False if the socket did not take all of it (:meth:`flush` sends the rest). OSError: the peer closed."""
        if self._tls is not None:
            data = self._tls.encrypt(data)
        if self._unsent:
            self._unsent = memoryview(bytes(self._unsent) + data)
            return False
        try:
            sent = self.socket.send(data)
        except BlockingIOError:
            sent = 0
        if sent == len(data):
            return True
        self._unsent = memoryview(data)[sent:]
        return False

    def flush(self) -> bool:
        """Send more of the buffered bytes; True when none are left."""
        try:
            self._unsent = self._unsent[self.socket.send(self._unsent) :]
        except BlockingIOError:
            return False
        return not self._unsent

    def receive(self) -> bytes:
        """Return buffered and newly received bytes; empty if none arrived. ConnectionError: the peer closed."""
        try:
            data = self.socket.recv(self._room)
        except BlockingIOError:
            return b""
        if len(data) == self._room:
            self._room = min(self._room * 4, RECEIVE_BYTES_MAX)
        if not data:
            raise ConnectionResetError("the broker closed the connection")
        return self.accept(data)

    def accept(self, data: bytes) -> bytes:
        """Return the buffered bytes and ``data``, which another one has received."""
        self._answered = True
        if self._tls is not None:
            data = self._tls.decrypt(data)
            if not data:
                return b""
        if self._rest:
            data = self._rest + data
            self._rest = b""
        return data

    def explain(self, reason: str) -> str:
        """Return ``reason``, why it was lost, with what to do about a broker that closes plain connections."""
        if self._tls is not None or self._answered:
            return reason
        return f"{reason} before it answered anything: if it speaks TLS only, {ADVICE.get().encrypt}"

    def keep(self, data: bytes, start: int) -> None:
        """Buffer the unfinished frame at the end of ``data`` until the rest arrives."""
        if start < len(data):
            self._rest = data[start:]

    def close(self) -> None:
        """Close it."""
        self.socket.close()


class _Tls:
    """TLS in memory, so all records of one call are sent together, as RocketMQ's client does."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, host: str) -> None:
        """Shake hands over ``sock``, which blocks."""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                sock.sendall(self._outgoing.read())
                data = sock.recv(RECEIVE_BYTES_MIN)
                self._incoming.write(data) if data else self._incoming.write_eof()
        sock.sendall(self._outgoing.read())

    def encrypt(self, data: bytes) -> bytes:
        """The records to send for ``data``."""
        written = self._tls.write(data)
        while written < len(data):
            written += self._tls.write(memoryview(data)[written:])
        return self._outgoing.read()

    def decrypt(self, data: bytes) -> bytes:
        """What the received bytes have; empty if they end within the first record."""
        self._incoming.write(data)
        parts = []
        try:
            while self._incoming.pending or self._tls.pending():
                parts.append(self._tls.read(RECEIVE_BYTES_MIN))
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):  # after the latter the socket ends
            pass
        return parts[0] if len(parts) == 1 else b"".join(parts)


def count_frames(data: bytes) -> tuple[int, int]:
    """Return the number of complete frames at the beginning of ``data``, and the offset of their end."""
    size = len(data)
    count = start = 0
    while start + 4 <= size:
        end: int = start + 4 + _LENGTH(data, start)[0]
        if end > size or end < start + 4:
            break
        start = end
        count += 1
    return count, start

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

    def __init__(self, host: str, port: int, number: int, tls: ssl.SSLContext | None = None) -> None:
        self.number = number
        self.outstanding = 0
        try:
            self.socket = socket.create_connection((host, port), CONNECT_SECONDS)
            if tls is not None:
                self.socket = tls.wrap_socket(self.socket, server_hostname=host)
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
        self._tls = tls is not None
        self._answered = False

    def send(self, data: bytes) -> bool:
        """Send; False if the socket did not take all of it (:meth:`flush` sends the rest). OSError: the peer closed."""
        if self._unsent:
            self._unsent = memoryview(bytes(self._unsent) + data)
            return False
        sent = 0
        try:
            sent = self.socket.send(data)
            while self._tls and sent < len(data):  # a call encrypts one record, which has 16 KiB at most
                sent += self.socket.send(memoryview(data)[sent:])
        except (BlockingIOError, ssl.SSLWantWriteError):
            pass
        if sent == len(data):
            return True
        self._unsent = memoryview(data)[sent:]
        return False

    def flush(self) -> bool:
        """Send more of the buffered bytes; True when none are left."""
        try:
            self._unsent = self._unsent[self.socket.send(self._unsent) :]
        except (BlockingIOError, ssl.SSLWantWriteError):
            return False
        return not self._unsent

    def receive(self) -> bytes:
        """Return buffered and newly received bytes; empty if none arrived. ConnectionError: the peer closed."""
        try:
            data = self._decrypt() if self._tls else self.socket.recv(self._room)
        except (BlockingIOError, ssl.SSLWantReadError):
            return b""
        if len(data) == self._room:
            self._room = min(self._room * 4, RECEIVE_BYTES_MAX)
        if not data:
            raise ConnectionResetError("the broker closed the connection")
        self._answered = True
        if self._rest:
            data = self._rest + data
            self._rest = b""
        return data

    def explain(self, reason: str) -> str:
        """Return ``reason``, why it was lost, with what to do about a broker that closes plain connections."""
        if self._tls or self._answered:
            return reason
        return f"{reason} before it answered anything: if it speaks TLS only, {ADVICE.get().encrypt}"

    def _decrypt(self) -> bytes:
        """Read all received bytes: epoll does not report bytes that OpenSSL has already taken from the socket."""
        parts = [self.socket.recv(self._room)]
        while parts[-1]:
            try:
                parts.append(self.socket.recv(self._room))
            except ssl.SSLWantReadError:
                break
        return b"".join(parts)

    def keep(self, data: bytes, start: int) -> None:
        """Buffer the unfinished frame at the end of ``data`` until the rest arrives."""
        if start < len(data):
            self._rest = data[start:]

    def close(self) -> None:
        """Close it."""
        self.socket.close()


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

"""One socket of a load: never waits for the other side, keeps what could not be sent, cuts what came."""

from __future__ import annotations

import socket
import ssl
import struct

from gantrymq.bench.plan import BenchFailed
from gantrymq.remoting.address import format_address

CONNECT_SECONDS = 10.0
RECEIVE_BYTES_MIN = 16 * 1024
RECEIVE_BYTES_MAX = 512 * 1024
"""A large buffer costs a map and an unmap each time, so a connection has one only while large answers come."""
_LENGTH = struct.Struct(">i").unpack_from


class Connection:
    """``number`` counts the connections of a run; ``outstanding`` its requests without an answer."""

    def __init__(self, host: str, port: int, number: int, tls: ssl.SSLContext | None = None) -> None:
        self.number = number
        self.outstanding = 0
        try:
            self.socket = socket.create_connection((host, port), CONNECT_SECONDS)
            if tls is not None:
                self.socket = tls.wrap_socket(self.socket, server_hostname=host)
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

    def send(self, data: bytes) -> bool:
        """Send; False when a part must wait until the socket takes it (:meth:`flush`). OSError: the other side left."""
        if self._unsent:
            self._unsent = memoryview(bytes(self._unsent) + data)
            return False
        try:
            sent = self.socket.send(data)
        except (BlockingIOError, ssl.SSLWantWriteError):
            sent = 0
        if sent == len(data):
            return True
        self._unsent = memoryview(data)[sent:]
        return False

    def flush(self) -> bool:
        """Send more of what waits; True when nothing waits any more."""
        try:
            self._unsent = self._unsent[self.socket.send(self._unsent) :]
        except (BlockingIOError, ssl.SSLWantWriteError):
            return False
        return not self._unsent

    def receive(self) -> bytes:
        """What came, behind what was kept; nothing when nothing came. ConnectionError: the other side has closed."""
        try:
            data = self._decrypt() if self._tls else self.socket.recv(self._room)
        except (BlockingIOError, ssl.SSLWantReadError):
            return b""
        if len(data) == self._room:
            self._room = min(self._room * 4, RECEIVE_BYTES_MAX)
        if not data:
            raise ConnectionResetError("the broker closed the connection")
        if self._rest:
            data = self._rest + data
            self._rest = b""
        return data

    def _decrypt(self) -> bytes:
        """All that came: the socket is not readable again for what OpenSSL has already taken from it."""
        parts = [self.socket.recv(self._room)]
        while parts[-1]:
            try:
                parts.append(self.socket.recv(self._room))
            except ssl.SSLWantReadError:
                break
        return b"".join(parts)

    def keep(self, data: bytes, start: int) -> None:
        """The unfinished frame at the end of ``data`` waits for the rest."""
        if start < len(data):
            self._rest = data[start:]

    def close(self) -> None:
        """Close it."""
        self.socket.close()


def count_frames(data: bytes) -> tuple[int, int]:
    """Return how many whole frames ``data`` begins with, and where they end."""
    size = len(data)
    count = start = 0
    while start + 4 <= size:
        end: int = start + 4 + _LENGTH(data, start)[0]
        if end > size or end < start + 4:
            break
        start = end
        count += 1
    return count, start

"""The calling side of one connection for code that blocks: the counterpart of :class:`gantrymq.remoting.Channel`.

One thread uses it, so there are neither tasks nor locks. Requests may be sent ahead and their answers received later.
"""

from __future__ import annotations

import itertools
import socket
import ssl

from gantrymq.remoting.command import Command, decode, encode
from gantrymq.remoting.frame import cut_frames

_RECEIVE_BYTES = 256 * 1024
_OPAQUE_MASK = 0x7FFFFFFF


class BlockingChannel:
    """A connection to ``address`` with ``timeout`` (seconds) for connecting and for each silence of the peer.

    All methods raise OSError (TimeoutError among them); ``receive`` and ``call`` also
    :class:`~gantrymq.remoting.errors.FatalRemoteFault` for what is not a frame. It cannot be used after an error.
    """

    def __init__(self, address: tuple[str, int], timeout: float, tls: ssl.SSLContext | None = None) -> None:
        plain = socket.create_connection(address, timeout)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket: socket.socket = plain
        if tls is not None:
            try:
                self._socket = tls.wrap_socket(plain, server_hostname=address[0])
            except BaseException:
                plain.close()
                raise
        self._buffer = bytearray()
        self._opaque = itertools.count(1)

    def close(self) -> None:
        """Close the socket; may be called again."""
        self._socket.close()

    def call(self, request: Command) -> Command:
        """The answer to ``request``, whose opaque this sets."""
        return self.receive(self.send(request))

    def send(self, request: Command) -> int:
        """Send a request; the number for :meth:`receive`."""
        request.opaque = next(self._opaque) & _OPAQUE_MASK
        self._socket.sendall(encode(request))
        return request.opaque

    def receive(self, opaque: int) -> Command:
        """The answer to that request; answers to requests that were sent before it are skipped.

        So are the peer's own requests: nobody here could answer them.
        """
        while True:
            frames, taken = cut_frames(self._buffer)
            del self._buffer[:taken]
            for frame in frames:
                answer = decode(frame)
                if answer.is_response and answer.opaque == opaque:
                    return answer
            piece = self._socket.recv(_RECEIVE_BYTES)
            if not piece:
                raise ConnectionResetError("the server closed the connection")
            self._buffer += piece

"""The server's side of a TLS handshake over an accepted trio stream."""

from __future__ import annotations

import ssl
from typing import Final

import trio

from gantrymq.remoting.handshakes import HANDSHAKES, has_peer_left

_QUEUE: Final[trio.lowlevel.RunVar[trio.Lock | None]] = trio.lowlevel.RunVar("gantrymq_handshakes", None)
"""The order of those who wait in this event loop; other threads may have loops of their own."""


async def accept_tls(
    stream: trio.abc.Stream, context: ssl.SSLContext, received: bytes = b""
) -> trio.SSLStream[trio.abc.Stream]:
    """Return the encrypted stream over ``stream``, after the handshake. ``received``: what was read from it before.

    ``BrokenResourceError`` if the handshake fails.
    """
    begun = _Begun(stream, received)
    encrypted: trio.SSLStream[trio.abc.Stream] = trio.SSLStream(begun, context, server_side=True, https_compatible=True)
    await encrypted.do_handshake()
    begun.is_in_handshake = False
    return encrypted


class _Begun(trio.abc.Stream):
    """A stream whose first bytes, ``data``, were received already."""

    def __init__(self, stream: trio.abc.Stream, data: bytes) -> None:
        self._stream = stream
        self._data = data
        self.is_in_handshake = True
        """Whether received bytes wait until handshakes have time left."""
        self._is_answered = False

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        if not self.is_in_handshake:
            return await self._stream.receive_some(max_bytes)
        data, self._data = self._data, b""
        received = data or await self._stream.receive_some(max_bytes)
        await _wait_for_turn()
        return b"" if self._has_left() else received

    def _has_left(self) -> bool:
        """Whether the peer has left before the first answer, which costs the most. Later bytes may say why it left."""
        stream = self._stream
        return not self._is_answered and isinstance(stream, trio.SocketStream) and has_peer_left(stream.socket.fileno())

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self._is_answered = True
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self._stream.aclose()


async def _wait_for_turn() -> None:
    """Return when handshakes have time left. There is no checkpoint before the computation, so it is counted when the
    next one in the queue goes on."""
    queue = _QUEUE.get()
    if queue is None:
        queue = trio.Lock()
        _QUEUE.set(queue)
    async with queue:
        while seconds := HANDSHAKES.wait_seconds():  # noqa: ASYNC110 - time passes, nothing else happens
            await trio.sleep(seconds)

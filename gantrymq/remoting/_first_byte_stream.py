"""Accepted trio streams that decide by their first byte whether they speak TLS."""

from __future__ import annotations

import ssl
from collections.abc import Callable

import trio

from gantrymq.remoting._server_handshake import accept_tls
from gantrymq.remoting.tls import HANDSHAKE_BYTE, subject_of


class FirstByteStream(trio.abc.Stream):
    """Plain text or TLS at one port, as the peer's first byte says. The handshake may take ``seconds``."""

    def __init__(
        self, stream: trio.abc.Stream, context: Callable[[], ssl.SSLContext], allows_plain: bool, seconds: float
    ) -> None:
        self._raw = stream
        self._context = context
        self._allows_plain = allows_plain
        self._seconds = seconds
        self._stream: trio.abc.Stream | None = None
        self.refused = ""
        """Why the connection ended before its first frame, if TLS was the reason."""
        self.is_unfinished = False
        """Whether the peer left during the handshake, or took too long for it."""
        self.is_plain = False
        """Whether the peer's first byte was plain text; then the connection's own stream may be used as well."""
        self.subject: str | None = None
        """The subject of the peer's certificate, after the handshake."""

    @property
    def has_begun(self) -> bool:
        """Whether bytes of the peer were received, and a handshake is over."""
        return self._stream is not None

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Decrypted bytes. ``BrokenResourceError`` also for a failed handshake, and for plain text that is refused."""
        if self._stream is None:
            data = await self._raw.receive_some(max_bytes)
            if not data:
                return data
            if data[0] != HANDSHAKE_BYTE:
                self.is_plain = True
                if not self._allows_plain:
                    self.refused = "the peer speaks plain text, and this port takes TLS only"
                    raise trio.BrokenResourceError(self.refused)
                self._stream = self._raw
                return data
            self._stream = await self._shake_hands(bytes(data))
        return await self._stream.receive_some(max_bytes)

    async def _shake_hands(self, data: bytes) -> trio.abc.Stream:
        try:
            with trio.fail_after(self._seconds):
                stream = await accept_tls(self._raw, self._context(), data)
        except trio.TooSlowError:
            self.refused, self.is_unfinished = "the TLS handshake took too long", True
            raise trio.BrokenResourceError(self.refused) from None
        except trio.Cancelled:
            self.refused, self.is_unfinished = "the TLS handshake was not finished before the connection ended", True
            raise
        except trio.BrokenResourceError as error:
            self.is_unfinished = isinstance(error.__cause__, ssl.SSLEOFError)
            reason = getattr(error.__cause__, "reason", None) or "it is no TLS"
            self.refused = f"the TLS handshake failed: {reason.replace('_', ' ').lower()}"
            raise
        self.subject = subject_of(stream.getpeercert())
        return stream

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """As of any stream."""
        await (self._stream or self._raw).send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        """As of any stream."""
        await (self._stream or self._raw).wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        """Let the peer know that nothing more follows: by TLS, or by closing this direction."""
        if isinstance(self._stream, trio.SSLStream):
            await self._stream.unwrap()
        elif isinstance(self._raw, trio.abc.HalfCloseableStream):
            await self._raw.send_eof()

    async def aclose(self) -> None:
        """Close the connection, without a farewell to the peer."""
        await self._raw.aclose()

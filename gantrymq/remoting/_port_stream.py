"""Accepted streams that report how their TLS handshake ended."""

from __future__ import annotations

import ssl
from collections.abc import Callable

import trio

from gantrymq.remoting._first_byte_stream import FirstByteStream


class PortStream(FirstByteStream):
    """Plain text or TLS.

    ``ended`` gets the result of the handshake (``ok``, ``failed``, ``unfinished``, ``plain``) and a reason.
    """

    def __init__(
        self,
        stream: trio.abc.Stream,
        context: Callable[[], ssl.SSLContext],
        allows_plain: bool,
        seconds: float,
        ended: Callable[[str, str], None],
    ) -> None:
        super().__init__(stream, context, allows_plain, seconds)
        self._ended: Callable[[str, str], None] | None = ended

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """As of any stream."""
        ended = self._ended
        if ended is None:
            return await super().receive_some(max_bytes)
        try:
            return await super().receive_some(max_bytes)
        finally:
            if self.has_begun or self.refused:
                self._ended = None
                if self.refused:
                    ended("plain" if self.is_plain else "unfinished" if self.is_unfinished else "failed", self.refused)
                elif not self.is_plain:
                    ended("ok", "")

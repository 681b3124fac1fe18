"""The processor time for TLS handshakes of this process, set by a test."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio

from gantrymq.remoting.handshakes import HANDSHAKES
from support.certificates import client_context


async def shakes_hands_when_there_is_time(host: str, port: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Connect while handshakes have no time left, and later let them have some. Returns whether the handshake waited
    for that."""
    is_done = False

    async def shake_hands(done: Callable[[], None]) -> None:
        stream = await trio.open_tcp_stream(host, port)
        encrypted = trio.SSLStream(stream, client_context(), server_hostname="127.0.0.1", https_compatible=True)
        async with encrypted:
            await encrypted.do_handshake()
            done()

    def done() -> None:
        nonlocal is_done
        is_done = True

    async with trio.open_nursery() as nursery:
        with monkeypatch.context() as patched:
            patched.setattr(HANDSHAKES, "wait_seconds", lambda: 0.01)
            nursery.start_soon(shake_hands, done)
            await trio.sleep(0.3)
            has_waited = not is_done
        with trio.fail_after(20):
            while not is_done:  # noqa: ASYNC110 - the server has no event for it
                await trio.sleep(0.01)
    return has_waited

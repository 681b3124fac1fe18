"""The port two below leads to the broker's own."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio

from gantrymq.plugins.ha.vip import VipPort
from support.processes import free_ports

pytestmark = pytest.mark.trio


@attrs.frozen
class Listening:
    """What the port asks of a broker."""

    listening: str


async def echo(stream: trio.SocketStream) -> None:
    """Say back what is said, to the end."""
    while data := await stream.receive_some(100):
        await stream.send_all(data.upper())


async def reach(port: int) -> trio.SocketStream:
    """A connection, as soon as somebody listens."""
    with trio.fail_after(30):
        while True:
            try:
                return await trio.open_tcp_stream("127.0.0.1", port)
            except OSError:
                await trio.sleep(0.01)


async def test_requests_at_the_vip_port_are_answered() -> None:
    (port,) = free_ports(around=(0, -2))
    broker: Any = Listening(f"127.0.0.1:{port}")
    async with trio.open_nursery() as nursery:
        await nursery.start(trio.serve_tcp, echo, port)
        nursery.start_soon(VipPort(broker).run)
        for word in (b"topics", b"again"):
            async with await reach(port - 2) as stream:
                await stream.send_all(word)
                with trio.fail_after(30):
                    assert await stream.receive_some(100) == word.upper()
        nursery.cancel_scope.cancel()


async def test_a_vip_port_in_use_does_not_stop_the_broker() -> None:
    (port,) = free_ports(around=(0, -2))
    broker: Any = Listening(f"127.0.0.1:{port}")
    async with trio.open_nursery() as nursery:
        await nursery.start(trio.serve_tcp, echo, port - 2)
        with trio.fail_after(5):
            await VipPort(broker).run()
        nursery.cancel_scope.cancel()

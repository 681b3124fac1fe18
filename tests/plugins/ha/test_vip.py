"""The VIP port (the broker's port minus two) serves all requests, with the same rules for addresses and TLS."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs

from gantrymq.kernel.api import Broker
from gantrymq.remoting.address import parse_address
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.errors import ChannelClosed, ConnectFailed
from gantrymq.testing.harness import make_broker, run_broker
from gantrymq.testing.requests import send
from support.certificates import FOLDER, client_context
from support.processes import free_ports

pytestmark = pytest.mark.trio

HA = "gantrymq.plugins.ha:HaPlugin"
TLS = "gantrymq.plugins.tls:TlsPlugin"


def make(path: Path, port: int, *enable: str, **settings: str) -> Broker:
    given = {"broker.listen": f"127.0.0.1:{port}", "plugin.ha.listen": "127.0.0.1:0", **settings}
    return make_broker(path / "store", settings=given, enable=[HA, *enable])


async def asks(channel: Channel) -> int:
    return (await channel.call(send("T", b"x"), 10.0)).code


async def when_open(address: str, **options: object) -> int:
    with trio.fail_after(30):
        while True:
            try:
                async with open_channel(address, **options) as channel:  # type: ignore[arg-type]
                    return await asks(channel)
            except ConnectFailed:
                await trio.sleep(0.02)


async def test_requests_at_the_vip_port_come_from_the_address_of_their_sender(tmp_path: Path) -> None:
    """A forwarded connection would come from this machine, which lists of addresses may trust."""
    (port,) = free_ports(around=(0, -2))
    async with run_broker(make(tmp_path, port)) as broker:
        assert await when_open(f"127.0.0.1:{port - 2}") == 0
        stream = await trio.open_tcp_stream("127.0.0.1", port - 2, local_address="127.0.0.9")
        with trio.fail_after(20):
            while "127.0.0.9" not in {connection.peer[0] for connection in broker.connections}:  # noqa: ASYNC110
                await trio.sleep(0.02)
        await stream.aclose()


async def test_the_vip_port_enforces_tls_too(tmp_path: Path) -> None:
    (port,) = free_ports(around=(0, -2))
    settings = {"plugin.tls.certificate": str(FOLDER / "server.pem")}
    async with run_broker(make(tmp_path, port, TLS, **settings)):
        assert await when_open(f"127.0.0.1:{port - 2}", tls=client_context()) == 0
        async with open_channel(f"127.0.0.1:{port - 2}") as plain:
            with pytest.raises(ChannelClosed):
                await asks(plain)


async def test_a_vip_port_in_use_does_not_stop_the_broker(tmp_path: Path) -> None:
    (port,) = free_ports(around=(0, -2))
    taken = await trio.open_tcp_listeners(port - 2, host="127.0.0.1")
    with capture_logs() as logs:
        async with run_broker(make(tmp_path, port)) as broker, open_channel(broker.address) as channel:
            assert await asks(channel) == 0
            with trio.fail_after(20):
                while not [each for each in logs if each["event"] == "vip_port_not_opened"]:  # noqa: ASYNC110
                    await trio.sleep(0.02)
    for listener in taken:
        await listener.aclose()
    assert parse_address(broker.address)[1] == port

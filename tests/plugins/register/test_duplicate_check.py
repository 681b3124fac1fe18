"""A live broker registered under the same name and id keeps its registration; the new one reports it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from gantrymq.kernel.errors import StartError
from gantrymq.nameserver.server import NameServer, NameServerConfig
from gantrymq.plugins.interfaces import Registration
from gantrymq.plugins.register import duplicate_check
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.errors import RemoteFault
from gantrymq.testing.harness import make_broker, run_broker
from support.processes import free_ports

pytestmark = pytest.mark.trio


@asynccontextmanager
async def nameserver_at(port: int = 0) -> AsyncIterator[str]:
    """A nameserver, and its address."""
    async with trio.open_nursery() as nursery:
        server = NameServer(NameServerConfig(port=port))
        await nursery.start(server.serve)
        yield server.address
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("broker_id", ["0", "1"], ids=["two masters", "two slaves"])
async def test_a_second_one_of_a_name_and_number_refuses_the_start(tmp_path: Path, broker_id: str) -> None:
    settings = {"broker.id": broker_id}
    async with nameserver_at() as nameserver:
        async with run_broker(make_broker(tmp_path / "a", [nameserver], settings=settings)) as first:
            assert await first.registry.get(Registration).wait_first(5)
            second = make_broker(tmp_path / "b", [nameserver], settings=settings)
            text = f"{first.address} is a broker 'broker-a' with the id {broker_id} already"
            with pytest.RaisesGroup(pytest.RaisesExc(StartError, match=text), flatten_subgroups=True):
                async with run_broker(second):
                    await trio.sleep(10)
            other = make_broker(tmp_path / "b", [nameserver], settings={"broker.id": "7"})
            async with run_broker(other):
                assert await other.registry.get(Registration).wait_first(5)
        async with run_broker(make_broker(tmp_path / "b", [nameserver], settings=settings)) as successor:
            assert await successor.registry.get(Registration).wait_first(5)


async def test_a_registered_broker_that_is_gone_or_silent_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that vanished stays with the nameserver for two minutes."""
    monkeypatch.setattr(duplicate_check, "PROBE_S", 0.1)
    async with nameserver_at() as nameserver:
        async with trio.open_nursery() as nursery:
            mute = await trio.open_tcp_listeners(0, host="127.0.0.1")
            silent = f"127.0.0.1:{mute[0].socket.getsockname()[1]}"
            settings = {"broker.advertise": silent}
            async with run_broker(make_broker(tmp_path / "a", [nameserver], settings=settings)) as first:
                assert await first.registry.get(Registration).wait_first(5)
                async with run_broker(make_broker(tmp_path / "b", [nameserver])) as second:
                    assert await second.registry.get(Registration).wait_first(5)
            nursery.cancel_scope.cancel()
        await mute[0].aclose()


async def test_a_broker_with_a_new_address_is_no_duplicate_of_itself(tmp_path: Path) -> None:
    """The broker is registered by its former name, which still leads to it.

    Another broker that finds it there does not register, but keeps running if a nameserver accepted it before.
    """
    (port,) = free_ports()
    async with nameserver_at() as nameserver:
        settings = {"broker.listen": f"127.0.0.1:{port}", "broker.advertise": f"localhost:{port}"}
        async with run_broker(make_broker(tmp_path / "a", [nameserver], settings=settings)) as first:
            assert await first.registry.get(Registration).wait_first(5)
            first.address = f"127.0.0.1:{port}"
            async with open_channel(nameserver) as channel:
                own = next(info.plugin for info in first.manager.plugins if info.name == "register")
                await own._duplicate_check.check(channel, 5.0)
                own._duplicate_check.settle()
                stranger = duplicate_check.DuplicateCheck(first)
                stranger.settle()
                with pytest.raises(RemoteFault, match="already, and answers"):
                    await stranger.check(channel, 5.0)

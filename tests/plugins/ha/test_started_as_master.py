"""A former slave that starts or is set as master while another master of its name is alive."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio

from gantrymq.kernel.broker import Broker
from gantrymq.kernel.errors import StartError
from gantrymq.nameserver.server import NameServer, NameServerConfig
from gantrymq.plugins import ha
from gantrymq.plugins.ha import HaPlugin, find
from gantrymq.plugins.interfaces import LiveSettings, Registration, Replication
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.epoch import read_epoch
from gantrymq.remoting.errors import RemoteFault
from gantrymq.testing.harness import make_broker, run_broker

pytestmark = pytest.mark.trio

PLUGIN = "gantrymq.plugins.ha:HaPlugin"
REFUSED = r"127.0.0.1:\d+ \(epoch 0-\), answers: .*broker.id above 0.*stop that one and run `gantrymq cluster promote"


@pytest.fixture
async def nameserver() -> AsyncIterator[str]:
    """The address of a nameserver."""
    async with trio.open_nursery() as nursery:
        server = NameServer(NameServerConfig(port=0))
        await nursery.start(server.serve)
        yield server.address
        nursery.cancel_scope.cancel()


def make(root: Path, nameserver: str, number: int = 0, **settings: str) -> Broker:
    """A broker that finds the others through the nameserver, if there is one."""
    given = {"plugin.ha.listen": "127.0.0.1:0", "plugin.ha.role": "sync_master", **settings}
    names = [nameserver] if nameserver else []
    file = b"[broker]\nid = %d\n" % number
    return make_broker(root, names, settings=given, enable=[PLUGIN], file=file)


def replication(broker: Broker) -> HaPlugin:
    return broker.registry.get(Replication)  # type: ignore[return-value]


async def copied(pair: Any, master: Broker, slave: Broker, *bodies: bytes) -> None:
    """Returns when the master has acknowledged the messages, and the slave has them."""
    await pair.connected(master)
    await pair.until(lambda: not replication(master).refusal, timeout=60)
    assert set(await pair.send(master, *bodies)) == {0}
    await pair.until(lambda: slave.store.dispatched == master.log.end, timeout=60)


async def test_a_former_slave_does_not_start_as_a_master_beside_a_live_one(
    pair: Any, tmp_path: Path, nameserver: str
) -> None:
    """It lacks messages that the other slaves have acknowledged since, which they would then truncate."""
    async with run_broker(make(tmp_path / "a", nameserver)) as master:
        async with run_broker(make(tmp_path / "b", nameserver, 1)) as slave:
            await copied(pair, master, slave, b"1", b"2")
        async with run_broker(make(tmp_path / "c", nameserver, 2)) as other:
            await copied(pair, master, other, b"only the other slave has this")
            with pytest.RaisesGroup(pytest.RaisesExc(StartError, match=REFUSED), flatten_subgroups=True):
                async with run_broker(make(tmp_path / "b", nameserver)):
                    pass
            assert not replication(master).fenced
            assert await pair.send(master, b"goes on") == [0]
            assert not other.restarting
    async with run_broker(make(tmp_path / "b", nameserver)) as promoted:
        assert replication(promoted).epoch.number == 1, "the master was stopped"


async def test_the_configured_master_is_asked_too(pair: Any) -> None:
    """Without a nameserver it is the only way to the other master."""
    async with pair.master() as master:
        async with pair.slave(master) as slave:
            await copied(pair, master, slave, b"1")
        with pytest.RaisesGroup(pytest.RaisesExc(StartError, match=REFUSED), flatten_subgroups=True):
            async with pair.master(home="slave", master_broker=master.address):
                pass
    async with pair.master(home="slave", master_broker=master.address) as promoted:
        assert await pair.send(promoted, b"2") == [0]


async def test_a_fenced_master_is_no_obstacle(pair: Any) -> None:
    async with pair.master() as master:
        async with pair.slave(master) as slave:
            await copied(pair, master, slave, b"1")
        replication(master).learn_epoch(read_epoch("7-00000001"), "a test")
        async with pair.master(home="slave", master_broker=master.address) as promoted:
            assert replication(promoted).epoch.number == 1


async def test_a_request_makes_no_slave_the_master_while_the_master_answers(
    pair: Any, tmp_path: Path, nameserver: str
) -> None:
    """The slave is not connected to it."""
    async with run_broker(make(tmp_path / "a", nameserver)) as master:
        assert await master.registry.get(Registration).wait_first(60)
        elsewhere = {"plugin.ha.master": "127.0.0.1:1", "plugin.ha.master_broker": "127.0.0.1:1"}
        async with run_broker(make(tmp_path / "b", nameserver, 1, **elsewhere)) as slave:
            async with open_channel(slave.address) as channel:
                answer = await channel.call(Command(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerId=0"), 60)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert f"the current master is {master.address} (epoch 0-): stop it first" in str(answer.remark)
            assert not slave.restarting


async def test_a_reload_does_not_promote_a_slave(tmp_path: Path) -> None:
    """A request cannot wait for responses of nameservers and masters."""
    async with run_broker(make(tmp_path / "b", "", 1)) as slave:
        with pytest.raises(RemoteFault, match="run `gantrymq cluster promote`, or stop the broker and start it again"):
            slave.registry.get(LiveSettings).reload(make(tmp_path / "b", "", 0).config)
        assert not slave.restarting


async def test_nothing_is_stored_or_sent_to_slaves_before_the_epoch_has_begun(
    pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair.master() as master, pair.slave(master) as slave:
        await copied(pair, master, slave, b"1")
    asked, answered = trio.Event(), trio.Event()

    async def ask(*_: object) -> str:
        asked.set()
        await answered.wait()
        return ""

    monkeypatch.setattr(ha, "find_live_master", ask)
    promoted = pair.make_slave("127.0.0.1:1", **{"broker.id": "0", "listen": "127.0.0.1:0"})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(promoted.run)
        await asked.wait()
        with trio.fail_after(60):
            end = promoted.log.end
            assert await pair.send(promoted, b"too early") == [ResponseCode.SERVICE_NOT_AVAILABLE]
            assert promoted.log.end == end
            with pytest.raises(OSError, match="all attempts"):
                await trio.open_tcp_stream("127.0.0.1", int(replication(promoted).ha_address.rpartition(":")[2]))
            answered.set()
            while await pair.send(promoted, b"now") != [0]:
                pass
        assert replication(promoted)._epochs.start == end
        promoted.stop()


async def test_a_nameserver_and_a_master_that_hang_delay_the_start_and_do_not_prevent_it(
    pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find, "PROBE_S", 0.1)
    async with pair.master() as master, pair.slave(master) as slave:
        await copied(pair, master, slave, b"1")
    (mute,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    silent = f"127.0.0.1:{mute.socket.getsockname()[1]}"
    given = {"plugin.ha.listen": "127.0.0.1:0", "plugin.ha.master_broker": silent}
    broker = make_broker(pair.root / "slave", [silent], settings=given, enable=[PLUGIN])
    async with mute, run_broker(broker):
        assert replication(broker).epoch.number == 1

"""Replication of a log with an unreadable block: the slave gets everything before it, and clients are served.

Row 16 of the fault catalogue; ``tests/crash/test_bad_block.py`` has the same on a real file system.
"""

from __future__ import annotations

from typing import Any

import pytest
import structlog.testing
import trio

from gantrymq.kernel.broker import Broker
from gantrymq.kernel.store.log import unreadable
from gantrymq.plugins.ha import master as ha_master
from gantrymq.plugins.ha.status import master_info
from gantrymq.plugins.interfaces import TopicTable
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import ResponseCode
from gantrymq.testing.requests import pull, send
from support.badblocks import BadBlocksEnv

pytestmark = pytest.mark.trio

FILE = f"commitlog/{0:020d}"
BODY = b"x" * 10_000
BAD = (200_704, 204_800)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is asked again soon."""
    monkeypatch.setattr(unreadable, "UNREADABLE_S", 0.05)
    monkeypatch.setattr(ha_master, "UNREADABLE_RETRY_S", 0.1)


async def fill(master: Broker) -> None:
    """50 messages in one file of the log, some of them in what will be the bad block."""
    async with open_channel(master.address) as channel:
        for number in range(50):
            await channel.call(send("T", b"%08d" % number + BODY))


@pytest.mark.usefixtures("impatient")
async def test_row_16_a_slave_receives_the_log_up_to_the_masters_unreadable_block(pair: Any) -> None:
    env = BadBlocksEnv()
    async with pair.master(env=env, role="sync_master", heartbeat="50ms", housekeeping="1s") as master:
        await fill(master)
        env.spoil(FILE, *BAD)
        with structlog.testing.capture_logs() as logs:
            async with pair.slave(master, heartbeat="50ms", housekeeping="1s") as slave:
                await pair.until(lambda: [entry for entry in logs if entry["event"] == "slave_stopped"])
                await pair.until(lambda: slave.log.end > BAD[0] - 2 * len(BODY))
                assert slave.log.end <= BAD[0]
                assert await pair.send(master, b"meanwhile") == [ResponseCode.SLAVE_NOT_AVAILABLE], "nobody waits"
                async with open_channel(master.address) as channel:
                    assert (await channel.call(pull("T", 0, 40))).code == ResponseCode.SUCCESS, "the broker goes on"
                ha = next(info.plugin for info in master.manager.plugins if info.name == "ha")
                reported = master_info(master, ha.copies, "", "sync_master")["haSlave_0"]
                assert f"stoppedAt={BAD[0]}" in reported
                await trio.sleep(1.5)  # it is asked again and again, and heard all the time
                (line,) = [entry for entry in logs if entry["event"] == "slave_stopped"]
                assert line["offset"] == BAD[0]
                assert "promote" in line["reason"]
                assert not [entry for entry in logs if entry["event"] == "slave_disconnected"]
                env.bad.clear()
                await pair.until(lambda: slave.store.dispatched == master.log.end)
                assert pair.bytes_of(slave) == pair.bytes_of(master)
                assert await pair.send(master, b"again") == [0]


async def test_row_16_a_slave_with_an_unreadable_block_follows_its_master(pair: Any) -> None:
    async with pair.master() as master:
        await fill(master)
        async with pair.slave(master) as slave:
            await pair.until(lambda: slave.store.dispatched == master.log.end)
        env = BadBlocksEnv()
        env.spoil(FILE, *BAD)
        async with pair.slave(master, env=env) as slave:
            await pair.send(master, b"more")
            await pair.until(lambda: slave.store.dispatched == master.log.end)
            async with open_channel(slave.address) as channel:
                await pair.until(lambda: slave.registry.get(TopicTable).get("T") is not None)
                assert (await channel.call(pull("T", 0, 19))).code == ResponseCode.SYSTEM_ERROR, "of that block"
                assert (await channel.call(pull("T", 0, 30))).code == ResponseCode.SUCCESS
            env.bad.clear()
            assert pair.bytes_of(slave) == pair.bytes_of(master)

"""A slave whose log is not a beginning of its master's: never concatenated; what was never that is kept aside."""

from __future__ import annotations

from typing import Any

import pytest
import structlog.testing
import trio

from gantrymq.kernel.errors import StartError
from gantrymq.kernel.services import ConsumerOffsets, Replication
from gantrymq.plugins.ha import compare
from gantrymq.plugins.ha.epochs import FILE
from gantrymq.testing.harness import run_broker

pytestmark = pytest.mark.trio


async def diverge(pair: Any, *tail: bytes) -> tuple[bytes, int]:
    """Two stores that are the same up to an offset; the slave's goes on with ``tail``. Its log, and the offset."""
    async with pair.master() as master:
        await pair.send(master, *[b"%d" % number * 20 for number in range(200)])
        async with pair.slave(master) as slave:
            await pair.until(lambda: slave.store.dispatched == master.log.end)
            common = slave.log.end
    (pair.root / "slave" / FILE).unlink()  # else it is promoted here, and the other one is fenced
    async with pair.master(home="slave") as promoted:
        if tail:
            await pair.send(promoted, *tail)
        return pair.bytes_of(promoted), common


@pytest.mark.parametrize("masters", [[], [b"other"], [b"other"] * 50], ids=["shorter", "other", "longer"])
async def test_a_tail_that_was_never_the_masters_is_cut_off_and_kept(
    pair: Any, masters: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    if masters:
        monkeypatch.setattr(compare, "ABSENT_S", 0.5)  # without, the master's log ends before: that is certain at once
    log, common = await diverge(pair, *[b"mine"] * 20)
    async with pair.master() as master:
        if masters:
            await pair.send(master, *masters)
        async with pair.slave(master) as slave:
            await pair.until(lambda: slave.restarting)
        async with pair.slave(master) as slave:
            assert slave.log.end == common
            await pair.send(master, b"more")
            await pair.until(lambda: slave.store.dispatched == master.log.end)
            assert pair.bytes_of(slave) == pair.bytes_of(master)
            assert slave.queues.get("T", 0).max_offset == master.queues.get("T", 0).max_offset
    (kept,) = (pair.root / "slave" / "lost+found").iterdir()
    assert kept.read_bytes() == log[common:].rstrip(b"\0")


async def test_a_group_that_had_consumed_the_cut_tail_goes_on_at_the_new_end(pair: Any) -> None:
    """Else it would skip, once this broker is the master again, as many messages as were cut off."""
    await diverge(pair)
    async with pair.master(home="slave") as promoted:
        common = promoted.queues.get("T", 0).max_offset
        await pair.send(promoted, *[b"mine"] * 20)
        promoted.services.get(ConsumerOffsets).commit("shop", "T", 0, common + 20)
    async with pair.master() as master:
        async with pair.slave(master) as slave:
            await pair.until(lambda: slave.restarting)
        async with pair.slave(master) as slave:
            assert slave.services.get(ConsumerOffsets).query("shop", "T", 0) == common


async def test_a_store_of_another_cluster_is_refused_and_left_alone(pair: Any) -> None:
    async with pair.master(home="slave") as other:
        await pair.send(other, b"not yours")
        log = pair.bytes_of(other)
    async with pair.master() as master:
        await pair.send(master, b"mine", b"too")
        text = f"no record of the log in .*slave is one of the master at {master.address}"
        with pytest.RaisesGroup(pytest.RaisesExc(StartError, match=text), flatten_subgroups=True):
            async with pair.slave(master):
                await trio.sleep(10)
    async with pair.master(home="slave") as other:
        assert pair.bytes_of(other) == log


@pytest.mark.parametrize("setting", ["broker.name", "broker.cluster"])
async def test_a_master_of_another_name_or_cluster_is_refused_by_name(pair: Any, setting: str) -> None:
    async with pair.master() as master:
        await pair.send(master, b"mine")
        slave = pair.make_slave(master, **{setting: "other"})
        text = rf"{master.address} is the broker 'broker-a' of the cluster 'DefaultCluster', and this .*'other'"
        with pytest.RaisesGroup(pytest.RaisesExc(StartError, match=text), flatten_subgroups=True):
            async with run_broker(slave):
                await trio.sleep(10)
        assert slave.log.end == 0


async def test_a_slave_of_a_slave_waits_for_its_master(pair: Any) -> None:
    """Roles change: what is a slave now may be the master in a moment."""
    async with pair.master() as master, pair.slave(master) as slave:
        await pair.send(master, b"mine")
        await pair.until(lambda: slave.log.end == master.log.end)
        misled = pair.make_slave(master.services.get(Replication).ha_address, "misled", master_broker=slave.address)
        with structlog.testing.capture_logs() as logs:
            async with run_broker(misled):
                await pair.until(lambda: any("is a slave as well" in str(entry.get("reason")) for entry in logs))
                assert misled.log.end == 0


async def test_without_a_way_to_compare_nothing_is_appended(pair: Any) -> None:
    _, common = await diverge(pair)
    async with pair.master() as master:
        await pair.send(master, b"more")
        async with pair.slave(master.services.get(Replication).ha_address) as slave:
            await trio.sleep(0.5)
            assert slave.log.end == common

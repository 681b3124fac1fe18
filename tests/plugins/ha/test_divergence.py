"""A slave whose log is not a beginning of its master's: never concatenated; what was never that is kept aside."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from gantrymq.kernel.errors import StartError
from gantrymq.kernel.services import Replication
from gantrymq.plugins.ha import compare

pytestmark = pytest.mark.trio


async def diverge(pair: Any, *tail: bytes) -> tuple[bytes, int]:
    """Two stores that are the same up to an offset; the slave's goes on with ``tail``. Its log, and the offset."""
    async with pair.master() as master:
        await pair.send(master, *[b"%d" % number * 20 for number in range(200)])
        async with pair.slave(master) as slave:
            await pair.until(lambda: slave.store.dispatched == master.log.end)
            common = slave.log.end
    async with pair.master(home="slave") as promoted:
        if tail:
            await pair.send(promoted, *tail)
        return pair.bytes_of(promoted), common


@pytest.mark.parametrize("masters", [[], [b"other"], [b"other"] * 50], ids=["shorter", "other", "longer"])
async def test_a_tail_that_was_never_the_masters_is_cut_off_and_kept(
    pair: Any, masters: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "ABSENT_S", 0.5)
    log, common = await diverge(pair, *[b"mine"] * 20)
    async with pair.master() as master:
        if masters:
            await pair.send(master, *masters)
        with pytest.RaisesGroup(pytest.RaisesExc(StartError, match=f"from offset {common} on"), flatten_subgroups=True):
            async with pair.slave(master):
                await trio.sleep(10)
        async with pair.slave(master) as slave:
            assert slave.log.end == common
            await pair.send(master, b"more")
            await pair.until(lambda: slave.store.dispatched == master.log.end)
            assert pair.bytes_of(slave) == pair.bytes_of(master)
            assert slave.queues.get("T", 0).max_offset == master.queues.get("T", 0).max_offset
    (kept,) = (pair.root / "slave" / "lost+found").iterdir()
    assert kept.read_bytes() == log[common:].rstrip(b"\0")


async def test_a_store_of_another_cluster_is_left_alone(pair: Any) -> None:
    async with pair.master(home="slave") as other:
        await pair.send(other, b"not yours")
        log = pair.bytes_of(other)
    async with pair.master() as master:
        await pair.send(master, b"mine", b"too")
        async with pair.slave(master) as slave:
            await trio.sleep(1)
            assert pair.bytes_of(slave) == log


async def test_without_a_way_to_compare_nothing_is_appended(pair: Any) -> None:
    _, common = await diverge(pair)
    async with pair.master() as master:
        await pair.send(master, b"more")
        async with pair.slave(master.services.get(Replication).ha_address) as slave:
            await trio.sleep(0.5)
            assert slave.log.end == common

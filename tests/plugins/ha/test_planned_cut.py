"""The planned truncation of a slave's log happens exactly once."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace
from typing import Any

import pytest

from gantrymq.kernel.broker import Broker
from gantrymq.kernel.store.store import Store
from gantrymq.plugins.ha.compare import CUT_FILE, cut_as_planned, discard_planned_cut
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import ResponseCode
from gantrymq.testing.memory_env import MemoryEnv
from gantrymq.testing.requests import send
from gantrymq.testing.tinystore import TINY, batch_of, commit, open_store, read_queue


def delivered(broker: Broker) -> bool:
    """Whether the topic T has a message."""
    queue = broker.queues.get("T", 0)
    return queue is not None and queue.max_offset > 0


def start(env: MemoryEnv) -> Store:
    """The store after a start that makes a planned cut."""
    store = Store(env, "store", TINY)
    store.open()
    broker: Any = SimpleNamespace(env=env, root="store", store=store)
    cut_as_planned(broker)
    store.recover(lambda batch: None)
    return store


def test_a_power_cut_after_a_planned_cut_does_not_repeat_it() -> None:
    """Else it would take messages that the slave has confirmed to its master meanwhile."""
    env = MemoryEnv()
    store, _, _ = open_store(env)
    batch = batch_of([b"one", b"two", b"three"])
    store.append(batch)
    commit(store)
    store.close()
    env.replace(f"store/{CUT_FILE}", json.dumps({"end": batch.offsets[1]}).encode())
    store = start(env)
    store.append(batch_of([b"new"]))
    commit(store)
    assert list(read_queue(start(env.power_cut())).values()) == [b"one", b"new"]


def test_a_power_cut_does_not_restore_a_discarded_cut() -> None:
    env = MemoryEnv()
    store, _, _ = open_store(env)
    store.close()
    env.replace(f"store/{CUT_FILE}", json.dumps({"end": 0}).encode())
    broker: Any = SimpleNamespace(env=env, root="store")
    discard_planned_cut(broker)
    assert not env.power_cut().exists(f"store/{CUT_FILE}")


@pytest.mark.trio
async def test_a_former_master_delivers_again_what_was_cut_off_before_it_adopted_the_new_masters_progress(
    pair: Any,
) -> None:
    """The new master is lost at once."""
    waits = {"plugin.delay.levels": "3s"}
    async with pair.master(**waits) as master:
        async with pair.slave(master) as slave, open_channel(master.address) as channel:
            answer = await channel.call(send("T", b"later", properties="DELAY\x011"))
            assert answer.code == ResponseCode.SUCCESS
            await pair.until(lambda: slave.store.dispatched == master.log.end)
            copied = master.log.end
        await pair.until(lambda: delivered(master))
    async with pair.master(home="slave") as promoted:
        await pair.send(promoted, b"other", topic="Other")
        async with pair.slave(promoted, home="master") as former:
            await pair.until(lambda: former.restarting)
    async with pair.slave("127.0.0.1:1", home="master", master_broker="127.0.0.1:1") as former:
        assert former.log.end == copied
        assert not delivered(former)
    async with pair.master(home="master") as again:
        await pair.until(lambda: delivered(again))


@pytest.mark.trio
async def test_a_kill_after_a_cut_leaves_no_progress_that_counts_what_was_cut_off(pair: Any) -> None:
    """The log has grown beyond its former end meanwhile, and what is delayed in it is due later."""
    later = send("T", b"later", properties="DELAY\x011")
    async with pair.master(**{"plugin.delay.levels": "1s"}) as master:
        async with pair.slave(master) as slave:
            await pair.send(master, b"shared", topic="Other")
            await pair.until(lambda: slave.store.dispatched == master.log.end)
        async with open_channel(master.address) as channel:
            assert (await channel.call(later)).code == ResponseCode.SUCCESS
        await pair.until(lambda: delivered(master))
        former_end = master.log.end
    async with pair.master(home="slave", **{"plugin.delay.levels": "1h"}) as promoted:
        async with open_channel(promoted.address) as channel:
            assert (await channel.call(later)).code == ResponseCode.SUCCESS
        while promoted.log.end <= former_end:
            await pair.send(promoted, bytes(1000), topic="Other")
        async with pair.slave(promoted, home="master") as former:
            await pair.until(lambda: former.restarting)
        async with pair.slave(promoted, home="master", **{"broker.persist_interval": "1h"}) as former:
            await pair.until(lambda: former.store.dispatched == promoted.log.end)
            shutil.copytree(pair.root / "master", pair.root / "killed")
    async with pair.master(home="killed", **{"plugin.delay.levels": "1s"}) as again:
        await pair.until(lambda: delivered(again))

"""A slave is too far behind for clients only while a master has more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gantrymq.plugins.ha.config import HaConfig
from gantrymq.plugins.ha.frames import HEADER
from gantrymq.plugins.ha.slave import Slave, Tail
from gantrymq.plugins.ha.status import slave_info
from gantrymq.remoting.epoch import FIRST
from gantrymq.testing.memory_env import MemoryEnv
from gantrymq.testing.tinystore import TINY, batch_of, commit, open_store


def test_a_slave_far_behind_a_connected_master_is_not_ready() -> None:
    now = [100.0]
    store = SimpleNamespace(dispatched=1000)
    broker: Any = SimpleNamespace(env=SimpleNamespace(monotonic=lambda: now[0]), store=store)
    slave: Any = Slave.__new__(Slave)
    slave._broker, slave._config = broker, HaConfig(ready_lag=60.0)
    slave.connected_to, slave.master_end, slave.heard_at, slave.level_at = "master:1", 5000, 100.0, 100.0
    assert slave.too_far_behind() == ""
    now[0] += 61
    assert slave.too_far_behind() == "this slave is 61 s and 4000 bytes behind its master (plugin.ha.ready_lag)"
    slave.connected_to = ""
    assert slave.too_far_behind() == "", "consumers of a lost master need it"
    slave.connected_to, store.dispatched = "master:1", 5000
    assert slave.too_far_behind() == ""


class Stream:
    """A connection to a master that sends ``data`` and closes."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def receive_into(self, room: memoryview) -> int:
        size = len(self._data)
        room[:size] = self._data
        self._data = b""
        return size


@pytest.mark.trio
async def test_a_slave_of_a_master_without_the_last_half_sent_record_is_ready() -> None:
    """Another master, or the same one after a power cut."""
    now = [100.0]
    store = open_store(MemoryEnv())[0]
    store.append(batch_of([b"first"]))
    commit(store)
    end = store.log.end
    broker: Any = SimpleNamespace(
        env=SimpleNamespace(monotonic=lambda: now[0]), store=store, log=store.log,
        config=SimpleNamespace(store=TINY), append_encoded=store.append_encoded,
    )  # fmt: skip
    slave: Any = Slave.__new__(Slave)
    slave._broker, slave._config = broker, HaConfig(ready_lag=60.0)
    slave._epochs, slave._following = SimpleNamespace(known=FIRST), FIRST
    slave.connected_to, slave.master_end, slave.heard_at, slave.level_at = "master:1", end, 100.0, 100.0
    await slave._receive(Stream(HEADER.pack(end, 200) + store.log.view(0, 50)), Tail(broker))
    assert slave_info(broker, slave)["haLagBytes"] == "50"
    for _ in range(13):
        now[0] += 5
        await slave._receive(Stream(HEADER.pack(end, 0)), Tail(broker))
    assert slave_info(broker, slave)["haLagBytes"] == "0"
    assert slave.too_far_behind() == ""

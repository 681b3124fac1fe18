"""When a slave is too far behind for clients: only beside a master that has more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from gantrymq.plugins.ha.config import HaConfig
from gantrymq.plugins.ha.slave import Slave


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

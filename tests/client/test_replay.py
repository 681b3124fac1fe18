"""Dead letters are replayed exactly once, also while a broker has no master."""

from __future__ import annotations

from typing import Any

import pytest

import gantrymq
from gantrymq.client.groups import POSITION_GROUP
from gantrymq.operations.dead_letters import replay
from gantrymq.remoting.bodies.routes import BrokerData

pytestmark = pytest.mark.anyio


async def test_dead_letters_are_sent_once_while_another_broker_has_no_master(fake_cluster: Any) -> None:
    async with fake_cluster(brokers=2, **{"%DLQ%g": 1, "%RETRY%g": 1}) as cluster:
        master, slave = cluster.brokers
        for broker in cluster.brokers:
            for number in range(2):
                broker.store("%DLQ%g", 0, f"{broker.name} {number}".encode())
        addresses = [BrokerData("C", master.name, {0: master.address}), BrokerData("C", slave.name, {1: slave.address})]
        cluster.nameserver.broker_datas = lambda: addresses
        skipped: list[str] = []
        async with gantrymq.connect(cluster.address) as client:
            counts = [await replay(client, "g", skipped=skipped.append) for _ in range(2)]
        assert counts == [2, 0]
        assert (master.sent(), slave.sent()) == ([b"broker-a 0", b"broker-a 1"], [])
        assert master.offsets == {(POSITION_GROUP + "g", "%DLQ%g", 0): 2}
        assert skipped == ["broker-b", "broker-b"]

"""A slave takes both addresses from one master and never compares with one and follows another."""

from __future__ import annotations

from typing import Any

import pytest
import structlog.testing

from gantrymq.plugins.ha.master_address import MasterAddress
from gantrymq.plugins.interfaces import Replication
from gantrymq.remoting.epoch import Epoch
from gantrymq.testing.harness import run_broker

pytestmark = pytest.mark.trio


@pytest.mark.parametrize(
    ("ha", "broker", "expected"),
    [
        ("", "", ("b:1", "b:2")),
        ("a:2", "", ("b:1", "b:2")),
        ("", "a:1", ("b:1", "b:2")),
        ("a:2", "a:1", ("a:1", "a:2")),
    ],
    ids=["none", "for slaves", "for clients", "both"],
)
async def test_both_addresses_come_from_the_configuration_or_both_from_the_nameserver(
    ha: str, broker: str, expected: tuple[str, str]
) -> None:
    address = MasterAddress("own:1", ha, broker)
    with structlog.testing.capture_logs() as logs:
        address.master_is("", "")
        assert address.broker == broker
        address.master_is("b:1", "b:2")
        address.master_is("b:1", "b:2")
    assert (address.broker, await address.ha_address()) == expected
    warned = [entry for entry in logs if entry["event"] == "configured_master_ignored"]
    assert len(warned) == (1 if bool(ha) != bool(broker) else 0)


async def test_a_slave_with_the_configured_address_for_slaves_follows_a_promoted_master_and_not_the_former_one(
    pair: Any,
) -> None:
    """RocketMQ's haMasterAddress names the first master for ever; the nameserver reports the promoted one."""
    async with pair.master(role="sync_master") as former:
        async with pair.slave(former, home="promoted") as slave:
            await pair.connected(former)
            assert await pair.send(former, b"1", b"2") == [0, 0]
            await pair.until(lambda: slave.store.dispatched == former.log.end)
        first = former.registry.get(Replication)
        async with pair.slave(first.ha_address, home="other", **{"plugin.ha.sync_tables": "1h"}) as other:
            reported = other.registry.get(Replication)
            reported.master_is(former.address, first.ha_address)
            await pair.connected(former)
            await pair.until(lambda: other.store.dispatched == former.log.end, timeout=60)
            async with pair.master(home="promoted", role="sync_master") as promoted:
                second = promoted.registry.get(Replication)
                reported.learn_epoch(second.epoch, "a nameserver")
                reported.master_is(promoted.address, second.ha_address)
                await pair.connected(promoted)
                assert await pair.send(former, b"lost") != [0]
                assert await pair.send(promoted, b"3") == [0]
                await pair.until(lambda: other.store.dispatched == promoted.log.end, timeout=60)


async def test_an_empty_slave_that_knows_a_promotion_does_not_follow_a_master_that_it_cannot_ask(pair: Any) -> None:
    """Its address for clients is unknown, and so is its epoch."""
    async with pair.master() as master:
        slave = pair.make_slave(master.registry.get(Replication).ha_address)
        with structlog.testing.capture_logs() as logs:
            async with run_broker(slave):
                slave.registry.get(Replication).learn_epoch(Epoch(1, "aa"), "a promotion")
                await pair.until(lambda: any("is unknown" in str(entry.get("reason")) for entry in logs), timeout=60)

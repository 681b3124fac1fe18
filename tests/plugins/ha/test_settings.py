"""RocketMQ's names for settings of a pair, in its ``broker.conf`` and for administrators."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from gantrymq.kernel.config.sections import Config, build_config
from gantrymq.kernel.config.sources import ConfigError, read_settings
from gantrymq.kernel.env import Listener
from gantrymq.kernel.env.system import SystemEnv
from gantrymq.kernel.loading import load_plugins
from gantrymq.plugins import DEFAULT_PLUGINS, optional_plugins
from gantrymq.plugins.ha.config import HaConfig
from gantrymq.plugins.interfaces import Replication
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.javaproperties import read_properties
from gantrymq.testing.harness import make_broker, run_broker
from support.processes import free_ports


def build(text: str) -> Config:
    read = read_settings("broker.conf", text.encode(), optional=optional_plugins)
    return build_config(read, load_plugins(DEFAULT_PLUGINS, read.enable, read.disable))


def test_a_masters_broker_conf_enables_and_configures_the_plugin() -> None:
    config = build(
        "brokerId=0\nbrokerRole=SYNC_MASTER\nbindAddress=10.0.0.1\nhaListenPort=11912\nslaveTimeout=1500\n"
        "haSendHeartbeatInterval=2500\nhaHousekeepingInterval=9000\nhaTransferBatchSize=65536\n"
        "haSlaveFallbehindMax=1000000\n"
    )
    assert config.section(HaConfig) == HaConfig(
        role="sync_master", listen="10.0.0.1:11912", sync_timeout=1.5, heartbeat=2.5, housekeeping=9.0,
        transfer_batch=65536, fall_behind_max=1_000_000,
    )  # fmt: skip
    assert config.notes == ()


@pytest.mark.parametrize("broker_id", ["2", "+2"])
def test_a_slaves_broker_conf_configures_the_plugin(broker_id: str) -> None:
    config = build(f"brokerId={broker_id}\nbrokerRole=SLAVE\nhaMasterAddress=10.0.0.1:10912\nslaveReadEnable=true\n")
    assert (config.broker.id, config.section(HaConfig).master) == (2, "10.0.0.1:10912")
    assert config.notes == ()


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("brokerRole=SLAVE", "broker.conf: brokerRole=SLAVE needs a brokerId above 0"),
        ("brokerRole=SLAVE\nbrokerId=0", "broker.conf: brokerRole=SLAVE needs a brokerId above 0"),
        ("brokerRole=SLAVE\nbrokerId=+0", "broker.conf: brokerRole=SLAVE needs a brokerId above 0"),
        ("brokerRole=KING", 'plugin.ha.role = "KING" (file broker.conf): allowed: async_master, sync_master'),
    ],
)
def test_an_invalid_role_is_rejected(text: str, reported: str) -> None:
    with pytest.raises(ConfigError) as failed:
        build(text)
    assert failed.value.problems[0].startswith(reported)


@pytest.mark.parametrize(("broker_id", "notes"), [("0", 0), ("+0", 0), ("1", 1), ("+1", 1), ("-1", 1)])
@pytest.mark.parametrize("role", ["", "brokerRole=\n", "brokerRole=ASYNC_MASTER\n"])
def test_a_broker_conf_without_the_role_of_a_slave_is_that_of_a_master(broker_id: str, notes: int, role: str) -> None:
    config = build(f"brokerId={broker_id}\n{role}")
    assert config.broker.id == 0
    assert config.notes == ("broker.conf: brokerId has no counterpart here and is ignored",) * notes


def test_a_plugin_may_be_enabled_by_a_broker_conf_and_by_a_flag() -> None:
    read = read_settings("b.conf", b"brokerRole=SLAVE\nbrokerId=1", enable=["ha", "ha"], optional=optional_plugins)
    assert read.enable == ("ha",)


def test_a_broker_without_a_role_does_not_replicate() -> None:
    read = read_settings("broker.conf", b"brokerName=a\nbrokerId=0", optional=optional_plugins)
    assert "ha" not in read.enable


@pytest.mark.trio
async def test_administrators_see_the_roles_by_rocketmqs_names(pair: Any) -> None:
    async def ask(broker: Any) -> dict[str, str]:
        async with open_channel(broker.address) as channel:
            return read_properties((await channel.call(Command(RequestCode.GET_BROKER_CONFIG))).body)

    async with pair.master(role="sync_master", sync_timeout="700ms") as master, pair.slave(master) as slave:
        says = await ask(master)
        assert (says["brokerRole"], says["slaveTimeout"]) == ("SYNC_MASTER", "700")
        assert (await ask(slave))["brokerRole"] == "SLAVE"


@pytest.mark.trio
async def test_a_master_with_any_port_does_not_need_the_next_one(tmp_path: Path) -> None:
    """A test's broker takes any port; the next one is often that of somebody's connection."""
    (port,) = free_ports(around=(0, 1))
    bound: list[int] = []

    class FirstPort(SystemEnv):
        def bind(self, host: str, wanted: int) -> Listener:
            bound.append(wanted)
            return super().bind(host, port if len(bound) == 1 else wanted)

    with contextlib.closing(SystemEnv().bind("127.0.0.1", port + 1)):
        async with run_broker(make_broker(tmp_path, enable=["ha"], env=FirstPort())) as broker:
            assert broker.listening == f"127.0.0.1:{port}"
            assert broker.registry.get(Replication).ha_address
    assert bound[:2] == [0, 0]

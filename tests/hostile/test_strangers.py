"""Unknown machines get only limited access to a broker, its slaves and a nameserver."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from gantrymq.kernel.errors import StartError
from gantrymq.nameserver import NameServer, NameServerConfig, NotProtected
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.nameserver import BrokerHeader, RegisterBrokerHeader
from gantrymq.testing.harness import make_broker, run_broker
from gantrymq.testing.requests import send
from gantrymq.testing.simulated.cluster import HA_PORT, Cluster
from gantrymq.testing.simulated.network import Process, on
from gantrymq.testing.simulated.run import simulate

NAMESERVER, MASTER, STRANGER = "10.0.0.1", "10.0.0.10", "10.9.9.9"


class Guarded:
    """A plugin that controls access."""

    name = "guarded"
    slot = "access_control"


@pytest.mark.trio
@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0"])
async def test_a_broker_without_access_control_refuses_to_listen_beyond_loopback(tmp_path: Path, listen: str) -> None:
    with pytest.raises(ExceptionGroup) as refused:
        async with run_broker(make_broker(tmp_path, settings={"broker.listen": listen})):
            pytest.fail("it serves")
    assert refused.group_contains(StartError, match="--insecure")


def test_a_broker_listens_on_any_address_if_allowed() -> None:
    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.start_broker(MASTER)  # simulated machines are started with broker.insecure
        with on(Process(STRANGER)):
            async with open_channel(broker.address) as channel:
                assert (await channel.call(send("T", b"x"))).code == ResponseCode.SUCCESS

    simulate(scenario, seed=1)


def test_a_broker_with_an_access_control_plugin_listens_on_any_address() -> None:
    async def scenario(cluster: Cluster) -> None:
        machine = cluster.machine(MASTER)
        settings = {"broker.insecure": "false"}
        with pytest.raises(ExceptionGroup) as refused:
            await machine.start_broker([], settings)
        assert refused.group_contains(StartError, match="no plugin controls access")
        broker = await cluster.machine("10.0.0.11").start_broker([], settings, [f"{__name__}:Guarded"])
        assert broker.listening.startswith("10.0.0.11:")

    simulate(scenario, seed=1)


@pytest.mark.trio
@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
async def test_a_nameserver_without_allowed_peers_refuses_to_listen_beyond_loopback(host: str) -> None:
    with pytest.raises(NotProtected, match="--peers"):
        await NameServer(NameServerConfig(host=host, port=0)).serve()


def register(name: str, address: str) -> Command:
    header = RegisterBrokerHeader(
        broker_name=name, broker_addr=address, cluster_name="DefaultCluster", ha_server_addr="", broker_id=0
    )
    return Command(RequestCode.REGISTER_BROKER, header.to_ext())


CHANGES = {
    "a registration": register("broker-a", f"{STRANGER}:10911"),
    "an unregistration": Command(
        RequestCode.UNREGISTER_BROKER,
        BrokerHeader(
            broker_name="broker-a", broker_addr=f"{MASTER}:10911", cluster_name="DefaultCluster", broker_id=0
        ).to_ext(),
    ),
    "a heartbeat": Command(RequestCode.BROKER_HEARTBEAT, {"brokerAddr": f"{MASTER}:10911"}),
    "no more writes": Command(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"}),
    "a topic's end": Command(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "T"}),
    "a value of the KV config": Command(RequestCode.PUT_KV_CONFIG, {"namespace": "n", "key": "k", "value": "v"}),
    "a setting": Command(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"enableTopicList=false"),
}


@asynccontextmanager
async def seen_from(host: str, address: str) -> AsyncIterator[Any]:
    with on(Process(host)):
        async with open_channel(address) as channel:
            yield channel


def test_an_unlisted_peer_can_read_and_not_change_routes() -> None:
    async def scenario(cluster: Cluster) -> None:
        machine = await cluster.start_nameserver(NAMESERVER, peers=["10.0.0.0/24"])
        await cluster.start_broker(MASTER)
        address = cluster.nameservers[0]
        assert machine.host == NAMESERVER
        async with seen_from(STRANGER, address) as channel:

            async def route() -> bytes:
                answer = await channel.call(Command(RequestCode.GET_BROKER_CLUSTER_INFO))
                return bytes(answer.body)

            await trio.sleep(60)
            before = await route()
            assert MASTER.encode() in before
            for what, change in CHANGES.items():
                answer = await channel.call(change)
                assert answer.code == ResponseCode.NO_PERMISSION, what
                assert "--peers" in (answer.remark or ""), what
            assert await route() == before
        async with seen_from("10.0.0.77", address) as channel:
            assert (await channel.call(register("broker-b", "10.0.0.77:10911"))).code == ResponseCode.SUCCESS

    simulate(scenario, seed=1)


def test_an_unlisted_slave_gets_no_byte_of_the_log() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.start_broker(MASTER, settings={"plugin.ha.peers": ""})
        with on(Process(STRANGER)):
            async with await trio.open_tcp_stream(MASTER, HA_PORT) as stream:
                await stream.send_all(bytes(8))
                with trio.fail_after(30):
                    assert await stream.receive_some(100) == b""
        refusal = next(line for line in cluster.log if line["event"] == "slave_refused")
        assert "plugin.ha.peers" in refusal["reason"]

    simulate(scenario, seed=1)

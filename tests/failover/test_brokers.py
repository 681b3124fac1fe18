"""The watcher queries the state of brokers while nameservers hang, on simulated time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from gantrymq.client import Client
from gantrymq.client.connections import Connections
from gantrymq.client.errors import CallTimeout
from gantrymq.client.nameservers import Nameservers
from gantrymq.failover.brokers import ask_broker, query_brokers
from gantrymq.failover.promotion import PromotionRefused, promote
from gantrymq.remoting import channel
from gantrymq.remoting.bodies.routes import BrokerData, ClusterInfo
from gantrymq.remoting.bodies.tables import KVTable
from gantrymq.remoting.channel import CALL_TIMEOUT_SECONDS, OUTGOING, Outgoing
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from support.certificates import CA, OTHER_CA, client_context, server_context
from support.peer import PeerConnection, run_peer

BROKER = "10.0.0.10:10911"


class Network:
    """Nameservers that know one broker, with the id ``number``; those in ``hanging`` accept connections and requests
    and answer none."""

    def __init__(self, *addresses: str, number: int = 0) -> None:
        self.number = number
        self.hanging: set[str] = set()
        self.requests: list[str] = []
        self.noted: list[str] = []
        """The nameservers whose connections were notified of a request without an answer."""
        nameservers = Nameservers(addresses, cast(Connections, self))
        admin = SimpleNamespace(nameservers=addresses, cluster=nameservers.cluster)
        self.client = cast(Client, SimpleNamespace(admin=admin))

    async def get(self, address: str) -> Any:
        async def call(command: Command) -> Command:
            self.requests.append(address)
            if address in self.hanging:
                await trio.sleep(CALL_TIMEOUT_SECONDS)
                raise CallTimeout(address, "no answer")
            data = BrokerData(cluster="C", broker_name="broker-a", broker_addrs={self.number: BROKER})
            return command.answer(0, body=ClusterInfo(broker_addr_table={"broker-a": data}).to_bytes())

        await trio.lowlevel.checkpoint()
        return SimpleNamespace(address=address, call=call, on_timeout=lambda: self.noted.append(address))

    async def query(self) -> Sequence[dict[str, Any]]:
        """Query as the watcher does, without the broker itself."""
        return await query_brokers(self.client, 1.0, "broker-a", without=[BROKER])


def test_a_hanging_nameserver_costs_the_watcher_one_response_timeout_and_is_then_avoided() -> None:
    async def scenario() -> None:
        network = Network("one", "other")
        seconds = []
        for _ in range(3):
            began = trio.current_time()
            (row,) = await network.query()
            assert row["address"] == BROKER
            seconds.append(round(trio.current_time() - began, 3))
            network.hanging.add("one")
        assert seconds == [0, 1, 0]
        assert network.requests == ["one", "one", "other", "other"]
        assert network.noted == ["one"], "so that a connection that carries nothing any more is replaced"

    trio.run(scenario, clock=MockClock(autojump_threshold=0))


def test_a_query_without_any_answering_nameserver_ends_after_one_response_timeout_each() -> None:
    async def scenario() -> None:
        network = Network("one", "other")
        network.hanging |= {"one", "other"}
        began = trio.current_time()
        with pytest.raises(trio.TooSlowError, match="no nameserver answered within 1 s"):
            await network.query()
        assert trio.current_time() - began == pytest.approx(2)
        assert network.requests == ["one", "other"]

    trio.run(scenario, clock=MockClock(autojump_threshold=0))


def test_a_broker_that_responds_with_an_error_is_not_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def open_channel(address: str) -> AsyncIterator[Any]:
        async def call(command: Command, timeout: float) -> Command:
            return command.answer(ResponseCode.NO_PERMISSION, "no permission for the watcher")

        yield SimpleNamespace(call=call, address=address)

    monkeypatch.setattr(channel, "open_channel", open_channel)
    row: dict[str, Any] = {"id": 0}
    trio.run(ask_broker, row, BROKER, 1.0)
    assert (row["role"], row["refusal"]) == ("refusing", "no permission for the watcher")


@pytest.mark.parametrize(
    ("certificate", "authority", "reason"),
    [("expired", CA, "certificate has expired"), ("server", OTHER_CA, "unable to get local issuer certificate")],
)
def test_a_master_whose_certificate_is_not_accepted_is_alive_and_not_replaced(
    certificate: str, authority: Path, reason: str
) -> None:
    async def serve(connection: PeerConnection) -> None:
        await connection.read()

    async def scenario() -> None:
        OUTGOING.set(Outgoing(tls=client_context(authority)))
        async with run_peer(serve, server_context(certificate)) as address:

            async def query() -> list[dict[str, Any]]:
                row: dict[str, Any] = {"broker": "broker-a", "id": 0, "address": address, "epoch": None}
                await ask_broker(row, address, 5.0)
                return [row]

            (row,) = await query()
            assert (row["role"], reason in row.get("refusal", "")) == ("refusing", True), row
            with pytest.raises(PromotionRefused, match=f"has a master at {address} .*{reason}.* that answers"):
                await promote("broker-a", query)

    trio.run(scenario)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request"], ids=["nothing", "no TLS"])
def test_a_program_without_tls_at_the_address_of_a_broker_is_not_the_broker(answer: bytes) -> None:
    async def refuse(connection: PeerConnection) -> None:
        await connection.stream.receive()
        await connection.stream.send(answer)

    async def scenario() -> None:
        OUTGOING.set(Outgoing(tls=client_context()))
        async with run_peer(refuse) as address:
            row: dict[str, Any] = {"id": 0}
            await ask_broker(row, address, 5.0)
            assert row["role"] == "unreachable"

    trio.run(scenario)


def test_a_master_that_a_nameserver_still_lists_as_a_slave_is_not_promoted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nameserver was out of reach when it was promoted. A new epoch would fence it."""
    asked: list[int] = []

    @asynccontextmanager
    async def open_channel(address: str) -> AsyncIterator[Any]:
        async def call(command: Command, timeout: float) -> Command:
            asked.append(command.code)
            table = {"brokerRole": "ASYNC_MASTER", "haEpoch": "1-aa", "commitLogMaxOffset": "10"}
            return command.answer(ResponseCode.SUCCESS, body=KVTable(table=table).to_bytes())

        yield SimpleNamespace(call=call, address=address)

    async def scenario() -> None:
        network = Network("one", number=1)
        query = partial(query_brokers, network.client, 1.0, "broker-a")
        (row,) = await query()
        assert (row["id"], row["role"]) == (0, "async_master")
        with pytest.raises(PromotionRefused, match=r"has a master .* that answers"):
            await promote("broker-a", query)

    monkeypatch.setattr(channel, "open_channel", open_channel)
    trio.run(scenario)
    assert asked == [RequestCode.GET_BROKER_RUNTIME_INFO] * 2

"""How the watcher asks for the state of the brokers while nameservers hang, on simulated time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
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
from gantrymq.remoting import channel
from gantrymq.remoting.bodies.routes import BrokerData, ClusterInfo
from gantrymq.remoting.channel import CALL_TIMEOUT_SECONDS
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.command import Command

BROKER = "10.0.0.10:10911"


class Network:
    """Nameservers that know one broker; those in ``hanging`` accept connections and requests and answer none."""

    def __init__(self, *addresses: str) -> None:
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
            data = BrokerData(cluster="C", broker_name="broker-a", broker_addrs={0: BROKER})
            return command.answer(0, body=ClusterInfo(broker_addr_table={"broker-a": data}).to_bytes())

        await trio.lowlevel.checkpoint()
        return SimpleNamespace(address=address, call=call, on_timeout=lambda: self.noted.append(address))

    async def query(self) -> Sequence[dict[str, Any]]:
        """As the watcher does, without asking the broker."""
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

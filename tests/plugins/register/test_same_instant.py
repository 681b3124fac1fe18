"""Of two brokers of one name and id that start at the same instant, one stops. Simulated time, no sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from gantrymq.kernel.errors import StartError
from gantrymq.plugins.register import duplicate_check, link
from gantrymq.plugins.register.duplicate_check import CHECK_DELAYS_S, DuplicateCheck
from gantrymq.plugins.register.link import Link
from gantrymq.remoting.bodies.tables import KVTable
from gantrymq.remoting.channel import Channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.epoch import Epoch
from gantrymq.remoting.errors import ConnectFailed
from gantrymq.remoting.fastjson import dumps

pytestmark = pytest.mark.trio

NAMESERVER = "10.0.0.9:9876"
LOOKING_S = 0.05
"""The nameserver's response time to the query: long enough for two brokers to find nobody."""


class Place:
    """One broker: what it registers, and its responses to queries."""

    def __init__(self, net: Net, address: str, started_ms: int, delay: float = 0.0) -> None:
        env = SimpleNamespace(wall_ms=lambda: started_ms, random_int=lambda bound: 7)
        self.broker: Any = SimpleNamespace(env=env, name="broker-a", broker_id=0, cluster="C", address=address)
        self.address = address
        self.duplicate_check = DuplicateCheck(self.broker)
        self.delay = delay
        self.reason = ""
        self.alive = True
        self.refuses = 0
        """The code with which it refuses every question; 0 if it answers them."""
        announcement: Any = SimpleNamespace(
            register=lambda: Command(RequestCode.REGISTER_BROKER, {"who": address}),
            unregister=lambda: Command(RequestCode.UNREGISTER_BROKER, {"who": ""}),
        )
        self.link = Link(NAMESERVER, announcement, self.duplicate_check, 30.0, 6.0)
        net.places[address] = self

    async def run(self) -> None:
        await trio.sleep(self.delay)
        try:
            await self.link.run()
        except StartError as error:
            self.reason = str(error)
            self.alive = False

    def answer(self, code: int) -> Command:
        if self.refuses:
            return Command(self.refuses, remark="No acl config")
        if code == RequestCode.GET_BROKER_CONFIG:
            text = b"brokerName=broker-a\nbrokerId=0\nbrokerClusterName=C\n"
            return Command(ResponseCode.SUCCESS, body=text)
        return Command(ResponseCode.SUCCESS, body=KVTable(self.duplicate_check.runtime_info()).to_bytes())


class Net:
    """A nameserver with one place, and the brokers, by address."""

    def __init__(self) -> None:
        self.places: dict[str, Place] = {}
        self.registered = ""
        self.history: list[str] = []

    @asynccontextmanager
    async def open_channel(self, address: str) -> AsyncIterator[Any]:
        if address in self.places and not self.places[address].alive:
            raise ConnectFailed(address, "nothing listens there")
        channel = Channel(address)
        channel.call = lambda command, timeout=0.0: self.call(address, command)  # type: ignore[method-assign]
        yield channel

    async def call(self, address: str, command: Command) -> Command:
        if address in self.places:
            return self.places[address].answer(command.code)
        if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            seen = self.registered
            await trio.sleep(LOOKING_S)
            table = {"broker-a": {"cluster": "C", "brokerName": "broker-a", "brokerAddrs": {"0": seen}}} if seen else {}
            return Command(ResponseCode.SUCCESS, body=dumps({"brokerAddrTable": table, "clusterAddrTable": {}}))
        self.registered = (command.ext or {})["who"]
        if self.registered:
            self.history.append(self.registered)
        return Command(ResponseCode.SUCCESS, {})


@pytest.fixture
def net(monkeypatch: pytest.MonkeyPatch) -> Net:
    made = Net()
    for module in (link, duplicate_check):
        monkeypatch.setattr(module, "open_channel", made.open_channel)
    return made


@pytest.fixture
def start(nursery: trio.Nursery) -> Callable[..., None]:
    def run(*places: Place) -> None:
        for place in places:
            nursery.start_soon(place.run)

    return run


@pytest.mark.parametrize("older", [0, 1])
@pytest.mark.parametrize("delay", [0.0, 0.01, 0.04])
async def test_the_later_one_ends_and_names_the_other(
    net: Net, start: Callable[..., None], autojump_clock: trio.testing.MockClock, older: int, delay: float
) -> None:
    places = [Place(net, "10.0.0.1:1", 1000 + older), Place(net, "10.0.0.2:1", 1001 - older, delay)]
    start(*places)
    await trio.sleep(LOOKING_S * 2)
    assert len(set(net.history)) == 2, "both found the place free"
    await trio.sleep(sum(CHECK_DELAYS_S) + 1)
    first, later = places[older], places[1 - older]
    assert (first.alive, later.alive) == (True, False)
    assert later.reason.startswith(
        f"{first.address} is a broker 'broker-a' with the id 0 already, and answers; this one"
    )
    assert later.address in later.reason
    assert net.registered == first.address
    assert first.duplicate_check.runtime_info()["brokerSettled"] == "true"


async def test_one_of_two_brokers_started_in_the_same_millisecond_stops(
    net: Net, start: Callable[..., None], autojump_clock: trio.testing.MockClock
) -> None:
    places = [Place(net, "10.0.0.1:1", 1000), Place(net, "10.0.0.2:1", 1000)]
    places[1].duplicate_check.run = places[1].duplicate_check.run[:-1] + "8"  # another random number
    start(*places)
    await trio.sleep(sum(CHECK_DELAYS_S) + 1)
    assert [place.alive for place in places] == [True, False]


async def test_a_registered_broker_stays_regardless_of_a_newcomers_clock(
    net: Net, start: Callable[..., None], autojump_clock: trio.testing.MockClock
) -> None:
    settled, newcomer = Place(net, "10.0.0.1:1", 5000), Place(net, "10.0.0.2:1", 1000)
    start(settled)
    await trio.sleep(sum(CHECK_DELAYS_S) + 1)
    start(newcomer)
    await trio.sleep(1)
    assert (settled.alive, newcomer.alive) == (True, False)
    assert net.history.count(newcomer.address) == 0


async def test_a_registered_broker_registers_again_at_a_nameserver_that_lost_it(
    net: Net, start: Callable[..., None], autojump_clock: trio.testing.MockClock
) -> None:
    settled, newcomer = Place(net, "10.0.0.1:1", 5000), Place(net, "10.0.0.2:1", 9000)
    start(settled)
    await trio.sleep(sum(CHECK_DELAYS_S) + 1)
    net.registered = ""
    start(newcomer)
    await trio.sleep(0.5)
    assert net.registered == newcomer.address, "the other one is not registered"
    settled.link.poke()
    await trio.sleep(sum(CHECK_DELAYS_S) + 1)
    assert (settled.alive, newcomer.alive, net.registered) == (True, False, settled.address)


async def test_a_single_broker_checks_a_few_times_and_registers_once(
    net: Net, start: Callable[..., None], autojump_clock: trio.testing.MockClock
) -> None:
    place = Place(net, "10.0.0.1:1", 1000)
    start(place)
    await trio.sleep(29)
    assert net.history == [place.address]
    assert place.duplicate_check.runtime_info()["brokerSettled"] == "true"


async def test_a_rival_that_has_gone_is_none(
    net: Net, start: Callable[..., None], autojump_clock: trio.testing.MockClock
) -> None:
    gone, place = Place(net, "10.0.0.1:1", 1000), Place(net, "10.0.0.2:1", 2000)
    gone.alive, net.registered = False, gone.address
    start(place)
    await trio.sleep(sum(CHECK_DELAYS_S) + 1)
    assert (place.alive, net.registered) == (True, place.address)


async def test_a_newcomer_that_a_registered_broker_refuses_ends_and_says_what_to_set(
    net: Net, start: Callable[..., None], autojump_clock: trio.testing.MockClock
) -> None:
    other, newcomer = Place(net, "10.0.0.1:1", 1000), Place(net, "10.0.0.2:1", 2000)
    other.refuses, net.registered = ResponseCode.NO_PERMISSION, other.address
    start(newcomer)
    await trio.sleep(1)
    assert (newcomer.alive, net.history) == (False, [])
    assert newcomer.reason.startswith(f"{other.address} is registered as the broker 'broker-a' with the id 0")
    assert "plugin.acl.keys" in newcomer.reason


@pytest.mark.parametrize("case", ["busy", "settled", "promoted"])
async def test_an_address_that_refuses_is_replaced_with_a_warning_where_it_may_be_another_brokers(
    net: Net, case: str
) -> None:
    other, place = Place(net, "10.0.0.1:1", 1000), Place(net, "10.0.0.2:1", 2000)
    other.refuses = ResponseCode.SYSTEM_BUSY if case == "busy" else ResponseCode.NO_PERMISSION
    net.registered = other.address
    if case == "settled":
        place.duplicate_check.settle()
    elif case == "promoted":
        place.duplicate_check.replication = cast("Any", SimpleNamespace(epoch=Epoch(1, "a")))
    with capture_logs() as logs:
        async with net.open_channel(NAMESERVER) as channel:
            assert await place.duplicate_check.check(channel, 6.0)
    [warning] = [each for each in logs if each["event"] == "registered_broker_refuses"]
    assert (warning["log_level"], warning["address"], warning["code"]) == ("warning", other.address, other.refuses)

"""A broker registers at its start, after changes and every half minute, and unregisters at its end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest
import structlog.testing
import trio
import trio.testing

from gantrymq.kernel import hookimpl, hookspecs
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.manager import PluginManager
from gantrymq.kernel.processors import Request
from gantrymq.nameserver.server import NameServer, NameServerConfig
from gantrymq.plugins.ha.epochs import Epochs
from gantrymq.plugins.interfaces import Registration, Replication, TopicTable
from gantrymq.plugins.register import body as announcement_body
from gantrymq.plugins.register import link
from gantrymq.plugins.register.body import Announcement
from gantrymq.plugins.register.link import Link
from gantrymq.remoting.bodies.registration import RegisterBrokerBody, body_crc32
from gantrymq.remoting.bodies.routes import TopicRouteData
from gantrymq.remoting.bodies.tables import DataVersion
from gantrymq.remoting.bodies.topics import TopicConfig, TopicConfigSerializeWrapper
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command, decode, encode
from gantrymq.remoting.epoch import EPOCH_FIELD, Epoch
from gantrymq.remoting.errors import CallTimeout, ChannelClosed, ConnectFailed
from gantrymq.remoting.frame import FRAME_MAX_BYTES, cut_frames
from gantrymq.remoting.headers.header import read_header
from gantrymq.remoting.headers.nameserver import BrokerHeader, RegisterBrokerHeader, RouteHeader
from gantrymq.testing.memory_env import MemoryEnv

FIRST, SECOND = "127.0.0.1:9876", "127.0.0.2:9876"


class FakeNameserver:
    """Answers calls over fake channels; can be away, refuse, be silent, and lose its connections."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.away = False
        self.silent = False
        self.code = 0
        self.body = b""
        self.ext: dict[str, str] = {}
        self.refused: dict[int, int] = {}
        """The codes of responses by those of requests."""
        self.calls: list[tuple[float, Command]] = []
        self.attempts: list[float] = []
        self._lost = trio.Event()

    @property
    def codes(self) -> list[int]:
        return [command.code for _, command in self.calls]

    def lose_connections(self) -> None:
        self._lost.set()
        self._lost = trio.Event()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[FakeChannel]:
        self.attempts.append(trio.current_time())
        await trio.lowlevel.checkpoint()
        if self.away:
            raise ConnectFailed(self.address, "nobody listens")
        yield FakeChannel(self, self._lost)


class FakeChannel(Channel):
    def __init__(self, nameserver: FakeNameserver, lost: trio.Event) -> None:
        super().__init__(nameserver.address)
        self._nameserver = nameserver
        self._hung_up = lost

    @property
    def closed(self) -> bool:
        return self._hung_up.is_set()

    async def wait_closed(self) -> None:
        await self._hung_up.wait()

    async def call(self, command: Command, timeout: float = 3.0) -> Command:
        if self.closed:
            raise ChannelClosed(self._nameserver.address, "closed")
        if self._nameserver.silent:
            await trio.sleep(timeout)
            raise CallTimeout(self._nameserver.address, "silent")
        await trio.lowlevel.checkpoint()
        if command.code == RequestCode.GET_BROKER_CLUSTER_INFO and not self._nameserver.code:
            return command.answer(0)  # it does not tell who is there, which these tests do not ask about
        self._nameserver.calls.append((trio.current_time(), command))
        code = self._nameserver.code or self._nameserver.refused.get(command.code, 0)
        if code:
            return command.answer(code, "broken")
        return command.answer(0, None, self._nameserver.ext, self._nameserver.body)


@pytest.fixture
def nameservers(monkeypatch: pytest.MonkeyPatch) -> dict[str, FakeNameserver]:
    known = {address: FakeNameserver(address) for address in (FIRST, SECOND)}
    monkeypatch.setattr(link, "open_channel", lambda address: known[address].open())
    return known


@asynccontextmanager
async def running(broker: Any) -> AsyncIterator[trio.Nursery]:
    async with trio.open_nursery() as nursery:
        for tasks in broker.manager.hook.register_tasks(broker=broker):
            for task in tasks:
                nursery.start_soon(task.run)
        broker.manager.hook.started(broker=broker)
        yield nursery
        nursery.cancel_scope.cancel()


def make(make_broker: Any, *addresses: str, **settings: str) -> Any:
    return make_broker("topics", "register", **{"broker.nameservers": ";".join(addresses or (FIRST,)), **settings})


@pytest.mark.trio
async def test_the_broker_registers_at_every_nameserver_at_its_start(
    make_broker: Any, nameservers: dict[str, FakeNameserver], autojump_clock: trio.testing.MockClock
) -> None:
    broker = make(make_broker, FIRST, SECOND, FIRST)
    async with running(broker):
        assert await broker.registry.get(Registration).wait_first(1.0)
        assert [nameserver.codes for nameserver in nameservers.values()] == [[103], [103]]


@pytest.mark.trio
async def test_a_broker_does_not_register_before_its_sockets_listen(
    make_broker: Any, nameservers: dict[str, FakeNameserver], autojump_clock: trio.testing.MockClock
) -> None:
    broker = make(make_broker)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.manager.hook.register_tasks(broker=broker)[0][0].run)
        assert not await broker.registry.get(Registration).wait_first(100.0)
        assert nameservers[FIRST].attempts == []
        nursery.cancel_scope.cancel()


def test_registrations_are_readable_by_rocketmqs_nameservers(make_broker: Any) -> None:
    broker = make(make_broker, **{"broker.id": "3"})
    broker.registry.get(TopicTable).for_send("orders", "TBW102", 4)
    command = Announcement(broker).register()
    header = read_header(RegisterBrokerHeader, command.ext)
    assert (header.broker_name, header.cluster_name, header.broker_id) == ("broker-a", "DefaultCluster", 3)
    assert (header.broker_addr, header.ha_server_addr) == ("127.0.0.1:10911", "127.0.0.1:10912")
    assert (header.compressed, header.body_crc32) == (False, body_crc32(command.body))
    body = RegisterBrokerBody.decode(command.body)
    wrapper = body.topic_config_serialize_wrapper
    assert body.filter_server_list == []
    assert wrapper.topic_config_table["orders"].write_queue_nums == 4
    assert wrapper.data_version.counter > 0
    assert command.body == body.encode(), "the parts put together are the whole"
    farewell = read_header(BrokerHeader, Announcement(broker).unregister().ext)
    assert (farewell.broker_addr, farewell.broker_id) == ("127.0.0.1:10911", 3)


def test_the_next_registration_has_changed_topics_and_lacks_deleted_ones(make_broker: Any) -> None:
    broker = make(make_broker)
    topics = broker.registry.get(TopicTable)
    announcement = Announcement(broker)
    topics.for_send("orders", "TBW102", 4)
    topics.for_send("gone", "TBW102", 4)
    announcement.register()
    broker.ask(17, {
        "topic": "orders", "defaultTopic": "", "readQueueNums": 2, "writeQueueNums": 2, "perm": 4,
        "topicFilterType": "SINGLE_TAG",
    })  # fmt: skip
    broker.ask(215, {"topic": "gone"})
    table = RegisterBrokerBody.decode(announcement.register().body).topic_config_serialize_wrapper.topic_config_table
    assert (table["orders"].read_queue_nums, table["orders"].perm) == (2, 4)
    assert "gone" not in table


def test_a_large_registration_is_compressed_and_has_each_change(
    make_broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def registered() -> dict[str, tuple[int, int, int]]:
        command = announcement.register()
        header = read_header(RegisterBrokerHeader, command.ext)
        assert (header.compressed, header.body_crc32) == (True, body_crc32(command.body))
        body = RegisterBrokerBody.decode(command.body, compressed=True)
        wrapper = body.topic_config_serialize_wrapper
        assert body.filter_server_list == []
        assert wrapper.data_version.counter > 0
        table = wrapper.topic_config_table
        assert set(table) == set(topics.names())
        return {name: (each.read_queue_nums, each.write_queue_nums, each.perm) for name, each in table.items()}

    monkeypatch.setattr(announcement_body, "COMPRESSED_FROM_BYTES", 500)
    broker = make(make_broker)
    topics = broker.registry.get(TopicTable)
    announcement = Announcement(broker)
    topics.for_send("orders", "TBW102", 4)
    topics.for_send("gone", "TBW102", 4)
    assert registered()["orders"] == (4, 4, 6)
    assert announcement.register().body is announcement.register().body, "compressed once"
    broker.ask(17, {
        "topic": "orders", "defaultTopic": "", "readQueueNums": 2, "writeQueueNums": 3, "perm": 4,
        "topicFilterType": "SINGLE_TAG",
    })  # fmt: skip
    assert registered()["orders"] == (2, 3, 4)
    broker.ask(215, {"topic": "gone"})
    assert "gone" not in registered()
    monkeypatch.undo()
    assert not read_header(RegisterBrokerHeader, announcement.register().ext).compressed
    plain = RegisterBrokerBody.decode(announcement.register().body).topic_config_serialize_wrapper
    assert set(plain.topic_config_table) == set(topics.names())


@pytest.mark.trio
@pytest.mark.slow
async def test_topics_of_more_than_a_frame_are_registered(make_broker: Any) -> None:
    class Advertiser:
        name = "advertiser"

        @hookimpl
        def advertise(self) -> dict[str, object]:
            return {"topic_config_serialize_wrapper": TopicConfigSerializeWrapper(table, DataVersion(1, 1))}

    table = {name: TopicConfig(name, 8, 8) for name in (f"{number:0127}" for number in range(45_000))}
    async with trio.open_nursery() as nursery:
        nameserver = NameServer(NameServerConfig(port=0))
        await nursery.start(nameserver.serve)
        settings = {"broker.nameservers": nameserver.address, "plugin.register.timeout": "60s"}
        broker = make_broker("register", **settings)
        broker.manager = PluginManager(
            [*((info.origin, info.plugin) for info in broker.manager.plugins), ("x", Advertiser())], hookspecs
        )
        assert len(TopicConfigSerializeWrapper(table).to_bytes()) > FRAME_MAX_BYTES
        async with running(broker):
            assert await broker.registry.get(Registration).wait_first(60.0)
            assert nameserver.routes.topics().topic_list == list(table)
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_a_registration_that_fits_no_frame_is_an_error_in_the_log_and_tried_again() -> None:
    size = FRAME_MAX_BYTES
    announcement: Any = SimpleNamespace(
        register=lambda: Command(RequestCode.REGISTER_BROKER, {}, bytes(size)),
        unregister=lambda: Command(RequestCode.UNREGISTER_BROKER, {}),
    )

    async def check(*_: object) -> bool:
        return False

    duplicates: Any = SimpleNamespace(
        check=check, monotonic=lambda: 0.0, settle=lambda: None, is_fenced=False, lost=True, replication=None
    )

    async def answer(stream: trio.SocketStream) -> None:
        received = bytearray()
        while data := await stream.receive_some(65536):
            received += data
            frames, used = cut_frames(received)
            del received[:used]
            for each in frames:
                await stream.send_all(encode(decode(each).answer(0)))

    async with trio.open_nursery() as nursery:
        (listener, *_) = await nursery.start(partial(trio.serve_tcp, answer, 0, host="127.0.0.1"))
        to = Link(f"127.0.0.1:{listener.socket.getsockname()[1]}", announcement, duplicates, 30.0, 6.0)
        with structlog.testing.capture_logs() as logs:
            nursery.start_soon(to.run)
            with trio.fail_after(60):
                await to.tried.wait()
            assert not to.registered
            size = 100
            with trio.fail_after(60):
                while not to.registered:  # noqa: ASYNC110 - there is no event for it
                    await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    [failed] = [each for each in logs if each["log_level"] == "error"]
    assert failed["event"] == "registration_too_large"
    assert f"{FRAME_MAX_BYTES} is the limit" in failed["reason"]


def test_an_ipv6_address_gets_an_ipv6_ha_address(make_broker: Any) -> None:
    broker = make(make_broker)
    broker.address = "[::1]:10911"
    assert read_header(RegisterBrokerHeader, Announcement(broker).register().ext).ha_server_addr == "[::1]:10912"


def test_plugins_with_the_same_registration_data_are_named(make_broker: Any) -> None:
    class Second:
        name = "second"

        @hookimpl
        def advertise(self) -> dict[str, object]:
            return {"topic_config_serialize_wrapper": None}

    broker = make(make_broker)
    broker.manager = PluginManager(
        [*((info.origin, info.plugin) for info in broker.manager.plugins), ("x", Second())], hookspecs
    )
    with pytest.raises(StartError, match="two plugins advertise topic_config_serialize_wrapper"):
        Announcement(broker).register()


@pytest.mark.trio
async def test_a_broker_registers_each_half_minute_and_soon_after_a_change(
    make_broker: Any, nameservers: dict[str, FakeNameserver], autojump_clock: trio.testing.MockClock
) -> None:
    broker = make(make_broker)
    topics = broker.registry.get(TopicTable)
    async with running(broker):
        start = trio.current_time()
        await trio.sleep(61)
        assert [round(at - start) for at, _ in nameservers[FIRST].calls] == [0, 30, 60]
        for name in ("a", "b", "c"):
            topics.for_send(name, "TBW102", 4)
        changed = trio.current_time()
        await trio.sleep(1)
        assert len(nameservers[FIRST].calls) == 4, "three topics at once are one registration"
        at, command = nameservers[FIRST].calls[-1]
        assert at - changed < 0.02
        table = RegisterBrokerBody.decode(command.body).topic_config_serialize_wrapper.topic_config_table
        assert {"a", "b", "c"} <= table.keys()
        assert len(nameservers[FIRST].attempts) == 1, "over one connection"


ORDERS = {
    "topic": "orders", "defaultTopic": "", "readQueueNums": "2", "writeQueueNums": "2", "perm": "4",
    "topicFilterType": "SINGLE_TAG",
}  # fmt: skip


async def create_orders(broker: Any) -> int:
    """The code of the answer to the request of an administrator."""
    processors = {
        code: each for found in broker.manager.hook.register_processors(broker=broker) for code, each in found.items()
    }
    peer: Any = None
    return (await processors[RequestCode.UPDATE_AND_CREATE_TOPIC](Request(peer, Command(17, ORDERS)))).code


@pytest.mark.trio
async def test_a_topic_is_registered_before_the_administrator_has_the_response(
    make_broker: Any, nameservers: dict[str, FakeNameserver]
) -> None:
    broker = make(make_broker, FIRST, SECOND)
    nameservers[SECOND].away = True
    async with running(broker):
        await broker.registry.get(Registration).wait_first(1.0)
        assert await create_orders(broker) == 0
        _, command = nameservers[FIRST].calls[-1]
        table = RegisterBrokerBody.decode(command.body).topic_config_serialize_wrapper.topic_config_table
        assert table["orders"].read_queue_nums == 2


@pytest.mark.trio
@pytest.mark.parametrize("fault", ["silent", "lost"])
async def test_the_wait_for_a_registration_ends_by_time_or_with_the_connection(
    make_broker: Any, nameservers: dict[str, FakeNameserver], autojump_clock: trio.testing.MockClock, fault: str
) -> None:
    broker = make(make_broker)
    nameserver = nameservers[FIRST]
    async with running(broker):
        registration = broker.registry.get(Registration)
        await registration.wait_first(1.0)
        before = trio.current_time()
        if fault == "silent":
            nameserver.silent = True
            await registration.wait_current(2.0)
            assert trio.current_time() - before == pytest.approx(2.0)
        else:
            nameserver.away = True
            nameserver.lose_connections()
            await registration.wait_current(2.0)
            assert trio.current_time() - before < 0.1


@pytest.mark.trio
async def test_an_unreachable_nameserver_delays_no_other_is_logged_once_and_tried_again(
    make_broker: Any, nameservers: dict[str, FakeNameserver], autojump_clock: trio.testing.MockClock
) -> None:
    broker = make(make_broker, FIRST, SECOND)
    away = nameservers[SECOND]
    away.away = True
    with structlog.testing.capture_logs() as logs:
        async with running(broker):
            assert await broker.registry.get(Registration).wait_first(1.0)
            assert nameservers[FIRST].codes == [103]
            await trio.sleep(120)
            gaps = [round(later - sooner, 2) for sooner, later in zip(away.attempts, away.attempts[1:], strict=False)]
            assert gaps[:9] == [0.25, 0.5, 1, 2, 4, 8, 16, 30, 30]
            away.away = False
            await trio.sleep(31)
            assert away.codes == [103]
            away.away = True
            away.lose_connections()
            before = len(away.attempts)
            await trio.sleep(1)
            assert len(away.attempts) - before == 2, "the first pause is a short one again"
    logged = [(entry["event"], entry.get("repeated")) for entry in logs if entry.get("address") == SECOND]
    first, *again = [repeated for event, repeated in logged[: logged.index(("nameserver_registered", None))]]
    assert first == 0
    assert again, "every half minute of an outage has a line"
    after = logged[logged.index(("nameserver_registered", None)) :]
    assert after == [("nameserver_registered", None), ("outage_ended", None), ("nameserver_unreachable", 0)]
    assert next(entry for entry in logs if entry["event"] == "nameserver_unreachable")["reason"] == "nobody listens"


@pytest.mark.trio
@pytest.mark.parametrize("fault", ["refuses", "silent"])
async def test_an_answer_that_is_none_is_tried_again_and_never_fatal(
    make_broker: Any, nameservers: dict[str, FakeNameserver], autojump_clock: trio.testing.MockClock, fault: str
) -> None:
    broker = make(make_broker)
    nameserver = nameservers[FIRST]
    nameserver.code, nameserver.silent = (1, False) if fault == "refuses" else (0, True)
    with structlog.testing.capture_logs() as logs:
        async with running(broker):
            assert not await broker.registry.get(Registration).wait_first(20.0)
            nameserver.code, nameserver.silent = 0, False
            await trio.sleep(40)
            assert await broker.registry.get(Registration).wait_first(0)
    reason = next(entry for entry in logs if entry["event"] == "nameserver_unreachable")["reason"]
    assert reason == ("[1] broken" if fault == "refuses" else "silent")


@pytest.mark.trio
async def test_a_nameserver_that_restarted_learns_of_the_broker_at_once(
    make_broker: Any, nameservers: dict[str, FakeNameserver], autojump_clock: trio.testing.MockClock
) -> None:
    broker = make(make_broker)
    async with running(broker):
        await trio.sleep(5)
        nameservers[FIRST].lose_connections()
        await trio.sleep(1)
        assert nameservers[FIRST].codes == [103, 103]


@pytest.mark.trio
async def test_a_broker_without_nameservers_does_not_wait_for_registration(
    make_broker: Any, autojump_clock: trio.testing.MockClock
) -> None:
    broker = make(make_broker, ";")
    async with running(broker):
        assert not await broker.registry.get(Registration).wait_first(1000.0)
        assert trio.current_time() < 1000


@pytest.mark.trio
async def test_the_wait_for_the_first_answer_is_bounded(
    make_broker: Any, nameservers: dict[str, FakeNameserver], autojump_clock: trio.testing.MockClock
) -> None:
    nameservers[FIRST].silent = True
    broker = make(make_broker)
    async with running(broker):
        before = trio.current_time()
        assert not await broker.registry.get(Registration).wait_first(1.0)
        assert trio.current_time() - before == pytest.approx(1.0)


@pytest.mark.trio
async def test_a_draining_broker_unregisters_at_once_and_does_not_register_again(
    make_broker: Any, nameservers: dict[str, FakeNameserver], autojump_clock: trio.testing.MockClock
) -> None:
    broker = make(make_broker, FIRST, SECOND)
    nameservers[SECOND].away = True
    async with running(broker):
        await trio.sleep(1)
        broker.manager.hook.stopping(broker=broker)
        nameservers[SECOND].away = False
        await trio.sleep(100)
        assert nameservers[FIRST].codes == [103, 104]
        assert nameservers[SECOND].codes == [], "never heard of it"
    assert nameservers[FIRST].codes == [103, 104]


@pytest.mark.trio
async def test_a_cancelled_broker_unregisters(
    make_broker: Any, nameservers: dict[str, FakeNameserver], autojump_clock: trio.testing.MockClock
) -> None:
    broker = make(make_broker)
    async with running(broker):
        await trio.sleep(1)
    assert nameservers[FIRST].codes == [103, 104]


@pytest.mark.trio
@pytest.mark.parametrize("fault", ["away", "silent", "refuses"])
async def test_unregistering_delays_the_stop_by_at_most_two_seconds(
    make_broker: Any, nameservers: dict[str, FakeNameserver], autojump_clock: trio.testing.MockClock, fault: str
) -> None:
    broker = make(make_broker)
    nameserver = nameservers[FIRST]
    async with running(broker):
        await trio.sleep(1)
        nameserver.away, nameserver.silent, nameserver.code = (
            fault == "away",
            fault == "silent",
            int(fault == "refuses"),
        )
        before = trio.current_time()
    assert trio.current_time() - before <= 2.0


@pytest.mark.trio
async def test_a_real_nameserver_knows_the_routes_from_start_to_end(make_broker: Any) -> None:
    async def route(channel: Any, topic: str) -> Command:
        return await channel.call(Command(105, RouteHeader(topic=topic).to_ext()))

    async with trio.open_nursery() as nursery:
        nameserver = NameServer(NameServerConfig(port=0))
        await nursery.start(nameserver.serve)
        broker = make(make_broker, nameserver.address)
        topics = broker.registry.get(TopicTable)
        async with open_channel(nameserver.address) as channel:
            async with running(broker):
                assert await broker.registry.get(Registration).wait_first(10.0)
                found = TopicRouteData.from_bytes((await route(channel, "TBW102")).body)
                assert found.broker_datas[0].broker_addrs == {0: "127.0.0.1:10911"}
                assert found.queue_datas[0].write_queue_nums == 8
                topics.for_send("orders", "TBW102", 4)
                with trio.fail_after(10):
                    while (await route(channel, "orders")).code != 0:
                        await trio.lowlevel.checkpoint()
            assert (await route(channel, "TBW102")).code == 17
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_the_first_nameserver_returns_the_ordered_topics(
    make_broker: Any, nameservers: dict[str, FakeNameserver], autojump_clock: trio.testing.MockClock
) -> None:
    broker = make(make_broker, FIRST, SECOND)
    topics = broker.registry.get(TopicTable)
    for name in ("steady", "loose"):
        topics.for_send(name, "TBW102", 4)
    nameservers[FIRST].body = b'{"table":{"steady":"broker-a:4","unknown":"broker-a:4"}}'
    nameservers[SECOND].body = b'{"table":{"loose":"broker-a:4"}}'
    async with running(broker):
        await trio.sleep(1)
        assert (topics.get("steady").order, topics.get("loose").order) == (True, False)
        calls = len(nameservers[FIRST].calls)
        assert calls == 2, "one registration for the change, and no more"
        nameservers[FIRST].body = b'{"table":{}}'
        await trio.sleep(31)
        assert not topics.get("steady").order


@pytest.mark.trio
async def test_an_order_that_cannot_be_read_changes_nothing(
    make_broker: Any, nameservers: dict[str, FakeNameserver], autojump_clock: trio.testing.MockClock
) -> None:
    broker = make(make_broker)
    nameservers[FIRST].body = b"\xff{"
    with structlog.testing.capture_logs() as logs:
        async with running(broker):
            await trio.sleep(1)
            assert await broker.registry.get(Registration).wait_first(0)
    assert "ordered_topics_unreadable" in [entry["event"] for entry in logs]


@pytest.mark.trio
async def test_a_hanging_nameserver_delays_no_registration_at_another(
    make_broker: Any, nameservers: dict[str, FakeNameserver], autojump_clock: trio.testing.MockClock
) -> None:
    broker = make(make_broker, FIRST, SECOND)
    hangs, other = nameservers[FIRST], nameservers[SECOND]
    async with running(broker):
        assert await broker.registry.get(Registration).wait_first(1.0)
        hangs.silent = True
        for number in range(3):
            before = trio.current_time()
            broker.registry.get(TopicTable).for_send(f"topic-{number}", "TBW102", 4)
            await trio.sleep(1.0)
            at, command = other.calls[-1]
            assert at - before < 0.02
            assert f"topic-{number}".encode() in command.body
        assert len(hangs.calls) == 1
        broker.manager.hook.stopping(broker=broker)
        await trio.sleep(0.1)
        assert other.codes[-1] == 104


@pytest.mark.trio
async def test_one_lost_nameserver_of_three_does_not_affect_registration_at_the_others(make_broker: Any) -> None:
    async def hang(stream: trio.SocketStream) -> None:
        async with stream:
            await trio.sleep_forever()

    async def known(topic: str) -> bool:
        async with open_channel(alive) as channel:
            answer = await channel.call(Command(105, RouteHeader(topic=topic).to_ext()))
            return answer.code == 0

    async with trio.open_nursery() as nursery:
        alive = await nursery.start(NameServer(NameServerConfig(port=0)).serve)
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, hang, [listener])
        hanging = f"127.0.0.1:{listener.socket.getsockname()[1]}"
        broker = make(make_broker, "127.0.0.1:1", hanging, alive, **{"plugin.register.timeout": "60s"})
        async with running(broker):
            for topic in ("first", "second"):
                broker.registry.get(TopicTable).for_send(topic, "TBW102", 4)
                with trio.fail_after(30):
                    while not await known(topic):  # noqa: ASYNC110 - there is no event for it
                        await trio.sleep(0.01)
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_a_slave_that_came_before_its_master_asks_soon_and_then_less_often(
    make_broker: Any, nameservers: dict[str, FakeNameserver], autojump_clock: trio.testing.MockClock
) -> None:
    broker = make(make_broker, **{"broker.id": "1"})
    notified: list[tuple[str, str]] = []
    broker.registry.get(Registration).on_master(lambda *addresses: notified.append(addresses))
    nameserver = nameservers[FIRST]

    def pauses() -> list[float]:
        return [round(later - sooner, 2) for (sooner, _), (later, _) in pairwise(nameserver.calls)]

    async with running(broker):
        await trio.sleep(70)
        assert pauses() == [0.25, 0.5, 1, 2, 4, 8, 16, 30]
        nameserver.ext = {"masterAddr": "10.0.0.1:10911", "haServerAddr": "10.0.0.1:10912"}
        await trio.sleep(61)
        assert pauses()[-2:] == [30, 30]
        assert notified[-1] == ("10.0.0.1:10911", "10.0.0.1:10912")
        nameserver.ext = {}
        await trio.sleep(31.5)
        assert pauses()[-6:] == [30, 0.25, 0.5, 1, 2, 4]
        assert notified[-1] == ("", "")


class MasterReplication:
    """The part of a master's plugin ``ha`` that links use; ``answered``: when a nameserver renewed the lease."""

    fenced = ""
    has_lease = True
    epoch_query_interval = 1.0
    ha_address = "127.0.0.1:10912"
    epoch = Epoch()

    def __init__(self) -> None:
        self.answered: list[float] = []

    def learn_epoch(self, epoch: Epoch, source: str) -> None:
        """Do nothing, because a master knows its own epoch."""

    def nameserver_answered(self, asked_at: float) -> None:
        self.answered.append(trio.current_time())


@pytest.mark.trio
@pytest.mark.parametrize(("code", "renews"), [(0, True), (3, True), (1, False), (2, False), (16, False)])
async def test_a_nameserver_that_refuses_to_say_the_epoch_does_not_renew_the_lease(
    make_broker: Any, nameservers: dict[str, FakeNameserver], autojump_clock: trio.testing.MockClock,
    code: int, renews: bool,
) -> None:  # fmt: skip
    """A nameserver without this request (3) has no epochs, and is asked for duplicates instead."""
    broker, replication = make(make_broker), MasterReplication()
    broker.registry.provide(Replication, replication)
    nameservers[FIRST].ext = {EPOCH_FIELD: str(Epoch())}
    nameservers[FIRST].refused[RequestCode.QUERY_DATA_VERSION] = code
    with structlog.testing.capture_logs() as logs:
        async with running(broker):
            await trio.sleep(9.5)
            queries = nameservers[FIRST].codes.count(RequestCode.QUERY_DATA_VERSION)
            assert queries >= 5
            assert len(replication.answered) == 1 + (queries if renews else 0), "the registration, and answers"
            assert len(nameservers[FIRST].attempts) == 1, "the routes stay"
            nameservers[FIRST].refused.clear()
            await trio.sleep(3)
    logged = [each["event"] for each in logs if each["log_level"] == "warning"]
    assert logged == ([] if renews else ["nameserver_refused_query", "outage_ended"])


class SlaveReplication:
    """The part of a slave's plugin ``ha`` that links use."""

    fenced = ""
    has_lease = True
    epoch_query_interval = inf
    ha_address = ""

    def __init__(self, epochs: Epochs) -> None:
        self._epochs = epochs

    @property
    def epoch(self) -> Epoch:
        return self._epochs.known

    def learn_epoch(self, epoch: Epoch, source: str) -> None:
        self._epochs.learn(epoch, source, is_master=False)

    def nameserver_answered(self, asked_at: float) -> None:
        """Do nothing, because a slave has no lease."""

    def master_is(self, broker: str, ha: str) -> None:
        """Do nothing, because this slave follows nobody."""


@pytest.mark.trio
async def test_a_slave_that_cannot_store_a_new_epoch_keeps_running_and_stores_it_when_there_is_room(
    make_broker: Any, nameservers: dict[str, FakeNameserver], autojump_clock: trio.testing.MockClock
) -> None:
    """The nameserver reports the epoch of a promotion, and the disk is full."""
    disk = MemoryEnv()
    epochs = Epochs(disk, "store")
    epochs.begin_as_slave()
    broker = make(make_broker, **{"broker.id": "1"})
    broker.registry.provide(Replication, SlaveReplication(epochs))
    disk.free_bytes = 0
    nameservers[FIRST].ext = {EPOCH_FIELD: "7-x"}
    with structlog.testing.capture_logs() as logs:
        async with running(broker):
            await trio.sleep(5)
            assert "space" in next(each for each in logs if each["event"] == "nameserver_unreachable")["reason"].lower()
            assert epochs.known == Epoch()
            disk.free_bytes = None
            await trio.sleep(60)
            assert epochs.known == Epoch(7, "x")

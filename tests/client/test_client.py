"""Connecting, failing nameservers, queries to the cluster, and the cost of the import."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

import gantrymq
from gantrymq import MessageQueue
from gantrymq.client.connections import Connections
from gantrymq.client.nameservers import Nameservers
from gantrymq.remoting.channel import Channel
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from support.peer import PeerConnection, run_peer

Cluster = Callable[..., Any]
QUEUE = MessageQueue(topic="T", broker_name="broker-a", queue_id=1)


@pytest.mark.anyio
async def test_a_failed_connect_names_all_tried_addresses() -> None:
    with pytest.raises(gantrymq.ConnectFailed, match=r"127.0.0.1:1: no nameserver can be reached: connection refused"):
        async with gantrymq.connect("127.0.0.1:1"):
            pytest.fail("nobody is there")
    with pytest.raises(gantrymq.ConnectError, match=r"127.0.0.1:1: connection refused.*; 127.0.0.1:2: connection"):
        async with gantrymq.connect("127.0.0.1:1;127.0.0.1:2"):
            pytest.fail("nobody is there")


def test_a_client_made_without_connect_names_it() -> None:
    address: Any = "127.0.0.1:9876"
    with pytest.raises(TypeError, match=r"gantrymq.connect\(\)"):
        gantrymq.Client(address)


@pytest.mark.anyio
async def test_an_invalid_address_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="host:port"):
        async with gantrymq.connect("localhost"):
            pytest.fail("no address")


@pytest.mark.anyio
async def test_the_next_nameserver_is_used_when_one_is_down_or_closes_the_connection(fake_cluster: Cluster) -> None:
    async def hang_up(connection: PeerConnection) -> None:
        await connection.read()

    async with fake_cluster(T=2) as cluster, run_peer(hang_up) as broken:
        for first in ("127.0.0.1:1", broken):
            async with gantrymq.connect(f"{first};{cluster.address}") as client:
                assert await client.admin.topics() == ["T"]


@pytest.mark.anyio
async def test_a_nameserver_that_returns_an_error_is_named(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=2) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.nameserver.answers[206] = lambda request: request.answer(1, "disk on fire")
        with pytest.raises(gantrymq.BrokerError, match=rf"{cluster.address} answered 1 SYSTEM_ERROR: disk on fire"):
            await client.admin.topics()


@pytest.mark.anyio
async def test_a_broker_given_as_nameserver_is_reported_as_a_broker(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=2) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.nameserver.answers[105] = lambda request: request.answer(3, " request type 105 not supported")
        cluster.nameserver.answers[206] = lambda request: request.answer(3, " request type 206 not supported")
        async with client.producer() as producer:
            with pytest.raises(gantrymq.NotANameserver, match=rf"{cluster.address} is not a nameserver.*9876"):
                await producer.send("T", b"x")
        with pytest.raises(gantrymq.NotANameserver, match="9876"):
            async with client.consumer("T", "g"):
                pytest.fail("there is nothing to consume")
        with pytest.raises(gantrymq.NotANameserver, match="9876"):
            await client.admin.topics()


@pytest.mark.anyio
async def test_a_name_that_is_not_a_string_is_rejected(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=2) as cluster, gantrymq.connect(cluster.address) as client:
        async with client.producer() as producer:
            with pytest.raises(gantrymq.InvalidMessage, match="a topic and a body, or a Message, not list"):
                await producer.send(["T"], b"x")  # type: ignore[arg-type]
            with pytest.raises(gantrymq.InvalidName, match="a topic's name is a str, not list"):
                await producer.send(gantrymq.Message(["T"], b"x"))  # type: ignore[arg-type]
        with pytest.raises(gantrymq.InvalidName, match="a group's name is a str, not NoneType"):
            async with client.consumer("T", None):  # type: ignore[arg-type]
                pytest.fail("no group")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"brokerDatas":7}', b"\xff"])
@pytest.mark.anyio
async def test_an_unreadable_route_is_reported(fake_cluster: Cluster, body: bytes) -> None:
    async with fake_cluster(T=2) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.nameserver.answers[105] = lambda request: request.answer(0, body=body)
        with pytest.raises(gantrymq.BadResponse, match=cluster.address):
            await client.admin.route("T")


@pytest.mark.anyio
async def test_topics_and_offsets_can_be_queried(fake_cluster: Cluster) -> None:
    async with fake_cluster(brokers=2, T=2, U=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.store("T", 1, b"x")
        admin = client.admin
        assert await admin.topics() == ["T", "U"]
        assert [data.broker_name for data in (await admin.route("T")).queue_datas] == ["broker-a", "broker-b"]
        assert [(one.broker_name, one.queue_id) for one in await admin.queues("T")] == [
            ("broker-a", 0), ("broker-a", 1), ("broker-b", 0), ("broker-b", 1),
        ]  # fmt: skip
        assert (await admin.cluster()).cluster_addr_table == {"C": ["broker-a", "broker-b"]}
        assert await admin.max_offset(QUEUE) == 1
        assert await admin.min_offset(QUEUE) == 0
        assert await admin.search_offset(QUEUE, 5) == 1
        assert await admin.consumer_offset("g", QUEUE) is None
        await admin.set_consumer_offset("g", QUEUE, 7)
        assert await admin.consumer_offset("g", QUEUE) == 7
        with pytest.raises(gantrymq.NoRoute, match="topic X does not exist"):
            await admin.route("X")
        with pytest.raises(gantrymq.NoRoute, match="no route to topic X"):
            await admin.queues("X")


@pytest.mark.anyio
async def test_a_topic_is_created_on_every_master_and_its_route_awaited(fake_cluster: Cluster) -> None:
    async with fake_cluster(brokers=2, U=1) as cluster, gantrymq.connect(cluster.address) as client:
        asked: list[str] = []

        def soon(request: Any) -> Any:
            # the nameserver hears of the topic a moment later than the one who created it
            asked.append(request.ext["topic"])
            if len(asked) == 2:
                cluster.nameserver.topics["T"] = 5
            return cluster.nameserver.on_get_routeinfo_by_topic(request)

        cluster.nameserver.answers[105] = soon
        assert await client.admin.create_topic("T", 5) == [broker.address for broker in cluster.brokers]
        assert asked == ["T", "T"]
        for broker in cluster.brokers:
            (request,) = broker.seen(RequestCode.UPDATE_AND_CREATE_TOPIC)
            assert request.ext == {
                "topic": "T", "defaultTopic": "TBW102", "readQueueNums": "5", "writeQueueNums": "5", "perm": "6",
                "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
            }  # fmt: skip


@pytest.mark.anyio
async def test_a_topic_that_cannot_be_created_is_reported(fake_cluster: Cluster) -> None:
    async with fake_cluster(U=1) as cluster, gantrymq.connect(cluster.address) as client:
        with pytest.raises(gantrymq.InvalidName):
            await client.admin.create_topic("../x")
        with pytest.raises(ValueError, match="at least one queue"):
            await client.admin.create_topic("T", 0)
        with pytest.raises(gantrymq.NoRoute, match=r"no master broker in cluster Nowhere .*clusters: C"):
            await client.admin.create_topic("T", cluster="Nowhere")
        cluster.broker.answers[17] = lambda request: request.answer(16, "read-only broker")
        with pytest.raises(gantrymq.BrokerError, match=rf"{cluster.broker.address} answered 16 NO_PERMISSION"):
            await client.admin.create_topic("T")


@pytest.mark.anyio
async def test_a_closed_client_raises(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=2) as cluster:
        async with gantrymq.connect(cluster.address) as client:
            pass
        for question in (client.admin.topics(), client.admin.queues("T"), client.admin.max_offset(QUEUE)):
            with pytest.raises(gantrymq.ClientClosed, match="client is closed"):
                await question
        with pytest.raises(gantrymq.ClientClosed):
            async with client.consumer("T", "g"):
                pytest.fail("a closed client opens nothing")


@pytest.mark.anyio
async def test_routes_are_refreshed_and_heartbeats_sent_periodically(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gantrymq.client.cluster.ROUTE_INTERVAL_SECONDS", 0.01)
    monkeypatch.setattr("gantrymq.client.cluster.HEARTBEAT_INTERVAL_SECONDS", 0.01)
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        async with client.producer() as producer, client.consumer("T", "g", start="first") as messages:
            await producer.send("T", b"x")
            await cluster.broker.wait_for(34, 5)
            cluster.nameserver.topics["T"] = 3
            with anyio.fail_after(20):
                while len(messages.queues) != 3:
                    await cluster.broker.changed.wait()
            assert len(await producer.queues("T")) == 3


@pytest.mark.anyio
async def test_callers_that_wait_for_one_broker_share_one_failed_attempt(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[anyio.Event] = []
    failures: list[gantrymq.ConnectFailed] = []

    async def run(channel: Channel, **_: object) -> None:
        attempts.append(anyio.Event())
        await attempts[-1].wait()
        raise gantrymq.ConnectFailed(channel.address, f"attempt {len(attempts)}")

    async def ask() -> None:
        with pytest.raises(gantrymq.ConnectFailed) as caught:
            await client.admin.max_offset(QUEUE)
        failures.append(caught.value)

    async with fake_cluster(T=2) as cluster, gantrymq.connect(cluster.address) as client:
        assert await client.admin.queues("T")
        monkeypatch.setattr(Channel, "run", run)
        for attempt in (1, 2):
            with anyio.fail_after(10):
                async with anyio.create_task_group() as callers:
                    for _ in range(8):
                        callers.start_soon(ask)
                    await anyio.wait_all_tasks_blocked()
                    attempts[-1].set()
            assert len(attempts) == attempt, "a later caller tries again"
            assert [failure.reason for failure in failures] == [f"attempt {attempt}"] * 8
            failures.clear()


@pytest.mark.anyio
async def test_a_failed_refresh_keeps_the_route(fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gantrymq.client.cluster.ROUTE_INTERVAL_SECONDS", 0.01)
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client, client.producer() as producer:
        await producer.send("T", b"x")
        cluster.nameserver.answers[105] = lambda request: request.answer(1, "not now")
        await cluster.nameserver.wait_for(105, 4)
        await producer.send("T", b"x")


@pytest.mark.anyio
async def test_heartbeats_go_to_the_new_master_although_a_deleted_topic_has_the_old_one(fake_cluster: Cluster) -> None:
    async with fake_cluster(brokers=2, T=1, Deleted=1) as cluster:
        master, successor = cluster.brokers
        successor.name = master.name
        cluster.nameserver.brokers = [master]
        async with gantrymq.connect(cluster.address) as client, client.producer() as producer:
            await producer.send("T", b"x")
            await producer.send("Deleted", b"x")
            del cluster.nameserver.topics["Deleted"]
            cluster.nameserver.brokers = [successor]
            await client._cluster.routes.refresh()
            before = len(master.seen(34))
            await client._cluster.heartbeat()
            assert (len(master.seen(34)), len(successor.seen(34))) == (before, 1)


@pytest.mark.anyio
async def test_a_broker_that_does_not_answer_heartbeats_affects_no_other(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gantrymq.client.cluster.HEARTBEAT_INTERVAL_SECONDS", 0.01)
    async with fake_cluster(brokers=2, T=1) as cluster:
        cluster.brokers[1].answers[34] = lambda request: request.answer(1, "no heart")
        async with gantrymq.connect(cluster.address) as client, client.consumer("T", "g", start="first"):
            await cluster.brokers[0].wait_for(34, 4)
            await cluster.brokers[1].wait_for(34, 4)


@pytest.mark.anyio
async def test_an_unknown_request_of_a_broker_is_answered_not_supported(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        await client.admin.max_offset(MessageQueue(topic="T", broker_name="broker-a", queue_id=0))
        from gantrymq.remoting.command import Command

        await cluster.broker.connections[0].write(Command(RequestCode.PULL_MESSAGE, opaque=9))
        with anyio.fail_after(20):
            while not [one for one in cluster.broker.requests if one.is_response]:
                await cluster.broker.changed.wait()
        answer = cluster.broker.requests[-1]
        assert (answer.opaque, answer.code) == (9, 3)


def test_imports_load_only_what_they_need() -> None:
    """A package without an event loop or a codec; a client without what few of them use."""
    code = (
        "import sys, gantrymq\n"
        "found = [m for m in ('anyio', 'trio', 'asyncio', 'msgspec', 'attrs') if m in sys.modules]\n"
        "import gantrymq.sync\n"
        "print(found + [m for m in ('trio', 'structlog', 'rich', 'http.client') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_names_of_gantrymq_are_those_of_its_modules() -> None:
    assert set(gantrymq.__all__) == set(gantrymq._HOMES)
    assert set(gantrymq.__all__) <= set(dir(gantrymq))
    assert all(getattr(gantrymq, name) is not None for name in gantrymq.__all__)
    with pytest.raises(AttributeError, match="no attribute 'conect'"):
        _ = gantrymq.conect


@pytest.mark.anyio
async def test_a_hanging_nameserver_is_tried_once_and_then_avoided(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(request: Command) -> None:
        """Send no response."""

    monkeypatch.setattr(Channel.call, "__defaults__", (0.2,))
    async with fake_cluster(T=2) as hangs, fake_cluster(U=2) as alive:
        hangs.nameserver.answers[206] = silent
        async with gantrymq.connect(f"{hangs.address};{alive.address}") as client:
            for _ in range(3):
                assert await client.admin.topics() == ["U"]
            assert len(hangs.nameserver.seen(206)) == 1
            hangs.nameserver.answers.clear()
            alive.nameserver.answers[206] = silent
            assert await client.admin.topics() == ["T"], "and the first again when the second hangs"


@pytest.mark.anyio
async def test_a_nameserver_that_left_a_cancelled_request_unanswered_is_avoided(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller has a timeout of its own, which is shorter than that of the request."""
    monkeypatch.setattr("gantrymq.client.nameservers.UNANSWERED_SECONDS", 0.0)
    async with fake_cluster(T=2) as hangs, fake_cluster(U=2) as alive:
        async with gantrymq.connect(f"{hangs.address};{alive.address}") as client:
            assert await client.admin.topics() == ["T"]
            hangs.nameserver.answers[206] = lambda request: None
            async with anyio.create_task_group() as tasks:
                for _ in range(2):  # and two at the same time do not return to it
                    tasks.start_soon(client.admin.topics)
                await hangs.nameserver.wait_for(206, 3)
                tasks.cancel_scope.cancel()
            assert await client.admin.topics() == ["U"]


@pytest.mark.anyio
async def test_requests_that_are_cancelled_at_once_do_not_change_the_nameserver(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gantrymq.client.nameservers.UNANSWERED_SECONDS", 60.0)
    async with fake_cluster(T=2) as one, fake_cluster(U=2) as other:
        async with gantrymq.connect(f"{one.address};{other.address}") as client:
            one.nameserver.answers[206] = lambda request: None
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.admin.topics)
                await one.nameserver.wait_for(206)
                tasks.cancel_scope.cancel()
            one.nameserver.answers.clear()
            assert await client.admin.topics() == ["T"]


@pytest.mark.anyio
async def test_the_next_nameserver_is_tried_after_a_cancelled_attempt_to_connect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gantrymq.client.nameservers.UNANSWERED_SECONDS", 0.0)
    tried: list[str] = []

    class Network:
        async def get(self, address: str) -> SimpleNamespace:
            tried.append(address)
            if address == "refuses:1":
                raise gantrymq.ConnectFailed(address, "connection refused")
            if address == "drops:1":
                await anyio.sleep_forever()
            return SimpleNamespace(address=address)

    nameservers = Nameservers(("refuses:1", "drops:1", "alive:1"), cast(Connections, Network()))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(nameservers.connect)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    with anyio.fail_after(20):
        assert (await nameservers.connect()).address == "alive:1"
    assert tried == ["refuses:1", "drops:1", "alive:1"]


@pytest.mark.anyio
async def test_blocks_may_end_in_another_task_than_they_started_in(fake_cluster: Cluster) -> None:
    stack = AsyncExitStack()
    got: list[bytes] = []

    async def begin() -> None:
        client = await stack.enter_async_context(gantrymq.connect(cluster.address))
        producer = await stack.enter_async_context(client.producer())
        messages = await stack.enter_async_context(client.consumer("T", "g", start="first"))
        check = lambda half: gantrymq.Outcome.UNKNOWN  # noqa: E731
        await stack.enter_async_context(client.transactional_producer("p", check=check))
        await producer.send("T", b"x")
        message = await anext(messages)
        got.append(message.body)
        await message.ack()

    async with fake_cluster(T=1) as cluster:
        with anyio.fail_after(20):
            for step in (begin, stack.aclose):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(step)
        assert got == [b"x"]
        assert cluster.broker.offsets["g", "T", 0] == 1


@pytest.mark.anyio
async def test_an_internal_error_in_the_background_is_raised_to_all_waiting_calls(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Any) -> None:
        raise ZeroDivisionError("a bug")

    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        async with client.consumer("T", "g") as messages:
            monkeypatch.setattr("gantrymq.client.consumer.Consumer._reset", broken)
            await cluster.broker.notify("g")
            with anyio.fail_after(20), pytest.raises(gantrymq.ClientClosed, match="a bug"):
                await anext(messages)

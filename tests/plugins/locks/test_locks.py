"""One member of a group locks a queue at a time and renews the lock every minute."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import structlog
import structlog.testing

from gantrymq.kernel.network.connection import ConnectionsBatch
from gantrymq.plugins.locks import table as lock_table
from gantrymq.plugins.locks.config import LocksConfig
from gantrymq.plugins.locks.table import LockTable
from gantrymq.remoting.bodies.clients import ConsumerData, HeartbeatData
from gantrymq.remoting.bodies.queues import MessageQueue
from gantrymq.remoting.codes import RequestCode, ResponseCode

Q0, Q1, Q2, Q3 = (MessageQueue("T", "broker-a", number) for number in range(4))


class Clock:
    now = 50.0

    def __call__(self) -> float:
        return self.now


class Locks:
    """A table whose clock stands still; each client has one connection until it is given another."""

    def __init__(self, **settings: Any) -> None:
        self.clock = Clock()
        self.members: set[tuple[str, str]] = set()
        self.connections: dict[str, int] = {}
        self.table = LockTable(
            self.clock, LocksConfig(**settings), lambda group, client: (group, client) in self.members
        )

    def lock(self, group: str, queues: Iterable[MessageQueue], client: str) -> set[MessageQueue]:
        return self.table.lock(group, queues, client, self.connection(client))

    def connection(self, client: str) -> int:
        return self.connections.setdefault(client, len(self.connections))

    def reconnect(self, client: str) -> None:
        """Use a new connection from now on; the old one has ended."""
        self.table.connection_lost(self.connection(client))
        self.connections[client] = len(self.connections) + 100

    def leave(self, group: str, client: str) -> None:
        self.table.member_left(group, client, self.connection(client))


def test_a_queue_has_one_owner_in_each_group() -> None:
    table = Locks()
    assert table.lock("G", {Q0, Q1}, "one") == {Q0, Q1}
    assert table.lock("G", {Q1, Q2}, "two") == {Q2}
    assert table.lock("H", {Q0, Q1}, "two") == {Q0, Q1}


def test_the_owner_may_take_it_again_which_makes_it_live_longer() -> None:
    table = Locks()
    clock = table.clock
    table.lock("G", {Q0}, "one")
    clock.now += 60
    assert table.lock("G", {Q0}, "two") == set(), "sixty seconds old, not older"
    assert table.lock("G", {Q0}, "one") == {Q0}
    clock.now += 60
    assert table.lock("G", {Q0}, "two") == set()
    clock.now += 0.1
    assert table.lock("G", {Q0}, "two") == {Q0}
    assert table.lock("G", {Q0}, "one") == set()


def test_only_the_owner_releases_a_lock() -> None:
    table = Locks()
    table.lock("G", {Q0}, "one")
    table.table.unlock("G", {Q0, Q1}, "two")
    table.table.unlock("H", {Q0}, "one")
    assert table.lock("G", {Q0}, "two") == set()
    table.table.unlock("G", {Q0}, "one")
    assert len(table.table) == 0
    assert table.lock("G", {Q0}, "two") == {Q0}


def test_the_table_is_bounded_and_expired_locks_make_room() -> None:
    table = Locks(max_locks=2)
    assert table.lock("G", [Q0, Q1], "one") == {Q0, Q1}
    with structlog.testing.capture_logs() as logs:
        assert table.lock("G", [Q2, Q3, Q0], "one") == {Q0}
    assert [entry["event"] for entry in logs] == ["too_many_locks"], "once a request"
    table.clock.now += 61
    assert table.lock("G", [Q2], "two") == {Q2}
    assert len(table.table) == 1


def test_queues_of_clients_that_are_gone_make_room() -> None:
    table = Locks(max_locks=2)
    table.lock("G", [Q0, Q1], "one")
    table.table.connection_lost(table.connection("one"))
    table.clock.now += 30
    assert table.lock("H", [Q0], "two") == {Q0}
    assert len(table.table) == 1


def test_a_client_that_returns_to_a_full_table_keeps_its_queues_and_gets_those_for_which_there_is_room() -> None:
    table = Locks(max_locks=2)
    table.lock("G", {Q0}, "one")
    table.reconnect("one")
    table.clock.now += 40
    assert table.table.lock("G", [Q1, Q2], "one", table.connection("one")) == {Q1}
    assert table.lock("G", {Q0}, "two") == set(), "it is the returned client's"
    table.leave("G", "one")
    assert len(table.table) == 0


def test_unregistering_releases_the_locks_of_that_group_at_once() -> None:
    table = Locks()
    table.lock("G", {Q0, Q1}, "one")
    table.lock("H", {Q0}, "one")
    table.lock("G", {Q2}, "two")
    table.leave("G", "one")
    table.leave("G", "nobody")
    assert table.lock("G", {Q0, Q1, Q2}, "three") == {Q0, Q1}
    assert table.lock("H", {Q0}, "three") == set()


def test_unregistered_clients_get_no_lock_until_they_are_members_again() -> None:
    table = Locks()
    table.leave("G", "one")
    assert table.lock("G", {Q0}, "one") == set(), "a rebalance that was under way"
    assert table.lock("H", {Q0}, "one") == {Q0}, "of this group it is a member"
    table.members.add(("G", "one"))
    assert table.lock("G", {Q0}, "one") == {Q0}
    table.members.clear()
    assert table.lock("G", {Q0}, "one") == {Q0}, "that farewell is over"


def test_unregistered_clients_may_return_by_a_new_connection() -> None:
    table = Locks()
    table.leave("G", "one")
    table.reconnect("one")
    assert table.lock("G", {Q0}, "one") == {Q0}, "its first heartbeat may come later, as with RocketMQ's broker"


def test_remembered_unregistrations_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_table, "UNREGISTERED_MAX", 2)
    table = Locks()
    for group in ("F", "G", "G", "H", "x" * 256):
        table.leave(group, "one")
    assert [table.lock(group, {Q0}, "one") for group in ("F", "G", "H")] == [{Q0}, set(), set()]


def test_a_lost_connection_frees_the_queues_in_a_while() -> None:
    table = Locks()
    table.lock("G", {Q0, Q1}, "one")
    table.clock.now += 20
    table.lock("G", {Q0, Q1}, "one")
    table.table.connection_lost(table.connection("one"))
    table.clock.now += 29.9
    assert table.lock("G", {Q0}, "two") == set()
    table.clock.now += 0.1
    assert table.lock("G", {Q0, Q1}, "two") == {Q0, Q1}
    table.table.connection_lost(table.connection("one"))
    assert table.lock("G", {Q0, Q1}, "one") == set()


def test_the_lock_expiry_is_configurable() -> None:
    table = Locks(free_after_disconnect=0.0)
    table.lock("G", {Q0}, "one")
    table.table.connection_lost(table.connection("one"))
    assert table.lock("G", {Q0}, "two") == {Q0}


@pytest.mark.parametrize("back", ["locks", "is a member"])
def test_a_client_that_comes_back_by_another_connection_keeps_its_queues(back: str) -> None:
    table = Locks()
    table.lock("G", {Q0}, "one")
    table.reconnect("one")
    table.clock.now += 20
    if back == "locks":
        assert table.lock("G", {Q0}, "one") == {Q0}
    else:
        table.members.add(("G", "one"))
    table.clock.now += 35
    assert table.lock("G", {Q0}, "two") == set()


def test_the_end_of_a_replaced_connection_releases_no_lock() -> None:
    table = Locks()
    table.lock("G", {Q0}, "one")
    old = table.connection("one")
    table.connections["one"] = 77
    table.lock("G", {Q0}, "one")
    table.table.connection_lost(old)
    table.clock.now += 35
    assert table.lock("G", {Q0}, "two") == set()
    table.table.connection_lost(77)
    table.clock.now += 10
    assert table.lock("G", {Q0}, "one") == {Q0}, "its own again, by yet another connection"


def test_nothing_is_left_of_clients_that_have_no_queue() -> None:
    table = Locks()
    for number in range(20):
        client = f"client-{number}"
        table.lock("G", {Q0, Q1}, client)
        if number % 2:
            table.table.unlock("G", {Q0, Q1}, client)
        else:
            table.reconnect(client)
            table.lock("G", {Q0}, client)
            table.leave("G", client)
    assert (len(table.table), table.table._owners, table.table._by_connection) == (0, {}, {})


def beat(broker: Any, connection: Any, client: str) -> None:
    data = HeartbeatData(client, consumer_data_set=[ConsumerData("G")])
    assert broker.ask(RequestCode.HEART_BEAT, body=data.to_bytes(), connection=connection).code == 0


def owner_of(broker: Any) -> Callable[..., bool]:
    """``takes(client, connection)``: whether the client is given queue 0."""

    def takes(client: str, connection: Any) -> bool:
        answer = broker.ask(RequestCode.LOCK_BATCH_MQ, None, body_of(client, Q0), connection=connection)
        return b'"queueId":0' in answer.body

    return takes


@pytest.mark.parametrize("order", [("clients", "locks"), ("locks", "clients")])
def test_a_broker_releases_the_queues_of_clients_that_unregister_or_disconnect(
    make_broker: Callable[..., Any], connect: Any, order: tuple[str, str]
) -> None:
    broker = make_broker("topics", *order, **{"plugin.locks.free_after_disconnect": "12s"})
    takes = owner_of(broker)
    one, two, three = connect(), connect(), connect()
    for client, connection in (("one", one), ("two", two)):
        beat(broker, connection, client)
    assert takes("one", one)
    assert not takes("two", two)
    broker.ask(RequestCode.UNREGISTER_CLIENT, {"clientID": "one", "producerGroup": "G"}, connection=one)
    assert not takes("two", two), "it only stopped to send"
    broker.ask(RequestCode.UNREGISTER_CLIENT, {"clientID": "one", "consumerGroup": "G"}, connection=one)
    assert takes("two", two)
    broker.manager.hook.connections_changed(batch=ConnectionsBatch(closed=[one, two]))
    broker.env.now += 12
    beat(broker, three, "two")
    assert not takes("one", three), "two is back"
    broker.manager.hook.connections_changed(batch=ConnectionsBatch(closed=[three]))
    assert takes("one", connect())


def test_the_table_is_bounded_in_bytes_as_well() -> None:
    table = Locks(max_bytes=1024 * 1024)
    queues = [MessageQueue("T" * 127, "broker-a", number) for number in range(5000)]
    given = table.lock("G" * 255, queues, "c" * 1000)
    assert 400 < len(given) < 800, "1 MiB"
    assert table.lock("G", {Q0}, "one") == set()
    table.table.unlock("G" * 255, queues, "c" * 1000)
    assert table.lock("G", {Q0, Q1, Q2}, "one") == {Q0, Q1, Q2}
    table.clock.now += 61
    assert table.lock("G", {Q0, Q1, Q2}, "two") == {Q0, Q1, Q2}
    table.table.unlock("G", {Q0, Q1, Q2}, "two")
    assert table.table._bytes == 0


def test_the_log_has_one_event_a_request_however_many_queues_it_names() -> None:
    table = Locks()
    queues = [MessageQueue("T", "broker-a", number) for number in range(1000)]
    with structlog.testing.capture_logs() as events:
        for _ in range(2):
            table.lock("G", queues, "one")
        for _ in range(2):
            table.table.unlock("G", queues, "one")
    assert [(event["event"], event["count"]) for event in events] == [
        ("queues_locked", 1000), ("queues_unlocked", 1000)
    ]  # fmt: skip
    assert all(len(str(event)) < 1000 for event in events)


@pytest.fixture
def ask(make_broker: Callable[..., Any]) -> Any:
    broker = make_broker("locks")

    def call(code: RequestCode, body: bytes) -> Any:
        answer = broker.ask(code, None, body)
        assert answer is not None
        return answer

    return call


def body_of(client: str, *queues: MessageQueue) -> bytes:
    rows = [{"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic} for queue in queues]
    return json.dumps({"clientId": client, "consumerGroup": "G", "mqSet": rows}).encode()


def test_the_requests_speak_as_rocketmqs_clients_do(ask: Any) -> None:
    answer = ask(RequestCode.LOCK_BATCH_MQ, body_of("one", Q0))
    assert answer.code == ResponseCode.SUCCESS
    assert answer.body == b'{"lockOKMQSet":[{"brokerName":"broker-a","queueId":0,"topic":"T"}]}'
    assert ask(RequestCode.LOCK_BATCH_MQ, body_of("two", Q0)).body == b'{"lockOKMQSet":[]}'
    assert ask(RequestCode.UNLOCK_BATCH_MQ, body_of("one", Q0, Q1)).code == ResponseCode.SUCCESS
    assert ask(RequestCode.LOCK_BATCH_MQ, body_of("two", Q0)).body != b'{"lockOKMQSet":[]}'


@pytest.mark.parametrize("code", [RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ])
@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"{}", b'{"consumerGroup":"G"}', b'{"clientId":"c"}', b'{"mqSet":7}',
        body_of("one", *(MessageQueue("T", "b", number) for number in range(10_001))),
    ],
    ids=len,
)  # fmt: skip
def test_invalid_lock_requests_are_refused(ask: Any, code: RequestCode, body: bytes) -> None:
    assert ask(code, body).code == ResponseCode.SYSTEM_ERROR

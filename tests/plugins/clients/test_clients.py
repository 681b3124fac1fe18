"""Group members join by heartbeat and leave by a request, a closed connection, or a timeout."""

from __future__ import annotations

from typing import Any

import pytest
import structlog.testing
import trio
import trio.testing

from gantrymq.kernel.network.connection import ConnectionsBatch
from gantrymq.plugins.interfaces import ConsumerGroups, GroupTable, TopicTable
from gantrymq.remoting.bodies.clients import ConsumerData, ConsumerList, HeartbeatData, ProducerData, SubscriptionData
from gantrymq.remoting.bodies.groups import SubscriptionGroupConfig


@pytest.fixture
def broker(make_broker: Any) -> Any:
    return make_broker("topics", "clients")


def groups_of(broker: Any) -> ConsumerGroups:
    return broker.registry.get(ConsumerGroups)


def consumer(group: str = "shop", *topics: str, version: int = 1, tags: str = "*", **fields: Any) -> ConsumerData:
    subscriptions = [SubscriptionData.for_tags(topic, tags, version) for topic in topics or ("orders",)]
    return ConsumerData(group, subscription_data_set=subscriptions, **fields)


def beat(broker: Any, connection: Any, client_id: str, *consumers: ConsumerData, **fields: Any) -> Any:
    data = HeartbeatData(client_id, consumer_data_set=list(consumers or (consumer(),)), **fields)
    return broker.ask(34, body=data.to_bytes(), connection=connection)


def members(broker: Any, group: str = "shop") -> list[str]:
    answer = broker.ask(38, {"consumerGroup": group})
    return ConsumerList.from_bytes(answer.body).consumer_id_list if answer.code == 0 else []


def notices(broker: Any, *connections: Any) -> list[int]:
    """The number of notifications to each connection, once pending ones have been sent."""
    clients(broker).notify_changes()
    return [sum(command.code == 40 for command in connection.sent) for connection in connections]


def clients(broker: Any) -> Any:
    return groups_of(broker)


def close(broker: Any, *connections: Any) -> None:
    broker.manager.hook.connections_changed(batch=ConnectionsBatch(closed=list(connections)))


def test_a_heartbeat_makes_a_member_a_group_and_its_retry_topic(broker: Any, connect: Any) -> None:
    answer = beat(broker, connect(), "a@1")
    assert (answer.code, answer.remark, answer.version) == (0, None, 407)
    assert members(broker) == ["a@1"]
    assert groups_of(broker).client_ids("shop") == ["a@1"]
    assert groups_of(broker).message_model("shop") == "CLUSTERING"
    assert groups_of(broker).subscription("shop", "orders") == SubscriptionData.for_tags("orders", "*", 1)
    assert groups_of(broker).subscription("shop", "other") is None
    retry = broker.registry.get(TopicTable).get("%RETRY%shop")
    assert (retry.read_queue_nums, retry.write_queue_nums, retry.perm, retry.topic_sys_flag) == (1, 1, 6, 0)


@pytest.mark.parametrize(
    "body",
    [
        # NewLife.RocketMQ: all keys in .NET's case
        '{"ClientID":"a@1","ConsumerDataSet":[{"GroupName":"shop","MessageModel":"BROADCASTING","SubscriptionDataSet":['
        '{"Topic":"orders","SubString":"*","SubVersion":1}]}]}',
        # some keys in another spelling, an enum in lower case, text for a number and one object for a list
        '{"clientID":"a@1","consumer_data_set":[{"groupName":"shop","messageModel":"broadcasting","subscriptionDataSet":'
        '{"topic":"orders","subString":"*","SubVersion":"1"}}]}',
        # rocketmq-client-cpp: an enum by its number
        '{"clientID":"a@1","consumerDataSet":[{"groupName":"shop","messageModel":0,"subscriptionDataSet":[{"topic":"orders",'
        '"subString":"*","subVersion":"1"}]}]}\n',
    ],
)
def test_a_heartbeat_in_another_clients_spelling_makes_a_member(broker: Any, connect: Any, body: str) -> None:
    assert broker.ask(34, body=body.encode(), connection=connect()).code == 0
    assert members(broker) == ["a@1"]
    assert groups_of(broker).message_model("shop") == "BROADCASTING"
    assert groups_of(broker).subscription("shop", "orders") == SubscriptionData.for_tags("orders", "*", 1)


def test_a_unit_consumers_retry_topic_carries_the_flag(broker: Any, connect: Any) -> None:
    beat(broker, connect(), "a@1", consumer(unit_mode=True, message_model="BROADCASTING"))
    assert broker.registry.get(TopicTable).get("%RETRY%shop").topic_sys_flag == 2
    assert groups_of(broker).message_model("shop") == "BROADCASTING"


def test_a_group_without_retry_queues_gets_no_retry_topic(broker: Any, connect: Any) -> None:
    broker.ask(200, body=SubscriptionGroupConfig("shop", retry_queue_nums=0).to_bytes())
    beat(broker, connect(), "a@1")
    assert broker.registry.get(TopicTable).get("%RETRY%shop") is None
    assert members(broker) == ["a@1"]


def test_a_heartbeat_adds_the_queues_by_which_the_group_was_raised_to_its_retry_topic(
    broker: Any, connect: Any
) -> None:
    beat(broker, connect(), "a@1")
    broker.ask(200, body=SubscriptionGroupConfig("shop", retry_queue_nums=4).to_bytes())
    beat(broker, connect(), "a@1")
    retry = broker.registry.get(TopicTable).get("%RETRY%shop")
    assert (retry.read_queue_nums, retry.write_queue_nums) == (4, 4)
    broker.ask(200, body=SubscriptionGroupConfig("shop", retry_queue_nums=2).to_bytes())
    beat(broker, connect(), "a@1")
    assert broker.registry.get(TopicTable).get("%RETRY%shop").read_queue_nums == 4


def test_a_query_for_members_of_an_empty_group_returns_code_1(broker: Any) -> None:
    answer = broker.ask(38, {"consumerGroup": "shop"})
    assert (answer.code, answer.remark) == (1, "no consumer for this group, shop")
    assert groups_of(broker).message_model("shop") is None
    assert groups_of(broker).client_ids("shop") == []


def test_members_are_notified_of_members_that_join_and_leave(broker: Any, connect: Any) -> None:
    first, second = connect(), connect()
    beat(broker, first, "a@1")
    assert notices(broker, first) == [1]
    beat(broker, second, "b@1")
    assert notices(broker, first, second) == [2, 1]
    notice = first.sent[-1]
    assert (notice.code, notice.ext, notice.is_oneway, notice.is_response) == (
        40,
        {"consumerGroup": "shop"},
        True,
        False,
    )
    beat(broker, first, "a@1")
    beat(broker, second, "b@1")
    assert notices(broker, first, second) == [2, 1], "a heartbeat that changes nothing is no news"
    broker.ask(35, {"clientID": "b@1", "consumerGroup": "shop"}, connection=second)
    assert notices(broker, first, second) == [3, 1]
    assert members(broker) == ["a@1"]


def test_simultaneous_changes_cause_one_notification(broker: Any, connect: Any) -> None:
    connections = [connect() for _ in range(10)]
    for number, connection in enumerate(connections):
        beat(broker, connection, f"c@{number}")
    assert notices(broker, *connections) == [1] * 10


def test_changed_subscriptions_are_news_and_changed_expressions_are_taken_silently(broker: Any, connect: Any) -> None:
    connection = connect()
    beat(broker, connection, "a@1", consumer("shop", "orders"))
    assert notices(broker, connection) == [1]
    beat(broker, connection, "a@1", consumer("shop", "orders", "returns"))
    assert notices(broker, connection) == [2]
    beat(broker, connection, "a@1", consumer("shop", "orders", "returns", version=2, tags="A"))
    assert notices(broker, connection) == [2]
    assert groups_of(broker).subscription("shop", "orders") == SubscriptionData.for_tags("orders", "A", 2)
    beat(broker, connection, "a@1", consumer("shop", "returns", version=3))
    assert notices(broker, connection) == [3]
    assert groups_of(broker).subscription("shop", "orders") is None


def test_the_end_of_a_connection_ends_every_membership_at_once(broker: Any, connect: Any) -> None:
    gone, stays = connect(), connect()
    beat(broker, gone, "a@1", consumer("shop"), consumer("bar"), producer_data_set=[ProducerData("p")])
    beat(broker, stays, "b@1")
    notices(broker, stays)
    close(broker, gone)
    assert members(broker) == ["b@1"]
    assert members(broker, "bar") == []
    assert notices(broker, stays) == [2]
    assert not clients(broker).producers.groups
    close(broker, gone)
    assert notices(broker, stays) == [2]


def test_a_client_that_comes_back_before_its_old_connection_ends_is_one_member(broker: Any, connect: Any) -> None:
    old, new = connect(), connect()
    beat(broker, old, "a@1")
    beat(broker, new, "a@1")
    assert members(broker) == ["a@1"]
    close(broker, old)
    assert members(broker) == ["a@1"]


def test_a_group_that_wants_no_notices_gets_none(broker: Any, connect: Any) -> None:
    body = SubscriptionGroupConfig("shop", notify_consumer_ids_changed_enable=False).to_bytes()
    assert broker.ask(200, body=body).code == 0
    connection = connect()
    beat(broker, connection, "a@1")
    assert notices(broker, connection) == [0]


def test_notices_can_be_switched_off(make_broker: Any, connect: Any) -> None:
    broker = make_broker("topics", "clients", **{"plugin.clients.notify": "false"})
    connection = connect()
    beat(broker, connection, "a@1")
    assert notices(broker, connection) == [0]


def test_producers_are_known_until_they_unregister(broker: Any, connect: Any) -> None:
    connection = connect()
    data = HeartbeatData("a@1", producer_data_set=[ProducerData("p"), ProducerData("CLIENT_INNER_PRODUCER")])
    assert broker.ask(34, body=data.to_bytes(), connection=connection).code == 0
    assert clients(broker).producers.groups.keys() == {"p", "CLIENT_INNER_PRODUCER"}
    assert broker.ask(35, {"clientID": "a@1", "producerGroup": "p"}, connection=connection).code == 0
    assert clients(broker).producers.groups.keys() == {"CLIENT_INNER_PRODUCER"}


def test_unregistering_an_unknown_client_is_no_error(broker: Any) -> None:
    answer = broker.ask(35, {"clientID": "a@1", "producerGroup": "p", "consumerGroup": "../x"})
    assert (answer.code, answer.remark) == (0, None)


def test_members_that_differ_do_not_take_subscriptions_from_each_other_and_are_warned_of_once(
    broker: Any, connect: Any
) -> None:
    first, second = connect(), connect()
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            beat(broker, first, "a@1", consumer("shop", "orders", "%RETRY%shop"))
            beat(broker, second, "b@1", consumer("shop", "returns", "%RETRY%shop"))
    warnings = [entry for entry in logs if entry["event"] == "group_subscriptions_differ"]
    assert [(entry["group"], entry["client_id"]) for entry in warnings] == [("shop", "b@1")]
    assert groups_of(broker).subscription("shop", "orders") is not None
    assert groups_of(broker).subscription("shop", "returns") is not None
    assert notices(broker, first, second) == [1, 1]
    close(broker, second)
    assert groups_of(broker).subscription("shop", "returns") is None


def test_the_newer_of_two_subscriptions_to_a_topic_is_used(broker: Any, connect: Any) -> None:
    old, new = connect(), connect()
    beat(broker, new, "b@1", consumer(version=9, tags="B"))
    beat(broker, old, "a@1", consumer(version=1, tags="A"))
    assert groups_of(broker).subscription("shop", "orders").sub_string == "B"
    close(broker, new)
    assert groups_of(broker).subscription("shop", "orders").sub_string == "A"


def test_a_5x_heartbeat_without_subscriptions_keeps_those_that_are_known(broker: Any, connect: Any) -> None:
    connection = connect()
    beat(broker, connection, "a@1", consumer(), heartbeat_fingerprint=7)
    answer = beat(broker, connection, "a@1", ConsumerData("shop"), heartbeat_fingerprint=7, without_sub=True)
    assert answer.code == 0
    assert not (answer.ext or {}).get("IS_SUPPORT_HEART_BEAT_V2"), "so that 5.x clients send all of it each time"
    assert groups_of(broker).subscription("shop", "orders") is not None
    assert notices(broker, connection) == [1]
    stranger = connect()
    assert beat(broker, stranger, "b@1", ConsumerData("shop"), without_sub=True).code == 0
    assert members(broker) == ["a@1", "b@1"]


def test_a_group_that_may_not_be_created_is_passed_over(make_broker: Any, connect: Any) -> None:
    broker = make_broker("topics", "clients", **{"plugin.topics.auto_create_groups": "false"})
    connection = connect()
    assert beat(broker, connection, "a@1", consumer("shop"), consumer("TOOLS_CONSUMER")).code == 0
    assert members(broker) == []
    assert members(broker, "TOOLS_CONSUMER") == ["a@1"]
    assert broker.registry.get(TopicTable).get("%RETRY%shop") is None


@pytest.mark.parametrize(
    ("body", "remark"),
    [
        (b"", "HeartbeatData"),
        (b"{", "HeartbeatData"),
        (b"[" * 100_000, "HeartbeatData"),
        (b"\xff\xff", "HeartbeatData"),
        (b'{"clientID":[7]}', "HeartbeatData"),
        (b"{}", "clientID has 0 characters"),
        (b'{"clientID":" "}', "clientID"),
        (b'{"clientID":"%s"}' % (b"x" * 1025), "clientID has 1025 characters, allowed are 1 to 1024"),
        (b'{"clientID":"a","consumerDataSet":[{"groupName":"../x"}]}', "illegal characters"),
        (b'{"clientID":"a","consumerDataSet":[{"groupName":""}]}', "blank"),
        (b'{"clientID":"a","consumerDataSet":[{"groupName":"%s"}]}' % (b"g" * 121), "longer than"),
        (b'{"clientID":"a","consumerDataSet":[{"groupName":"a\\u0000b"}]}', "illegal characters"),
        (b'{"clientID":"a","producerDataSet":[{"groupName":"p/q"}]}', "illegal characters"),
        (
            b'{"clientID":"a","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":"../x"}]}]}',
            "illegal characters",
        ),
        (
            b'{"clientID":"a","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[%s]}]}'
            % b",".join(b'{"topic":"t%d"}' % number for number in range(1001)),
            "1001 subscriptions of group g, 1000 are the limit",
        ),
    ],
)
def test_a_heartbeat_that_makes_no_sense_is_refused_as_a_whole(broker: Any, body: bytes, remark: str) -> None:
    answer = broker.ask(34, body=body)
    assert answer.code == 1
    assert remark in answer.remark
    assert not clients(broker).consumers.groups
    assert not clients(broker).producers.groups


def test_a_heartbeat_of_any_size_is_not_kept(make_broker: Any) -> None:
    broker = make_broker("topics", "clients", **{"plugin.clients.max_heartbeat_bytes": "1 KiB"})
    answer = broker.ask(34, body=b'{"clientID":"a"}' + b" " * 1024)
    assert answer.code == 1
    assert answer.remark == "a heartbeat of 1040 bytes, 1024 are the limit (plugin.clients.max_heartbeat_bytes)"


def test_a_refused_heartbeat_is_logged_once_an_hour_for_a_host(
    make_broker: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = make_broker("topics", "clients", **{"plugin.clients.max_heartbeat_bytes": "1 KiB"})
    for _ in range(3):
        assert broker.ask(34, body=b'{"clientID":"a"}' + b" " * 1024).code == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "heartbeat_refused" in line]
    assert "a heartbeat of 1040 bytes, 1024 are the limit (plugin.clients.max_heartbeat_bytes)" in line
    assert "peer=127." in line


def test_a_heartbeat_of_three_mebibytes_is_taken(broker: Any, connect: Any) -> None:
    """Sixty topics with 10,000 characters of tags each, which clients send as text, as tags and as hashes."""
    tags = "||".join(f"tag-{number:05}" for number in range(920))
    data = consumer("shop", *[f"topic{number}" for number in range(60)], tags=tags)
    assert len(tags) > 9_900
    assert len(data.to_bytes()) > 1 << 20
    assert beat(broker, connect(), "a@1", data).code == 0
    assert members(broker) == ["a@1"]


def test_subscriptions_of_all_members_have_a_limit_and_are_released_with_them(make_broker: Any, connect: Any) -> None:
    limits = {"plugin.clients.max_kept_bytes": "64 KiB", "plugin.clients.max_groups": "20"}
    broker = make_broker("topics", "clients", **limits)
    large = consumer("shop", *[f"topic{number}" for number in range(400)])
    one, two, three = connect(), connect(), connect()
    for _ in range(3):
        assert beat(broker, one, "a@1", large).code == 0, "the same again takes nothing more"
    refused = beat(broker, two, "b@1", large)
    assert refused.code == 1
    assert "plugin.clients.max_kept_bytes" in refused.remark
    assert members(broker) == ["a@1"]
    close(broker, one)
    assert beat(broker, two, "b@1", large).code == 0
    assert broker.ask(35, {"clientID": "b@1", "consumerGroup": "shop"}, connection=two).code == 0
    assert beat(broker, three, "c@1", large).code == 0
    assert beat(broker, three, "c@1", consumer("shop")).code == 0, "it wants less now"
    for number in range(30):
        beat(broker, connect(), "d@1", consumer(f"group{number}"))
        assert beat(broker, one, "a@1", consumer("shop")).code == 0
    for _ in range(10):
        answer = beat(broker, connect(), "d@1", consumer("more", *[f"topic{number}" for number in range(100)]))
        assert "live groups" in answer.remark
    assert beat(broker, one, "a@1", consumer("shop", *[f"topic{number}" for number in range(450)])).code == 0


def test_every_member_counts_towards_the_memory_limit_until_it_leaves(make_broker: Any, connect: Any) -> None:
    broker = make_broker("topics", "clients", **{"plugin.clients.max_kept_bytes": "64 KiB"})

    def produce(connection: Any, *groups: str) -> Any:
        data = HeartbeatData("p@1", producer_data_set=[ProducerData(group) for group in groups])
        return broker.ask(34, body=data.to_bytes(), connection=connection)

    def fill(connection: Any) -> None:
        answer = produce(connection, *[f"producers{number}" for number in range(1000)])
        assert (answer.code, "plugin.clients.max_kept_bytes" in answer.remark) == (1, True)
        assert beat(broker, one, "a@1").code == 1

    one, two = connect(), connect()
    fill(two)
    close(broker, two)
    assert beat(broker, one, "a@1", ConsumerData("shop"), without_sub=True).code == 0
    assert broker.ask(35, {"clientID": "a@1", "consumerGroup": "shop"}, connection=one).code == 0
    for number in range(200):
        assert produce(one, f"producers{number}").code == 0
        assert produce(one, f"producers{number}").code == 0, "the same again takes nothing more"
        assert broker.ask(35, {"clientID": "p@1", "producerGroup": f"producers{number}"}, connection=one).code == 0
    fill(two)
    broker.env.now += 121
    clients(broker).expire()
    assert beat(broker, one, "a@1").code == 0


def test_a_refused_producer_group_takes_no_memory(make_broker: Any, connect: Any) -> None:
    limits = {"plugin.clients.max_kept_bytes": "64 KiB", "plugin.clients.max_groups": "1"}
    broker = make_broker("topics", "clients", **limits)
    for number in range(200):
        data = HeartbeatData("p@1", producer_data_set=[ProducerData("first"), ProducerData(f"other{number}")])
        connection = connect()
        assert "plugin.clients.max_groups" in broker.ask(34, body=data.to_bytes(), connection=connection).remark
        close(broker, connection)


def test_a_long_expression_type_is_not_kept(broker: Any, connect: Any) -> None:
    def subscribe(kind: str) -> Any:
        data = ConsumerData("shop", subscription_data_set=[SubscriptionData("T", "*", expression_type=kind)])
        return beat(broker, connect(), "a@1", data)

    assert subscribe("x" * 255).code == 0
    answer = subscribe("x" * 100_000)
    assert answer.code == 1
    assert answer.remark == "the expression type of topic T in group shop has 100000 characters, 255 are the limit"


def test_a_heartbeat_with_one_bad_name_is_refused_as_a_whole(broker: Any, connect: Any) -> None:
    assert beat(broker, connect(), "a@1", consumer("good"), consumer("../x")).code == 1
    assert members(broker, "good") == []
    assert broker.registry.get(TopicTable).get("%RETRY%good") is None


def test_live_groups_have_a_limit(make_broker: Any, connect: Any) -> None:
    broker = make_broker("topics", "clients", **{"plugin.clients.max_groups": "1"})
    assert beat(broker, connect(), "a@1", consumer("first")).code == 0
    answer = beat(broker, connect(), "b@1", consumer("second"))
    assert answer.code == 1
    assert "1 live groups are the limit (plugin.clients.max_groups)" in answer.remark
    assert beat(broker, connect(), "c@1", consumer("first")).code == 0


@pytest.mark.parametrize(("code", "field"), [(35, "clientID"), (38, "consumerGroup")])
def test_a_missing_field_is_named(broker: Any, code: int, field: str) -> None:
    answer = broker.ask(code)
    assert answer.code == 1
    assert field in answer.remark


def test_clients_silent_for_two_minutes_are_dropped_and_the_others_notified(broker: Any, connect: Any) -> None:
    silent, lively, producer = connect(), connect(), connect()
    beat(broker, silent, "a@1")
    beat(broker, lively, "b@1")
    data = HeartbeatData("p@1", producer_data_set=[ProducerData("p")])
    broker.ask(34, body=data.to_bytes(), connection=producer)
    notices(broker, lively)
    broker.env.now += 100
    beat(broker, lively, "b@1")
    broker.env.now += 20
    clients(broker).expire()
    assert members(broker) == ["a@1", "b@1"], "120 seconds are not more than 120 seconds"
    broker.env.now += 1
    clients(broker).expire()
    assert members(broker) == ["b@1"]
    assert [silent.closed, lively.closed, producer.closed] == [True, False, True]
    assert notices(broker, lively) == [2]
    assert not clients(broker).producers.groups


async def run_services(broker: Any, nursery: trio.Nursery) -> None:
    for tasks in broker.manager.hook.register_tasks(broker=broker):
        for task in tasks:
            nursery.start_soon(task.run)
    await trio.testing.wait_all_tasks_blocked()


@pytest.mark.trio
async def test_background_tasks_notify_changes_and_scan_for_silent_clients_every_ten_seconds(
    make_broker: Any, connect: Any, autojump_clock: trio.testing.MockClock
) -> None:
    broker = make_broker("topics", "clients")
    silent, lively = connect(), connect()
    async with trio.open_nursery() as nursery:
        await run_services(broker, nursery)
        beat(broker, silent, "a@1")
        beat(broker, lively, "b@1")
        await trio.testing.wait_all_tasks_blocked()
        assert [sum(command.code == 40 for command in peer.sent) for peer in (silent, lively)] == [1, 1]
        broker.env.now += 121
        beat(broker, lively, "b@1")
        await trio.sleep(9)
        assert members(broker) == ["a@1", "b@1"]
        await trio.sleep(2)
        assert members(broker) == ["b@1"]
        assert sum(command.code == 40 for command in lively.sent) == 2
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_a_closed_connection_is_notified_without_waiting_for_the_scan(make_broker: Any, connect: Any) -> None:
    broker = make_broker("topics", "clients")
    gone, stays = connect(), connect()
    async with trio.open_nursery() as nursery:
        await run_services(broker, nursery)
        beat(broker, gone, "a@1")
        beat(broker, stays, "b@1")
        await trio.testing.wait_all_tasks_blocked()
        close(broker, gone)
        await trio.testing.wait_all_tasks_blocked()
        assert sum(command.code == 40 for command in stays.sent) == 2
        nursery.cancel_scope.cancel()


def test_a_group_that_was_used_exists_for_administrators(broker: Any, connect: Any) -> None:
    beat(broker, connect(), "a@1")
    assert b'"shop"' in broker.ask(201).body
    assert broker.registry.get(GroupTable).find("shop") == SubscriptionGroupConfig("shop")

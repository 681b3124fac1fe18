"""Administrators' requests: invalid ones are refused with a code and a remark that names the value."""

from __future__ import annotations

import errno
import math
from pathlib import Path
from typing import Any

import pytest

from gantrymq.kernel.metrics import Metrics
from gantrymq.plugins.interfaces import GroupTable, TopicTable
from gantrymq.remoting.bodies.groups import SubscriptionGroupConfig, SubscriptionGroupWrapper
from gantrymq.remoting.bodies.topics import TopicConfigSerializeWrapper

TOPIC = {
    "topic": "orders", "defaultTopic": "TBW102", "readQueueNums": 4, "writeQueueNums": 3, "perm": 6,
    "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false",
}  # fmt: skip


def with_changes(make_broker: Any, *plugins: str) -> tuple[Any, list[tuple[str, bool]]]:
    """A broker, and the list of its changes of topics: the name, and whether the topic existed before."""
    broker = make_broker("topics", *plugins)
    changes: list[tuple[str, bool]] = []
    broker.registry.get(TopicTable).changed = lambda topic, existed: changes.append((topic, existed))
    return broker, changes


def test_a_topic_is_created_changed_written_at_once_and_reported(make_broker: Any, tmp_path: Path) -> None:
    broker, changes = with_changes(make_broker)
    answer = broker.ask(17, TOPIC)
    assert (answer.code, answer.remark) == (0, None)
    config = broker.registry.get(TopicTable).get("orders")
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (4, 3, 6)
    assert broker.ask(17, {**TOPIC, "readQueueNums": 9, "perm": 4, "topicFilterType": "MULTI_TAG"}).code == 0
    stored = TopicConfigSerializeWrapper.from_bytes((tmp_path / "config/topics.json").read_bytes())
    assert stored.topic_config_table["orders"].read_queue_nums == 9
    assert stored.topic_config_table["orders"].perm == 4
    assert changes == [("orders", False), ("orders", True)]


def test_changes_are_timed_by_their_outcome_with_rocketmqs_metrics(make_broker: Any) -> None:
    broker = make_broker("topics")
    for fields in (TOPIC, TOPIC, {**TOPIC, "perm": 77}, {**TOPIC, "topic": "TBW102"}):
        broker.ask(17, fields)
    for body in (b'{"groupName":"g"}', b'{"groupName":"g","brokerId":-1}', b"{"):
        broker.ask(200, body=body)
    metrics = Metrics(100)
    broker.manager.hook.collect_metrics(broker=broker, metrics=metrics)
    topics = metrics.families["rocketmq_topic_create_execution_time_milliseconds"]
    groups = metrics.families["rocketmq_consumer_group_create_execution_time_milliseconds"]
    assert (topics.label_names, groups.label_names) == (("invocation_status", "is_system"), ("invocation_status",))
    counts = [{key: each.buckets[-1][1] for key, each in family.series.items()} for family in (topics, groups)]
    assert counts == [
        {("success", "false"): 2, ("failure", "false"): 1, ("failure", "true"): 1}, {("success",): 1, ("failure",): 2},
    ]  # fmt: skip
    assert [bound for bound, _ in topics.series["success", "false"].buckets] == [10, 100, 1000, 3000, 5000, math.inf]


def test_the_same_again_changes_nothing(make_broker: Any) -> None:
    broker, changes = with_changes(make_broker)
    broker.ask(17, TOPIC)
    broker.ask(17, TOPIC)
    assert changes == [("orders", False)]


def test_a_topic_made_by_a_message_is_reported(make_broker: Any) -> None:
    broker, changes = with_changes(make_broker)
    broker.registry.get(TopicTable).for_send("orders", "TBW102", 4)
    assert changes == [("orders", False)]


@pytest.mark.parametrize(
    ("field", "value", "remark"),
    [
        ("readQueueNums", 0, "readQueueNums is 0, allowed is 1 to 1024"),
        ("readQueueNums", -1, "readQueueNums is -1"),
        ("writeQueueNums", 1025, "writeQueueNums is 1025, allowed is 1 to 1024"),
        ("readQueueNums", 2**31, "readQueueNums"),
        ("readQueueNums", "four", "readQueueNums"),
        ("perm", 8, "perm is 8, allowed is 0 to 7"),
        ("perm", -1, "perm is -1"),
        ("topicSysFlag", 4, "topicSysFlag is 4"),
        ("topicFilterType", "NO_TAG", "topicFilterType is 'NO_TAG', allowed are SINGLE_TAG and MULTI_TAG"),
        ("topic", "../x", "illegal characters"),
        ("topic", "a\0b", "illegal characters"),
        ("topic", "x" * 128, "longer than topic max length"),
        ("topic", " ", "blank"),
        ("topic", "TBW102", "conflict with system topic"),
        ("topic", "SCHEDULE_TOPIC_XXXX", "conflict with system topic"),
        ("topic", "broker-a", "conflict with system topic"),
        ("topic", "DefaultCluster", "conflict with system topic"),
        ("topic", "rmq_sys_x", "conflict with system topic"),
    ],
)
def test_invalid_topic_configurations_are_refused(make_broker: Any, field: str, value: object, remark: str) -> None:
    broker, changes = with_changes(make_broker)
    answer = broker.ask(17, {**TOPIC, field: value})
    assert answer.code == 1
    assert remark in answer.remark
    assert changes == []


@pytest.mark.parametrize("missing", ["topic", "readQueueNums", "perm", "topicFilterType"])
def test_a_missing_field_is_named(make_broker: Any, missing: str) -> None:
    answer = make_broker("topics").ask(17, {key: value for key, value in TOPIC.items() if key != missing})
    assert answer.code == 1
    assert missing in answer.remark


def test_a_full_disk_is_reported_to_the_administrator(make_broker: Any) -> None:
    broker = make_broker("topics")
    broker.env.write_error = OSError(errno.ENOSPC, "No space left on device")
    answer = broker.ask(17, TOPIC)
    assert answer.code == 1
    assert "the change is in force, but" in answer.remark
    assert "topics.json cannot be written: No space left on device" in answer.remark


def test_all_topics_are_listed_with_their_version(make_broker: Any) -> None:
    broker = make_broker("topics")
    broker.ask(17, TOPIC)
    answer = broker.ask(21)
    wrapper = TopicConfigSerializeWrapper.from_bytes(answer.body)
    assert answer.code == 0
    assert {"orders", "TBW102"} <= wrapper.topic_config_table.keys()
    assert wrapper.data_version.counter > 0


def test_a_deleted_topic_loses_configuration_queues_and_offsets(make_broker: Any) -> None:
    broker, changes = with_changes(make_broker, "offsets")
    broker.ask(17, TOPIC)
    broker.queues.add("orders", 0, 10)
    broker.queues.add("other", 0, 10)
    offset = {"consumerGroup": "shop", "topic": "orders", "queueId": 0, "commitOffset": 3}
    assert broker.ask(15, offset).code == 0
    assert broker.ask(215, {"topic": "orders"}).code == 0
    assert broker.registry.get(TopicTable).get("orders") is None
    assert list(broker.queues) == [("other", 0)]
    assert broker.ask(14, {**offset, "setZeroIfNotFound": "false"}).code == 22
    assert changes == [("orders", False), ("orders", True)]


@pytest.mark.parametrize("topic", ["TBW102", "broker-a", "DefaultCluster_REPLY_TOPIC", "../x", ""])
def test_the_brokers_own_topics_and_illegal_names_are_not_deleted(make_broker: Any, topic: str) -> None:
    broker = make_broker("topics")
    before = broker.ask(21).body
    assert broker.ask(215, {"topic": topic}).code == 1
    assert broker.ask(21).body == before


def test_deleting_a_missing_topic_or_group_is_no_error(make_broker: Any) -> None:
    broker = make_broker("topics")
    assert broker.ask(215, {"topic": "nothing"}).code == 0
    assert broker.ask(207, {"groupName": "nobody"}).code == 0


def test_a_group_is_set_listed_and_deleted(make_broker: Any, tmp_path: Path) -> None:
    broker = make_broker("topics")
    body = SubscriptionGroupConfig("shop", consume_enable=False, retry_max_times=3).to_bytes()
    assert broker.ask(200, body=body).code == 0
    listed = SubscriptionGroupWrapper.from_bytes(broker.ask(201).body)
    assert listed.subscription_group_table["shop"].retry_max_times == 3
    assert not broker.registry.get(GroupTable).find("shop").consume_enable
    assert (tmp_path / "config/subscriptionGroup.json").read_bytes() == broker.ask(201).body
    assert broker.ask(207, {"groupName": "shop"}).code == 0
    assert "shop" not in SubscriptionGroupWrapper.from_bytes(broker.ask(201).body).subscription_group_table


@pytest.mark.parametrize("field", ["removeOffset", "cleanOffset"])
def test_a_deleted_group_keeps_its_offsets_unless_requested_otherwise(make_broker: Any, field: str) -> None:
    broker = make_broker("topics", "offsets")
    broker.queues.add("TBW102", 0, 10)
    offset = {"consumerGroup": "shop", "topic": "TBW102", "queueId": 0, "commitOffset": 3}
    broker.ask(15, offset)
    broker.ask(207, {"groupName": "shop"})
    assert broker.ask(14, offset).ext == {"offset": "3"}
    broker.ask(207, {"groupName": "shop", field: "true"})
    assert broker.ask(14, {**offset, "setZeroIfNotFound": "false"}).code == 22


@pytest.mark.parametrize(
    ("body", "remark"),
    [
        (b"", "SubscriptionGroupConfig"),
        (b"{", "SubscriptionGroupConfig"),
        (b"[]", "SubscriptionGroupConfig"),
        (b'{"groupName":"../x"}', "illegal characters"),
        (b'{"groupName":""}', "blank"),
        (b'{"groupName":"%s"}' % (b"g" * 128), "longer than"),
        (b'{"groupName":"g","retryQueueNums":-1}', "retryQueueNums is -1"),
        (b'{"groupName":"g","retryQueueNums":1025}', "retryQueueNums is 1025"),
        (b'{"groupName":"g","retryMaxTimes":-2}', "retryMaxTimes is -2, allowed is -1 to 2147483647"),
        (b'{"groupName":"g","retryMaxTimes":99999999999}', "SubscriptionGroupConfig"),
        (b'{"groupName":"g","brokerId":-1}', "brokerId is -1"),
    ],
)
def test_a_group_that_could_not_work_is_refused(make_broker: Any, body: bytes, remark: str) -> None:
    broker = make_broker("topics")
    before = broker.ask(201).body
    answer = broker.ask(200, body=body)
    assert answer.code == 1
    assert remark in answer.remark
    assert broker.ask(201).body == before


def test_system_groups_exist_and_stay(make_broker: Any) -> None:
    broker = make_broker("topics", **{"plugin.topics.auto_create_groups": "false"})
    groups = broker.registry.get(GroupTable)
    for name in ("TOOLS_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONSAPI_PULL", "CID_ONS-HTTP-PROXY"):
        assert groups.find(name) is not None
    answer = broker.ask(207, {"groupName": "TOOLS_CONSUMER"})
    assert (answer.code, answer.remark) == (1, "the group TOOLS_CONSUMER is a system group and cannot be deleted")


def test_groups_are_created_on_first_use_only_where_that_is_allowed(make_broker: Any) -> None:
    assert make_broker("topics").registry.get(GroupTable).find("shop") == SubscriptionGroupConfig("shop")
    strict = make_broker("topics", **{"plugin.topics.auto_create_groups": "false"}).registry.get(GroupTable)
    assert strict.find("shop") is None
    assert strict.find("CID_RMQ_SYS_x") is not None


@pytest.mark.parametrize("name", ["../x", "a\0b", "g" * 128, "g" * 121, "", "a b"])
def test_an_illegal_group_is_not_created(make_broker: Any, name: str) -> None:
    assert make_broker("topics").registry.get(GroupTable).find(name) is None


def test_groups_have_a_limit(make_broker: Any) -> None:
    broker = make_broker("topics", **{"plugin.topics.max_groups": "8"})
    groups = broker.registry.get(GroupTable)
    assert groups.find("a") is not None
    assert groups.find("b") is None
    answer = broker.ask(200, body=b'{"groupName":"c"}')
    assert answer.code == 1
    assert "8 groups are the limit (plugin.topics.max_groups)" in answer.remark
    assert broker.ask(200, body=b'{"groupName":"a","retryMaxTimes":1}').code == 0

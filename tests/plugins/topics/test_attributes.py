"""Attributes of topics and groups are checked as in 5.3.3, stored and returned; unknown fields of files survive."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gantrymq.plugins.interfaces import GroupTable, TopicTable
from gantrymq.plugins.topics import groups as group_module

TOPIC = {
    "topic": "orders", "defaultTopic": "TBW102", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6,
    "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false",
}  # fmt: skip
GROUP = {
    "groupName": "shop", "retryMaxTimes": 3, "consumeMessageOrderly": True, "consumeTimeoutMinute": 20,
    "groupSysFlag": 1,
    "groupRetryPolicy": {
        "type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 1000, "max": 60000, "multiplier": 3},
    },
    "subscriptionDataSet": [{"topic": "orders", "expressionType": "TAG", "expression": "a||b", "version": 7}],
}  # fmt: skip


def set_topic(broker: Any, attributes: str | None, **fields: Any) -> Any:
    extra = {} if attributes is None else {"attributes": attributes}
    return broker.ask(17, {**TOPIC, **extra, **fields})


def attributes_of(broker: Any, topic: str = "orders") -> Any:
    """The attributes in the response to request 351; None without the field."""
    return json.loads(broker.ask(351, {"topic": topic}).body).get("attributes")


def set_group(broker: Any, **fields: Any) -> Any:
    return broker.ask(200, body=json.dumps({**GROUP, **fields}).encode())


def stored(tmp_path: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((tmp_path / "config" / name).read_bytes())
    return found


def write(tmp_path: Path, name: str, text: object) -> None:
    (tmp_path / "config").mkdir(exist_ok=True)
    (tmp_path / "config" / name).write_text(json.dumps(text))


def test_attributes_are_kept_returned_and_there_after_a_restart(make_broker: Any, tmp_path: Path) -> None:
    broker = make_broker("topics")
    assert set_topic(broker, "+message.type=DELAY,+reserve.time=72").code == 0
    wanted = {"message.type": "DELAY", "reserve.time": "72"}
    assert attributes_of(broker) == wanted
    assert stored(tmp_path, "topics.json")["topicConfigTable"]["orders"]["attributes"] == wanted
    assert json.loads(broker.ask(21).body)["topicConfigTable"]["orders"]["attributes"] == wanted
    again = make_broker("topics")
    assert attributes_of(again) == wanted
    assert set_topic(again, None, readQueueNums=9).code == 0
    assert attributes_of(again) == wanted, "a request without attributes keeps them"
    assert again.registry.get(TopicTable).get("orders").read_queue_nums == 9


def test_attributes_are_changed_added_and_deleted(make_broker: Any) -> None:
    broker = make_broker("topics")
    set_topic(broker, "+message.type=DELAY,+queue.type=SimpleCQ,+cleanup.policy=DELETE")
    assert set_topic(broker, "+message.type=FIFO,+reserve.time=-1").code == 0
    kept = {"queue.type": "SimpleCQ", "cleanup.policy": "DELETE"}
    assert attributes_of(broker) == {"message.type": "FIFO", "reserve.time": "-1", **kept}
    assert set_topic(broker, "-reserve.time,-message.type").code == 0
    assert attributes_of(broker) == kept


def test_a_topic_without_attributes_has_rocketmq_4_9s_form(make_broker: Any) -> None:
    broker = make_broker("topics")
    set_topic(broker, None)
    assert attributes_of(broker) is None
    set_topic(broker, "+message.type=DELAY")
    set_topic(broker, "-message.type")
    assert attributes_of(broker) is None


@pytest.mark.parametrize(
    ("attributes", "remark"),
    [
        ("message.type=DELAY", "add/alter attribute format is wrong: message.type"),
        ("+message.type", "delete attribute format is wrong: +message.type"),
        ("+message.type=", "add/alter attribute format is wrong: +message.type"),
        ("=", "add/alter attribute format is wrong: "),
        (",", "delete attribute format is wrong: "),
        ("+message.type=DELAY,+message.type=FIFO", "key duplication: +message.type"),
        ("+message.type=DELAY,-message.type", "alter duplication key. key: message.type"),
        ("-message.type", "only add attribute is supported while creating topic. key: message.type"),
        ("x+message.type=DELAY", "kv string format wrong."),
        ("+message-type=DELAY", "kv string format wrong."),
        ("+=DELAY", "kv string format wrong."),
        ("+color=red", "unsupported key: color"),
        ("+" + "x" * 300 + "=1", "unsupported key: " + "x" * 100),
        ("+message.type=delay", "value is not in set: [UNSPECIFIED, NORMAL, FIFO, DELAY, TRANSACTION, MIXED]"),
        ("+queue.type=Other", "value is not in set: [BatchCQ, SimpleCQ]"),
        ("+reserve.time=-2", "value is not in range(-1, 9223372036854775807)"),
        ("+reserve.time=soon", 'For input string: "soon"'),
        ("+reserve.time=9223372036854775808", 'For input string: "9223372036854775808"'),
        ("+reserve.time=" + "9" * 5000, 'For input string: "' + "9" * 100 + '"'),
        (
            "+queue.type=BatchCQ",
            "queue.type=BatchCQ is not supported: this broker has no batch consume queues; "
            "create the topic without it or with SimpleCQ",
        ),
        (
            "+cleanup.policy=COMPACTION",
            "cleanup.policy=COMPACTION is not supported: this broker does not compact topics; "
            "create the topic without it or with DELETE",
        ),
    ],
    ids=lambda text: text[:40],
)
def test_invalid_attributes_are_refused_and_create_no_topic(make_broker: Any, attributes: str, remark: str) -> None:
    broker = make_broker("topics")
    answer = set_topic(broker, attributes)
    assert (answer.code, answer.remark) == (1, remark)
    assert broker.registry.get(TopicTable).get("orders") is None


@pytest.mark.parametrize(
    ("attributes", "remark"),
    [
        ("+queue.type=SimpleCQ", "attempt to update an unchangeable attribute. key: queue.type"),
        ("-queue.type", "attempt to update an unchangeable attribute. key: queue.type"),
        ("+cleanup.policy=DELETE", "attempt to update an unchangeable attribute. key: cleanup.policy"),
        ("-reserve.time", "attempt to delete a nonexistent key: reserve.time"),
        ("x-message.type", "kv string format wrong."),
        ("xmessage.type-", "kv string format wrong."),
    ],
)
def test_some_attributes_of_an_existing_topic_cannot_change(make_broker: Any, attributes: str, remark: str) -> None:
    broker = make_broker("topics")
    set_topic(broker, "+queue.type=SimpleCQ,+message.type=FIFO")
    answer = set_topic(broker, attributes, readQueueNums=9)
    assert (answer.code, answer.remark) == (1, remark)
    assert broker.registry.get(TopicTable).get("orders").read_queue_nums == 4


def test_topics_of_mixed_types_are_refused_with_5_3s_code(make_broker: Any) -> None:
    answer = set_topic(make_broker("topics"), "+message.type=MIXED")
    assert (answer.code, answer.remark) == (29, "MIXED message type is not supported.")


def test_5_3s_fields_of_a_group_are_kept_and_returned(make_broker: Any, tmp_path: Path) -> None:
    broker = make_broker("topics")
    assert set_group(broker).code == 0
    for table in (stored(tmp_path, "subscriptionGroup.json"), json.loads(broker.ask(201).body)):
        found = table["subscriptionGroupTable"]["shop"]
        assert {name: found[name] for name in GROUP} == GROUP
    again = make_broker("topics")
    found = json.loads(again.ask(352, {"group": "shop"}).body)
    assert {name: found[name] for name in GROUP} == GROUP


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"attributes": {"+color": "red"}}, "unsupported key: color"),
        ({"attributes": {"color": "red"}}, "only add attribute is supported while creating topic. key: olor"),
        ({"attributes": {"-color": ""}}, "only add attribute is supported while creating topic. key: color"),
        ({"groupRetryPolicy": {"customizedRetryPolicy": {"next": ["soon"]}}}, "int"),
        ({"subscriptionDataSet": [{"version": "new"}]}, "int"),
        ({"subscriptionDataSet": [{"expression": "x" * 65_536}]}, "65536 are the limit"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_groups_with_invalid_fields_are_refused(make_broker: Any, fields: dict[str, Any], said: str) -> None:
    broker = make_broker("topics")
    answer = set_group(broker, **fields)
    assert answer.code == 1
    assert said in answer.remark
    assert len(answer.remark) < 500
    assert "shop" not in broker.registry.get(GroupTable).names()


@pytest.mark.parametrize(
    ("said", "kept"), [("exponential", "EXPONENTIAL"), (0, "EXPONENTIAL"), ("SOMETIMES", "CUSTOMIZED")]
)
def test_the_kind_of_a_retry_policy_is_read_as_java_reads_it(make_broker: Any, said: object, kept: str) -> None:
    broker = make_broker("topics")
    assert set_group(broker, groupRetryPolicy={"type": said}).code == 0
    assert json.loads(broker.ask(352, {"group": "shop"}).body)["groupRetryPolicy"] == {"type": kept}


def test_an_empty_table_of_group_attributes_is_kept_as_5_3_sends_it(make_broker: Any) -> None:
    broker = make_broker("topics")
    assert set_group(broker, attributes={}).code == 0
    assert json.loads(broker.ask(352, {"group": "shop"}).body)["attributes"] == {}


def test_the_settings_of_all_groups_are_bounded(make_broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = make_broker("topics")
    table = broker.registry.get(GroupTable).table
    monkeypatch.setattr(group_module, "TABLE_BYTES_MAX", table.text_bytes + 1000)
    assert set_group(broker).code == 0
    large = [{"expression": "x" * 2000}]
    answer = set_group(broker, groupName="other", subscriptionDataSet=large)
    assert (answer.code, "the settings of all groups" in answer.remark) == (1, True)
    assert table.text_bytes == sum(len(table.text(name)) for name in table.entries)
    broker.ask(207, {"groupName": "shop"})
    assert table.text_bytes == sum(len(table.text(name)) for name in table.entries)


FUTURE_TOPIC = {"topicName": "old", "readQueueNums": 2, "zone": {"b": 1, "a": [None, 2.5]}, "attributes": {}}
FUTURE_GROUP = {"groupName": "shop", "retryMaxTimes": 5, "priority": "high", "attributes": {"x": "y"}}
VERSION = {"counter": 3, "timestamp": 1_700_000_000_000, "stateVersion": 0}


def test_unknown_fields_are_kept(make_broker: Any, tmp_path: Path) -> None:
    topics = {"dataVersion": VERSION, "topicConfigTable": {"old": FUTURE_TOPIC}, "mappings": {"x": [1]}}
    groups = {
        "dataVersion": VERSION,
        "subscriptionGroupTable": {"shop": FUTURE_GROUP},
        "forbiddenTable": {"shop": {"t": 1}},
    }
    write(tmp_path, "topics.json", topics)
    write(tmp_path, "subscriptionGroup.json", groups)
    broker = make_broker("topics")
    assert set_topic(broker, None, topic="old", readQueueNums=7).code == 0
    assert set_group(broker, groupName="shop", attributes={}).code == 0
    assert set_topic(broker, None, topic="new").code == 0
    broker.ask(215, {"topic": "new"})
    kept = stored(tmp_path, "topics.json")
    assert (kept["mappings"], kept["topicConfigTable"]["old"]["zone"]) == ({"x": [1]}, {"b": 1, "a": [None, 2.5]})
    assert (kept["topicConfigTable"]["old"]["readQueueNums"], kept["topicConfigTable"]["old"]["attributes"]) == (7, {})
    kept = stored(tmp_path, "subscriptionGroup.json")
    assert kept["forbiddenTable"] == {"shop": {"t": 1}}
    found = json.loads(broker.ask(352, {"group": "shop"}).body)
    assert found == kept["subscriptionGroupTable"]["shop"]
    assert (found["priority"], found["retryMaxTimes"], found["attributes"]) == ("high", 3, {"x": "y"})
    assert list(found) == sorted(found), "in the order in which RocketMQ writes its keys"
    again = make_broker("topics")
    assert json.loads(again.ask(351, {"topic": "old"}).body)["zone"] == FUTURE_TOPIC["zone"]
    again.ask(215, {"topic": "old"})
    set_topic(again, None, topic="old")
    assert "zone" not in json.loads(again.ask(351, {"topic": "old"}).body), "another topic of that name"


def test_fields_of_a_masters_entries_are_taken_over_by_its_slave(make_broker: Any, tmp_path: Path) -> None:
    broker = make_broker("topics")
    table = {"dataVersion": VERSION, "topicConfigTable": {"old": FUTURE_TOPIC}, "topicQueueMappingInfoMap": {}}
    assert broker.registry.get(TopicTable).adopt(json.dumps(table).encode())
    groups = {"dataVersion": VERSION, "subscriptionGroupTable": {"shop": FUTURE_GROUP}, "forbiddenTable": {"g": {}}}
    assert broker.registry.get(GroupTable).adopt(json.dumps(groups).encode())
    kept = stored(tmp_path, "topics.json")
    assert kept["topicConfigTable"]["old"]["zone"] == FUTURE_TOPIC["zone"]
    assert "topicQueueMappingInfoMap" not in kept
    kept = stored(tmp_path, "subscriptionGroup.json")
    assert kept["subscriptionGroupTable"]["shop"]["priority"] == "high"
    assert kept["forbiddenTable"] == {"g": {}}


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def test_a_field_that_is_nested_too_deeply_costs_itself_alone(make_broker: Any, tmp_path: Path) -> None:
    entry = {**FUTURE_TOPIC, "deep": nested(60)}
    write(tmp_path, "topics.json", {"dataVersion": VERSION, "topicConfigTable": {"old": entry}, "deep": nested(60)})
    broker = make_broker("topics")
    set_topic(broker, None)
    kept = stored(tmp_path, "topics.json")
    assert set(kept) == {"dataVersion", "topicConfigTable"}
    assert kept["topicConfigTable"]["old"]["zone"] == FUTURE_TOPIC["zone"]
    assert "deep" not in kept["topicConfigTable"]["old"]


def test_fields_in_fastjsons_dialect_survive_as_json(make_broker: Any, tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config/topics.json").write_text(
        '{"dataVersion":{"counter":3,"timestamp":1},"topicConfigTable":{"old":{"topicName":"old","zone":{7:"x"}},'
        '"same":{"topicName":"same","zone":{"$ref":"$.topicConfigTable.old.zone"}}}}'
    )
    make_broker("topics").persist()
    kept = (tmp_path / "config/topics.json").read_text()
    assert kept.count('"zone":{7:"x"}') == 2

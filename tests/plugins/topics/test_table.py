"""Topics are created as in RocketMQ, within limits, and are durable before their first message."""

from __future__ import annotations

import errno
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import structlog.testing

from gantrymq.kernel.batch import AppendBatch
from gantrymq.kernel.errors import StartError
from gantrymq.plugins.interfaces import GroupTable, TopicTable
from gantrymq.remoting.bodies.groups import SubscriptionGroupConfig, SubscriptionGroupWrapper
from gantrymq.remoting.bodies.tables import DataVersion
from gantrymq.remoting.bodies.topics import TopicConfig, TopicConfigSerializeWrapper
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.names import SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC


def topics_of(broker: Any) -> TopicTable:
    return broker.registry.get(TopicTable)


def stored(tmp_path: Path) -> TopicConfigSerializeWrapper:
    return TopicConfigSerializeWrapper.from_bytes((tmp_path / "config/topics.json").read_bytes())


@pytest.mark.parametrize(
    ("topic", "queues", "perm"),
    [
        ("TBW102", 8, 7),
        ("SELF_TEST_TOPIC", 1, 6),
        ("BenchmarkTest", 1024, 6),
        ("DefaultCluster", 16, 7),
        ("broker-a", 1, 7),
        ("OFFSET_MOVED_EVENT", 1, 6),
        ("DefaultCluster_REPLY_TOPIC", 1, 6),
        ("RMQ_SYS_TRACE_TOPIC", 1, 6),
    ],
)
def test_a_new_broker_has_rocketmqs_own_topics(make_broker: Any, topic: str, queues: int, perm: int) -> None:
    config = topics_of(make_broker("topics")).get(topic)
    assert config is not None
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (queues, queues, perm)


def test_the_topic_for_traces_may_have_another_name_or_not_be_there(make_broker: Any) -> None:
    named = make_broker("topics", **{"plugin.topics.trace_topic_name": "my-traces"})
    topics = topics_of(named)
    assert (topics.get("my-traces").write_queue_nums, topics.get("RMQ_SYS_TRACE_TOPIC")) == (1, None)
    assert not topics.refuses_sends("my-traces")
    for code in (17, 215):
        refused = named.ask(
            code,
            {
                "topic": "my-traces",
                "defaultTopic": "TBW102",
                "readQueueNums": 1,
                "writeQueueNums": 1,
                "perm": 6,
                "topicFilterType": "SINGLE_TAG",
                "order": "false",
            },
        )
        assert (refused.code, refused.remark) == (1, "The topic[my-traces] is conflict with system topic.")


def test_without_a_topic_for_traces_clients_create_it_as_any_other(make_broker: Any) -> None:
    topics = topics_of(make_broker("topics", **{"plugin.topics.trace_topic": "false"}))
    assert topics.get("RMQ_SYS_TRACE_TOPIC") is None
    assert topics.for_send("RMQ_SYS_TRACE_TOPIC", "TBW102", 4).write_queue_nums == 4


@pytest.mark.parametrize("name", ["", "a topic", "x" * 128, "SCHEDULE_TOPIC_XXXX"])
def test_an_illegal_trace_topic_refuses_the_start(make_broker: Any, name: str) -> None:
    with pytest.raises(StartError, match=r"plugin\.topics\.trace_topic_name = "):
        make_broker("topics", **{"plugin.topics.trace_topic_name": name})


def test_topics_of_features_that_are_missing_are_not_created_and_yet_refuse_sends(make_broker: Any) -> None:
    topics = topics_of(make_broker("topics"))
    for name in ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"):
        assert topics.get(name) is None
        assert topics.refuses_sends(name)
    assert not topics.refuses_sends("BenchmarkTest")
    assert not topics.refuses_sends("orders")


@pytest.mark.parametrize(("wished", "got"), [(4, 4), (100, 8), (8, 8), (1, 1), (0, 1), (-5, 1)])
def test_a_first_message_creates_its_topic_after_tbw102(make_broker: Any, wished: int, got: int) -> None:
    config = topics_of(make_broker("topics")).for_send("orders", "TBW102", wished)
    assert config == TopicConfig("orders", got, got, 6)


def test_default_queues_limits_the_queues_that_a_client_requests(make_broker: Any) -> None:
    broker = make_broker("topics", **{"plugin.topics.default_queues": "3"})
    config = topics_of(broker).for_send("orders", "TBW102", 4)
    assert config is not None
    assert config.write_queue_nums == 3


def test_the_configuration_of_tbw102_wins_over_the_file(make_broker: Any) -> None:
    make_broker("topics").persist()
    config = topics_of(make_broker("topics", **{"plugin.topics.default_queues": "2"})).get("TBW102")
    assert config is not None
    assert config.write_queue_nums == 2


def test_without_auto_create_a_message_creates_nothing(make_broker: Any) -> None:
    make_broker("topics").persist()
    topics = topics_of(make_broker("topics", **{"plugin.topics.auto_create": "false"}))
    assert topics.get("TBW102") is None
    assert topics.for_send("orders", "TBW102", 4) is None


def test_a_default_topic_that_may_not_be_inherited_creates_nothing(make_broker: Any) -> None:
    topics = topics_of(make_broker("topics"))
    assert topics.for_send("orders", "BenchmarkTest", 4) is None
    assert topics.for_send("orders", "no_such_topic", 4) is None


def test_a_topic_that_exists_is_not_touched_by_a_send(make_broker: Any) -> None:
    topics = topics_of(make_broker("topics"))
    first = topics.for_send("orders", "TBW102", 2)
    assert topics.for_send("orders", "TBW102", 8) is first
    assert topics.ensure(TopicConfig("orders", 5, 5)) is first


def test_ensured_queues_are_added_to_an_existing_topic_and_change_nothing_else(make_broker: Any) -> None:
    topics: Any = topics_of(make_broker("topics"))
    changes: list[tuple[str, bool]] = []
    topics.changed = lambda topic, existed: changes.append((topic, existed))
    assert topics.ensure_queues(TopicConfig("orders", 2, 2)) == TopicConfig("orders", 2, 2)
    topics.set(TopicConfig("orders", 1, 5, 4, "MULTI_TAG", 2, order=True, attributes={"message.type": "NORMAL"}))
    version = topics.table.version
    expected = TopicConfig("orders", 3, 5, 4, "MULTI_TAG", 2, order=True, attributes={"message.type": "NORMAL"})
    assert topics.ensure_queues(TopicConfig("orders", 3, 3)) == expected
    assert topics.get("orders") == expected
    assert topics.table.version.counter == version.counter + 1
    assert topics.ensure_queues(TopicConfig("orders", 2, 2)) == expected
    assert changes == [("orders", False), ("orders", True), ("orders", True)]


def test_a_message_creates_the_retry_topic_with_the_queues_of_its_group(make_broker: Any) -> None:
    broker = make_broker("topics")
    for group, count, expected in (("many", 4, 4), ("none", 0, 1)):
        broker.ask(200, body=SubscriptionGroupConfig(group, retry_queue_nums=count).to_bytes())
        topic = topics_of(broker).for_send(f"%RETRY%{group}", "TBW102", 8)
        assert topic == TopicConfig(f"%RETRY%{group}", expected, expected, 6)


def test_a_retry_topic_has_one_queue_and_needs_its_group(make_broker: Any) -> None:
    broker = make_broker("topics", **{"plugin.topics.auto_create_groups": "false"})
    with pytest.raises(RemoteFault) as caught:
        topics_of(broker).for_send("%RETRY%nobody", "TBW102", 4)
    assert caught.value.code == 26
    assert topics_of(broker).get("%RETRY%nobody") is None
    assert topics_of(broker).for_send("%RETRY%TOOLS_CONSUMER", "TBW102", 4) == TopicConfig(
        "%RETRY%TOOLS_CONSUMER", 1, 1, 6
    )


@pytest.mark.parametrize("name", ["../x", "a/b", "a\0b", "x" * 128, "", "  ", "ünicode", "a b", "."])
def test_an_illegal_name_creates_nothing(make_broker: Any, name: str) -> None:
    topics = topics_of(make_broker("topics"))
    for create in (lambda: topics.for_send(name, "TBW102", 4), lambda: topics.ensure(TopicConfig(name, 1, 1))):
        with pytest.raises(RemoteFault) as caught:
            create()
        assert caught.value.code == 1
        assert "topic" in caught.value.remark
    assert topics.get(name) is None


def test_topics_have_a_limit_that_retry_topics_do_not_use_up(make_broker: Any) -> None:
    broker = make_broker("topics", **{"plugin.topics.max_topics": "2"})
    topics = topics_of(broker)
    assert topics.for_send("a", "TBW102", 4)
    assert topics.for_send("b", "TBW102", 4)
    for create in (lambda: topics.for_send("c", "TBW102", 4), lambda: topics.ensure(TopicConfig("c", 1, 1))):
        with pytest.raises(RemoteFault) as caught:
            create()
        assert caught.value.code == 1
        assert "2 topics are the limit (plugin.topics.max_topics)" in caught.value.remark
    assert topics.for_send("%RETRY%g", "TBW102", 4)
    assert topics.for_send("a", "TBW102", 4)


def test_a_topic_beyond_the_limit_is_logged_once_an_hour(make_broker: Any) -> None:
    broker = make_broker("topics", **{"plugin.topics.max_topics": "1"})
    topics = topics_of(broker)
    assert topics.for_send("a", "TBW102", 4)
    with structlog.testing.capture_logs() as logs:
        for name, seconds in (("b", 0), ("c", 3599), ("d", 1)):
            broker.env.now += seconds
            with pytest.raises(RemoteFault):
                topics.for_send(name, "TBW102", 4)
    logged = [(each["event"], each["log_level"], each["topic"]) for each in logs]
    assert logged == [("topic_not_created", "warning", "b"), ("topic_not_created", "warning", "d")]
    assert logs[0]["reason"].endswith("1 topics are the limit (plugin.topics.max_topics)")


def test_the_topic_of_a_groups_dead_letters_is_created_at_the_limit(make_broker: Any) -> None:
    broker = make_broker("topics", **{"plugin.topics.max_topics": "1"})
    topics = topics_of(broker)
    assert topics.for_send("a", "TBW102", 4)
    broker.registry.get(GroupTable).find("g")
    for name in ("%DLQ%unknown", "%DLQ%"):
        for create in (partial(topics.for_send, name, "TBW102", 4), partial(topics.ensure, TopicConfig(name, 1, 1))):
            with pytest.raises(RemoteFault, match="1 topics are the limit"):
                create()
    assert topics.ensure_queues(TopicConfig("%DLQ%g", 1, 1)) == TopicConfig("%DLQ%g", 1, 1)
    for name in ("%DLQ%g", "a"):
        assert broker.ask(215, {"topic": name}).code == 0
    assert topics.for_send("b", "TBW102", 4)
    with pytest.raises(RemoteFault, match="1 topics are the limit"):
        topics.for_send("c", "TBW102", 4)


def test_system_topics_are_created_at_the_limit_and_names_like_theirs_are_not(make_broker: Any) -> None:
    topics = topics_of(make_broker("topics", **{"plugin.topics.max_topics": "1"}))
    assert topics.for_send("a", "TBW102", 4)
    for name in (TRANS_HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC):
        assert topics.ensure(TopicConfig(name, 1, 1)).topic_name == name
    with pytest.raises(RemoteFault, match="1 topics are the limit"):
        topics.for_send("rmq_sys_other", "TBW102", 4)


def test_a_deleted_topic_makes_room(make_broker: Any) -> None:
    broker = make_broker("topics", **{"plugin.topics.max_topics": "1"})
    assert topics_of(broker).for_send("a", "TBW102", 4)
    assert broker.ask(215, {"topic": "a"}).code == 0
    assert topics_of(broker).for_send("b", "TBW102", 4)


def test_topics_created_by_one_sweep_are_written_once_and_before_their_messages(
    make_broker: Any, tmp_path: Path
) -> None:
    broker = make_broker("topics")
    broker.persist()
    broker.env.writes.clear()
    for name in ("a", "b", "c"):
        topics_of(broker).for_send(name, "TBW102", 4)
    assert broker.env.writes == []
    broker.manager.hook.before_append(batch=AppendBatch())
    assert broker.env.writes == ["topics.json"]
    assert {"a", "b", "c"} <= stored(tmp_path).topic_config_table.keys()
    broker.manager.hook.before_append(batch=AppendBatch())
    assert broker.env.writes == ["topics.json"], "nothing changed"


def test_a_full_disk_does_not_stop_the_sweep_and_the_next_one_tries_again(make_broker: Any, tmp_path: Path) -> None:
    broker = make_broker("topics")
    topics_of(broker).for_send("a", "TBW102", 4)
    broker.env.write_error = OSError(errno.ENOSPC, "No space left on device")
    broker.manager.hook.before_append(batch=AppendBatch())
    broker.env.write_error = None
    broker.manager.hook.before_append(batch=AppendBatch())
    assert "a" in stored(tmp_path).topic_config_table


def test_written_topics_are_read_again(make_broker: Any) -> None:
    broker = make_broker("topics")
    created = topics_of(broker).for_send("orders", "TBW102", 4)
    broker.registry.get(GroupTable).find("shop")
    broker.persist()
    version = broker.manager.hook.advertise(broker=broker)[0]["topic_config_serialize_wrapper"].data_version
    again = make_broker("topics")
    assert topics_of(again).get("orders") == created
    assert again.manager.hook.advertise(broker=again)[0]["topic_config_serialize_wrapper"].data_version == version
    again.env.writes.clear()
    again.persist()
    assert again.env.writes == [], "a start without changes writes nothing"


def test_each_change_takes_the_next_data_version(make_broker: Any) -> None:
    broker = make_broker("topics")
    before = broker.manager.hook.advertise(broker=broker)[0]["topic_config_serialize_wrapper"].data_version
    topics_of(broker).for_send("a", "TBW102", 4)
    after = broker.manager.hook.advertise(broker=broker)[0]["topic_config_serialize_wrapper"].data_version
    assert after.counter == before.counter + 1
    topics_of(broker).for_send("a", "TBW102", 4)
    assert broker.manager.hook.advertise(broker=broker)[0]["topic_config_serialize_wrapper"].data_version == after


JAVA_TOPICS = b"""{
\t"dataVersion":{
\t\t"counter":3,
\t\t"stateVersion":0,
\t\t"timestamp":1700000000123
\t},
\t"topicConfigTable":{
\t\t"orders":{
\t\t\t"attributes":{},
\t\t\t"order":false,
\t\t\t"perm":6,
\t\t\t"readQueueNums":4,
\t\t\t"topicFilterType":"SINGLE_TAG",
\t\t\t"topicName":"orders",
\t\t\t"topicSysFlag":0,
\t\t\t"writeQueueNums":4
\t\t},
\t\t"TBW102":{"order":false,"perm":7,"readQueueNums":8,"topicFilterType":"SINGLE_TAG","topicName":"TBW102","writeQueueNums":8},
\t\t"../evil":{"topicName":"../evil","perm":6}
\t}
}"""


def test_javas_file_is_read_and_an_illegal_name_in_it_left_out(make_broker: Any, tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config/topics.json").write_bytes(JAVA_TOPICS)
    topics = topics_of(make_broker("topics"))
    config = topics.get("orders")
    assert config is not None
    assert (config.read_queue_nums, config.perm, config.attributes) == (4, 6, {})
    assert topics.get("../evil") is None


@pytest.mark.parametrize("broken", [b"", b"{", b'{"topicConfigTable":{"a":{"perm":"x"}}}', b"\xff\xfe", b"[1]"])
def test_a_broken_file_falls_back_to_its_backup_and_is_kept_aside(
    make_broker: Any, tmp_path: Path, broken: bytes
) -> None:
    broker = make_broker("topics")
    topics_of(broker).for_send("orders", "TBW102", 4)
    broker.persist()
    topics_of(broker).for_send("later", "TBW102", 4)
    broker.persist()
    file = tmp_path / "config/topics.json"
    file.write_bytes(broken)
    again = make_broker("topics")
    assert topics_of(again).get("orders") is not None
    assert topics_of(again).get("later") is None
    topics_of(again).for_send("next", "TBW102", 4)
    again.persist()
    assert (tmp_path / "config/topics.json.bad").read_bytes() == broken
    assert "orders" in stored(tmp_path).topic_config_table
    assert b"orders" in (tmp_path / "config/topics.json.bak").read_bytes(), "the good backup was not overwritten"


def test_a_missing_file_is_taken_from_its_backup(make_broker: Any, tmp_path: Path) -> None:
    broker = make_broker("topics")
    topics_of(broker).for_send("orders", "TBW102", 4)
    broker.persist()
    (tmp_path / "config/topics.json").rename(tmp_path / "config/topics.json.bak")
    assert topics_of(make_broker("topics")).get("orders") is not None


@pytest.mark.parametrize("name", ["topics.json", "subscriptionGroup.json"])
def test_two_broken_files_refuse_the_start_and_say_what_to_do(make_broker: Any, tmp_path: Path, name: str) -> None:
    broker = make_broker("topics", configured=False)
    (tmp_path / "config").mkdir()
    (tmp_path / f"config/{name}").write_bytes(b"{")
    (tmp_path / f"config/{name}.bak").write_bytes(b"")
    with pytest.raises(StartError) as caught:
        broker.configure()
    text = str(caught.value)
    assert f"config/{name}: " in text
    assert f"config/{name}.bak: " in text
    assert "move it and its .bak away to start with an empty table" in text
    broker.persist()
    assert (tmp_path / f"config/{name}").read_bytes() == b"{", "a refused start writes nothing"


def test_topics_created_by_senders_in_unit_mode_are_flagged(make_broker: Any) -> None:
    broker = make_broker("topics")
    topics, groups = topics_of(broker), broker.registry.get(GroupTable)
    assert groups.find("consumers") is not None
    for name, flag in (("orders", 1), ("%RETRY%consumers", 2)):
        config = topics.for_send(name, "TBW102", 4, True)
        assert config is not None
        assert config.topic_sys_flag == flag


def test_a_group_that_only_a_slave_s_reader_names_is_logged_once(make_broker: Any) -> None:
    """Its master does not know the group, so each fetch of the master's table takes it away."""
    groups = make_broker("topics").registry.get(GroupTable)
    with structlog.testing.capture_logs() as logs:
        for counter in range(1, 4):
            version = DataVersion(timestamp=counter, counter=counter)
            assert groups.find("reader") is not None
            assert groups.adopt(SubscriptionGroupWrapper(data_version=version).to_bytes())
            assert "reader" not in groups.names()
    assert [entry["group"] for entry in logs if entry["event"] == "group_created"] == ["reader"]


def test_topics_adopted_from_a_master_are_written_at_once(make_broker: Any, tmp_path: Path) -> None:
    received = TopicConfigSerializeWrapper({"orders": TopicConfig("orders", 2, 2, 6)})
    assert topics_of(make_broker("topics")).adopt(received.to_bytes())
    assert stored(tmp_path).topic_config_table["orders"].read_queue_nums == 2

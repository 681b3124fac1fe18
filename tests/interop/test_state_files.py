"""Topics, groups and offsets move between RocketMQ's brokers and ours, by files and by requests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from gantrymq.kernel.env.system import SystemEnv
from gantrymq.plugins.interfaces import GroupTable, Registration, TopicTable
from gantrymq.plugins.offsets.table import Offsets
from gantrymq.plugins.topics.config import TopicsConfig
from gantrymq.plugins.topics.groups import Groups
from gantrymq.plugins.topics.table import Topics
from gantrymq.remoting.bodies.groups import (
    ExponentialRetryPolicy,
    GroupRetryPolicy,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
)
from gantrymq.remoting.bodies.topics import TopicConfig, TopicConfigSerializeWrapper
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.command import Command
from gantrymq.testing.harness import make_broker, run_broker
from support.foreign import BROKER_STOP_SECONDS, Java, ask, start_broker, start_nameserver
from support.mqadmin import KeyedMqAdmin

pytestmark = [pytest.mark.once, pytest.mark.interop, pytest.mark.slow]

Homes = Callable[[str], Path]

POLICY = GroupRetryPolicy("EXPONENTIAL", ExponentialRetryPolicy(1000, 60_000, 3))
"""The retry policy of a group for 5.3.3; 4.9.7 drops it, and attributes, when it writes the files."""


@pytest.fixture(params=["java", "java5"])
def any_java(request: pytest.FixtureRequest) -> Java:
    """RocketMQ 4.9.7 and 5.3.3."""
    java: Java = request.getfixturevalue(request.param)
    return java


def request(address: str, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> Command:
    """The answer to one request."""
    return ask(address, Command(code, ext, body))


def write_state(store: Path) -> None:
    """Let our own tables write all three files, as a broker does."""
    env, config, folder = SystemEnv(), TopicsConfig(), f"{store}/config"
    env.mkdirs(folder)
    groups = Groups(env, f"{folder}/subscriptionGroup.json", config)
    topics = Topics(env, f"{folder}/topics.json", config, groups, "DefaultCluster", "gantry")
    offsets = Offsets(env, f"{folder}/consumerOffset.json", 100, lambda topic, queue_id: 100)
    topics.ensure(TopicConfig("orders", 3, 2, 6))
    topics.ensure(TopicConfig("typed", 1, 1, 6, attributes={"message.type": "DELAY"}))
    groups.find("shop")
    groups.set(SubscriptionGroupConfig("exponential", group_retry_policy=POLICY))
    offsets.commit("shop", "orders", 0, 5)
    offsets.commit("shop", "orders", 2, 7)
    topics.table.save()
    groups.table.save()
    for path, data in (offsets.changes() or {}).items():
        env.replace(path, data)


def test_java_reads_our_state_files_and_we_read_its_rewrites(
    any_java: Java, java_nameserver: object, homes: Homes
) -> None:
    nameserver = java_nameserver.address  # type: ignore[attr-defined]
    store = homes("store")
    offsets = {"consumerGroup": "shop", "topic": "orders", "queueId": "2", "setZeroIfNotFound": "false"}
    write_state(store)
    java = start_broker(any_java, homes("broker"), nameserver, name=f"crossing-{any_java.version}", store=store)
    with java.child:
        topics = TopicConfigSerializeWrapper.from_bytes(request(java.address, 21).body).topic_config_table
        assert (topics["orders"].read_queue_nums, topics["orders"].write_queue_nums) == (3, 2)
        groups = SubscriptionGroupWrapper.from_bytes(request(java.address, 201).body).subscription_group_table
        assert groups["shop"].retry_max_times == 16
        if any_java.version.startswith("5"):
            assert topics["typed"].attributes == {"message.type": "DELAY"}
            assert groups["exponential"].group_retry_policy == POLICY
        assert request(java.address, 14, offsets).ext == {"offset": "7"}
        changed = TopicConfig("returns", 5, 5, 6)
        answer = request(java.address, 17, {
            "topic": changed.topic_name, "defaultTopic": "TBW102", "readQueueNums": "5", "writeQueueNums": "5",
            "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
        })  # fmt: skip
        assert answer.code == 0, answer.remark
        body = SubscriptionGroupConfig("bar", retry_max_times=3).to_bytes()
        assert request(java.address, 200, body=body).code == 0
        assert request(java.address, 15, {**offsets, "queueId": "1", "commitOffset": "9"}).code == 0
        assert java.child.terminate(BROKER_STOP_SECONDS) in (0, 143)

    # Of the file: a broker that starts sets offsets behind the end of a queue back, and these queues are empty.
    committed = Offsets(SystemEnv(), f"{store}/config/consumerOffset.json", 100, lambda topic, queue_id: 100)
    assert [committed.query("shop", "orders", queue_id) for queue_id in range(3)] == [5, 9, 7]

    async def read() -> None:
        broker = make_broker(store, settings={"store.commit_log_file_bytes": "1 GiB"})
        async with run_broker(broker):
            table = broker.registry.get(TopicTable)
            assert [table.get(name).read_queue_nums for name in ("orders", "returns")] == [3, 5]  # type: ignore[union-attr]
            group = broker.registry.get(GroupTable).find("bar")
            assert group is not None
            assert group.retry_max_times == 3
            typed, exponential = table.get("typed"), broker.registry.get(GroupTable).find("exponential")
            assert typed is not None
            assert exponential is not None
            if any_java.version.startswith("5"):
                assert typed.attributes == {"message.type": "DELAY"}
                assert exponential.group_retry_policy == POLICY

    trio.run(read)


def test_javas_nameserver_registers_our_broker_its_topics_and_its_removal(
    any_java: Java, homes: Homes, tmp_path: Path
) -> None:
    nameserver = start_nameserver(any_java, homes("nameserver"))

    async def route(topic: str) -> int:
        async with open_channel(nameserver.address) as channel:
            return (await channel.call(Command(105, {"topic": topic}))).code

    async def life() -> None:
        broker = make_broker(tmp_path, [nameserver.address])
        async with run_broker(broker):
            assert await broker.registry.get(Registration).wait_first(10.0)
            assert await route("TBW102") == 0
            assert await route("orders") == 17
            broker.registry.get(TopicTable).for_send("orders", "TBW102", 4)
            with trio.fail_after(10):
                while await route("orders") != 0:
                    pass
        with trio.fail_after(10):  # RocketMQ 5.3.3 removes a broker after its answer (BatchUnregistrationService)
            while await route("TBW102") != 17:  # noqa: ASYNC110
                await trio.sleep(0.05)

    try:
        trio.run(life)
    finally:
        nameserver.child.kill()
        nameserver.child.stop()


def test_mqadmin_5_changes_and_deletes_topics_and_groups(
    mqadmin5: KeyedMqAdmin, system: object, names: Callable[[str], str]
) -> None:
    topic, group = names("t"), names("g")
    nameserver, broker = system.nameserver, system.broker  # type: ignore[attr-defined]

    def admin(command: str, *arguments: str) -> str:
        return mqadmin5(None, command, "-n", nameserver, *arguments)

    assert "success" in admin("updateTopic", "-b", broker, "-t", topic, "-r", "3", "-w", "3", "-p", "4")
    assert TopicConfigSerializeWrapper.from_bytes(request(broker, 21).body).topic_config_table[topic].perm == 4
    assert "success" in admin("updateSubGroup", "-b", broker, "-g", group, "-r", "5")
    groups = SubscriptionGroupWrapper.from_bytes(request(broker, 201).body).subscription_group_table
    assert groups[group].retry_max_times == 5
    assert "success" in admin("deleteSubGroup", "-b", broker, "-g", group)
    assert group not in SubscriptionGroupWrapper.from_bytes(request(broker, 201).body).subscription_group_table
    assert "success" in admin("deleteTopic", "-c", "DefaultCluster", "-t", topic)
    assert topic not in TopicConfigSerializeWrapper.from_bytes(request(broker, 21).body).topic_config_table
    assert request(nameserver, 105, {"topic": topic}).code == 17

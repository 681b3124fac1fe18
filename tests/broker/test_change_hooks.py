"""The hooks ``topics_changed`` and ``groups_changed``: who gets which names, in how many calls."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from gantrymq.kernel import hookimpl
from gantrymq.kernel.api import Broker
from gantrymq.kernel.changes import GroupsBatch, TopicsBatch
from gantrymq.plugins.interfaces import ConsumerGroups, TopicTable
from gantrymq.remoting.bodies.clients import ConsumerData, HeartbeatData, SubscriptionData
from gantrymq.remoting.bodies.topics import TopicConfig
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.testing.harness import make_broker, run_broker
from gantrymq.testing.requests import send

pytestmark = pytest.mark.trio


class Watcher:
    """Keeps the batches of both hooks, and the state that it finds in the tables at that time."""

    name = "watcher"

    def __init__(self) -> None:
        self.topics: list[TopicsBatch] = []
        self.queues: list[dict[str, int]] = []
        self.groups: list[dict[str, list[str]]] = []
        self.fails = False

    @hookimpl
    def configure(self, broker: Broker) -> None:
        self.broker = broker

    @hookimpl
    def topics_changed(self, batch: TopicsBatch) -> None:
        if self.fails:
            raise RuntimeError("no")
        table = self.broker.registry.get(TopicTable)
        configs = {topic: table.get(topic) for topic in (*batch.created, *batch.changed)}
        self.queues.append({topic: config.read_queue_nums for topic, config in configs.items() if config})
        self.topics.append(batch)

    @hookimpl
    def groups_changed(self, batch: GroupsBatch) -> None:
        groups = self.broker.registry.get(ConsumerGroups)
        self.groups.append({group: groups.client_ids(group) for group in batch.groups})


async def until(condition: Callable[[], object]) -> None:
    with trio.fail_after(30):
        while not condition():  # noqa: ASYNC110 - a hook has no event of trio
            await trio.sleep(0.005)


async def set_topic(channel: Channel, topic: str, queues: int) -> None:
    fields: dict[str, Any] = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": queues, "writeQueueNums": queues, "perm": 6,
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false",
    }  # fmt: skip
    ext = {key: str(value) for key, value in fields.items()}
    assert (await channel.call(Command(RequestCode.UPDATE_AND_CREATE_TOPIC, ext))).code == 0


async def test_a_plugin_gets_created_changed_and_removed_topics_with_their_settings(tmp_path: Path) -> None:
    watcher = Watcher()
    async with run_broker(make_broker(tmp_path, enable=[watcher])) as broker, open_channel(broker.address) as channel:
        assert (await channel.call(send("by-message", b"x"))).code == 0
        await until(lambda: len(watcher.topics) == 1)
        assert watcher.topics == [TopicsBatch(created=["by-message"])]
        await set_topic(channel, "orders", 3)
        await until(lambda: len(watcher.topics) == 2)
        await set_topic(channel, "orders", 3)  # changes nothing
        await set_topic(channel, "orders", 5)
        await until(lambda: len(watcher.topics) == 3)
        removal = Command(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"})
        assert (await channel.call(removal)).code == 0
        await until(lambda: len(watcher.topics) == 4)
    assert watcher.topics[1:] == [
        TopicsBatch(created=["orders"]), TopicsBatch(changed=["orders"]), TopicsBatch(removed=["orders"])
    ]  # fmt: skip
    assert watcher.queues == [{"by-message": 1}, {"orders": 3}, {"orders": 5}, {}]


async def test_all_changes_of_a_turn_are_one_call_with_the_result(tmp_path: Path) -> None:
    watcher = Watcher()
    async with run_broker(make_broker(tmp_path, enable=[watcher])) as broker:
        table: Any = broker.registry.get(TopicTable)
        for number in range(3):
            table.ensure(TopicConfig(f"t{number}", 1, 1))
        table.set(TopicConfig("t1", 2, 2))
        table.remove("t2")
        await until(lambda: watcher.topics)
        assert watcher.topics == [TopicsBatch(created=["t0", "t1"])]
        table.remove("t1")
        table.ensure(TopicConfig("t1", 4, 4))
        await until(lambda: len(watcher.topics) == 2)
        assert watcher.topics[1] == TopicsBatch(changed=["t1"])


async def test_a_failing_plugin_is_reported_and_the_registration_continues(tmp_path: Path) -> None:
    watcher = Watcher()
    watcher.fails = True
    async with run_broker(make_broker(tmp_path, enable=[watcher])) as broker, open_channel(broker.address) as channel:
        for number in range(12):
            assert (await channel.call(send(f"t{number}", b"x"))).code == 0
            await until(partial(fails_at_least, broker, min(number + 1, 10)))
        assert errors(broker) == 10  # afterwards it is not called again


def fails_at_least(broker: Any, count: int) -> bool:
    return errors(broker) >= count


def errors(broker: Any) -> int:
    found = broker.manager.activity.errors.get("watcher", {}).get("topics_changed")
    return 0 if found is None else found.count


async def test_a_plugin_gets_groups_whose_members_or_subscriptions_changed(tmp_path: Path) -> None:
    watcher = Watcher()

    def beat(client: str, expression: str = "*") -> Command:
        wish = SubscriptionData("orders", expression, sub_version=len(expression))
        data = HeartbeatData(client, [], [ConsumerData("billing", subscription_data_set=[wish])])
        return Command(RequestCode.HEART_BEAT, body=data.to_bytes())

    async with run_broker(make_broker(tmp_path, enable=[watcher])) as broker:
        async with open_channel(broker.address) as one, open_channel(broker.address) as two:
            assert (await one.call(beat("a@1"))).code == 0
            await until(lambda: len(watcher.groups) == 1)
            assert (await two.call(beat("b@1"))).code == 0
            await until(lambda: len(watcher.groups) == 2)
            for _ in range(3):
                assert (await two.call(beat("b@1"))).code == 0  # changes nothing
            assert (await two.call(beat("b@1", "red"))).code == 0
            await until(lambda: len(watcher.groups) == 3)
            leave = {"clientID": "b@1", "consumerGroup": "billing"}
            assert (await two.call(Command(RequestCode.UNREGISTER_CLIENT, leave))).code == 0
            await until(lambda: len(watcher.groups) == 4)
        await until(lambda: len(watcher.groups) == 5)  # the last one has disconnected
    members = [sorted(batch["billing"]) for batch in watcher.groups]
    assert members == [["a@1"], ["a@1", "b@1"], ["a@1", "b@1"], ["a@1"], []]


async def test_without_a_plugin_that_has_the_hooks_nothing_is_collected(tmp_path: Path) -> None:
    broker = make_broker(tmp_path, disable=["register", "filter"])
    async with run_broker(broker):
        groups: Any = broker.registry.get(ConsumerGroups)
        table: Any = broker.registry.get(TopicTable)
        assert groups.updated is None
        assert table.changed.__name__ == "_ignore_change"
        await until(lambda: "clients.expire" in broker.manager.activity.tasks.get("clients", {}))  # tasks have begun
        assert "topics.changes" not in broker.manager.activity.tasks["clients"]
        assert "topics" not in broker.manager.activity.tasks

"""The hooks for changes of topics, groups, offsets and dead letters: the batches that plugins get."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from gantrymq.kernel import hookimpl
from gantrymq.kernel.api import Broker
from gantrymq.kernel.batch import AppendBatch, Source
from gantrymq.kernel.changes import DeadLettersBatch, GroupsBatch, OffsetsBatch, TopicsBatch
from gantrymq.plugins.interfaces import ConsumerGroups, ConsumerOffsets, GroupTable, TopicTable
from gantrymq.remoting.bodies.clients import ConsumerData, HeartbeatData, SubscriptionData
from gantrymq.remoting.bodies.topics import TopicConfig
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.testing.harness import make_broker, run_broker
from gantrymq.testing.requests import pull, send

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
        offsets: Any = broker.registry.get(ConsumerOffsets)
        assert groups.updated is None
        assert offsets.committed is None
        assert table.changed.__name__ == "_ignore_change"
        await until(lambda: "clients.expire" in broker.manager.activity.tasks.get("clients", {}))  # tasks have begun
        assert "topics.changes" not in broker.manager.activity.tasks["clients"]
        assert "topics" not in broker.manager.activity.tasks
        assert "offsets" not in broker.manager.activity.tasks


class Follower:
    """Keeps the batches of ``offsets_committed`` and ``dead_lettered``; refuses what ``refused`` says."""

    name = "follower"
    sources = (Source.RESEND, Source.RETRY)

    def __init__(self) -> None:
        self.offsets: list[OffsetsBatch] = []
        self.letters: list[DeadLettersBatch] = []
        self.refused = b""

    @hookimpl(trylast=True)
    def before_append(self, batch: AppendBatch) -> None:
        for row in batch.live:
            if batch.bodies[row] == self.refused:
                batch.refuse(row, ResponseCode.NO_PERMISSION, "no")

    @hookimpl
    def offsets_committed(self, batch: OffsetsBatch) -> None:
        self.offsets.append(batch)

    @hookimpl
    def dead_lettered(self, batch: DeadLettersBatch) -> None:
        self.letters.append(batch)

    def rows(self) -> list[tuple[str, str, int, int]]:
        columns = [(each.groups, each.topics, each.queue_ids, each.offsets) for each in self.offsets]
        return [row for batch in columns for row in zip(*batch, strict=True)]


def commit(group: str, offset: int, queue_id: int = 0) -> Command:
    ext = {"consumerGroup": group, "topic": "T", "queueId": str(queue_id), "commitOffset": str(offset)}
    return Command(RequestCode.UPDATE_CONSUMER_OFFSET, ext)


async def test_a_plugin_gets_committed_offsets_of_requests_pulls_and_plugins(tmp_path: Path) -> None:
    follower = Follower()
    async with run_broker(make_broker(tmp_path, enable=[follower])) as broker, open_channel(broker.address) as channel:
        for _ in range(3):
            assert (await channel.call(send("T", b"x", queues=2))).code == 0
        assert (await channel.call(commit("billing", 1))).code == 0
        await until(lambda: len(follower.rows()) == 1)
        assert (await channel.call(commit("billing", 1))).code == 0  # changes nothing
        committing = pull("T", offset=2, group="billing")
        assert committing.ext is not None
        committing.ext |= {"sysFlag": str(int(committing.ext["sysFlag"]) | 1), "commitOffset": "2"}
        assert (await channel.call(committing)).code == 0
        await until(lambda: len(follower.rows()) == 2)
        # several changes of one turn: the newest offset of each queue, in one call
        offsets = broker.registry.get(ConsumerOffsets)
        offsets.commit("billing", "T", 0, 3)
        offsets.commit("billing", "T", 0, 1)
        offsets.commit("shipping", "T", 0, 900)
        await until(lambda: len(follower.rows()) == 4)
        assert len(follower.offsets) == 3
        assert offsets.query("shipping", "T", 0) == 3
    assert follower.rows() == [("billing", "T", 0, 1), ("billing", "T", 0, 2), ("billing", "T", 0, 1),
                               ("shipping", "T", 0, 3)]  # fmt: skip


async def test_a_plugin_gets_dead_letters_of_consumers_and_of_resending_clients(tmp_path: Path) -> None:
    follower = Follower()

    def back(offset: int, level: int) -> Command:
        ext = {"offset": str(offset), "group": "billing", "delayLevel": str(level), "unitMode": "false"}
        return Command(RequestCode.CONSUMER_SEND_MSG_BACK, ext)

    async with run_broker(make_broker(tmp_path, enable=[follower])) as broker, open_channel(broker.address) as channel:
        sent = await channel.call(send("T", b"poison"))
        assert sent.ext is not None
        offset = int(sent.ext["msgId"][16:], 16)
        assert (await channel.call(back(offset, 1))).code == 0  # a retry, no dead letter
        end = broker.log.end
        assert (await channel.call(back(offset, -1))).code == 0
        [letters] = follower.letters
        assert letters == DeadLettersBatch(["billing"], ["T"], [sent.ext["msgId"]], [1], [end], [0])

        resent = send("%RETRY%billing", b"poison", properties="RETRY_TOPIC\x01T\x02ORIGIN_MESSAGE_ID\x01id")
        assert resent.ext is not None
        again = Command(RequestCode.SEND_MESSAGE_V2, resent.ext | {"j": "2", "l": "9"}, b"the second attempt")
        letter = Command(RequestCode.SEND_MESSAGE_V2, resent.ext | {"j": "16", "l": "16"}, b"poison")
        groups = broker.registry.get(GroupTable)
        assert groups.find("billing") is not None
        assert (await channel.call(again)).code == 0
        end = broker.log.end
        assert (await channel.call(letter)).code == 0
        assert follower.letters[1:] == [DeadLettersBatch(["billing"], ["T"], ["id"], [16], [end], [1])]

        follower.refused = b"poison"
        assert (await channel.call(back(offset, -1))).code == ResponseCode.SYSTEM_ERROR
        assert (await channel.call(letter)).code == ResponseCode.NO_PERMISSION
        assert len(follower.letters) == 2

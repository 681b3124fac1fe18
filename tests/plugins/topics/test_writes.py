"""A worker thread writes the tables that requests change, so that other clients do not wait for a large file."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from gantrymq.kernel.env.system import SystemEnv
from gantrymq.plugins.interfaces import TopicTable
from gantrymq.plugins.topics.statetable import StateTable
from gantrymq.remoting.bodies.topics import TopicConfig, TopicConfigSerializeWrapper
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.testing.harness import make_broker, run_broker
from gantrymq.testing.requests import pull, send

pytestmark = pytest.mark.trio


class SlowTableEnv(SystemEnv):
    """The real disk, on which the writes of a table wait for the test."""

    def __init__(self) -> None:
        super().__init__()
        self.may_write = threading.Event()
        self.may_write.set()
        self.began = threading.Event()
        self.written: list[str] = []
        self.error: OSError | None = None

    def replace(self, path: str, data: bytes) -> None:
        name = Path(path).name
        if name in ("topics.json", "subscriptionGroup.json"):
            self.began.set()
            self.may_write.wait(3)
            if self.error is not None:
                raise self.error
            self.written.append(name)
        super().replace(path, data)

    async def until_writing(self) -> None:
        await trio.to_thread.run_sync(self.began.wait)


def creation(topic: str) -> Command:
    fields: dict[str, Any] = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": 3, "writeQueueNums": 3, "perm": 6,
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false",
    }  # fmt: skip
    return Command(RequestCode.UPDATE_AND_CREATE_TOPIC, {key: str(value) for key, value in fields.items()})


def stored_topics(folder: Path) -> set[str]:
    return set(TopicConfigSerializeWrapper.from_bytes((folder / "config/topics.json").read_bytes()).topic_config_table)


async def test_other_clients_are_served_while_a_table_is_written_and_creations_share_a_write(tmp_path: Path) -> None:
    env = SlowTableEnv()
    created: dict[str, int] = {}

    async def create(channel: Channel, topic: str) -> None:
        created[topic] = (await channel.call(creation(topic))).code
        assert topic in stored_topics(tmp_path)

    async with run_broker(make_broker(tmp_path, env=env)) as broker, open_channel(broker.address) as channel:
        assert (await channel.call(send("T", b"before"))).code == ResponseCode.SUCCESS
        env.may_write.clear()
        env.began.clear()
        before = len(env.written)
        async with open_channel(broker.address) as other, trio.open_nursery() as nursery:
            nursery.start_soon(create, channel, "first")
            await env.until_writing()
            for topic in ("second", "third"):
                nursery.start_soon(create, channel, topic)
            while broker.registry.get(TopicTable).get("third") is None:  # noqa: ASYNC110 - a table has no event of trio
                await trio.sleep(0.001)
            assert (await other.call(send("T", b"meanwhile"))).code == ResponseCode.SUCCESS
            assert (await other.call(pull("T"))).code == ResponseCode.SUCCESS
            assert not env.may_write.is_set()
            assert not created, "a response is sent when the topic is in the file"
            env.may_write.set()
        assert created == {"first": 0, "second": 0, "third": 0}
        assert len(env.written) == before + 2


async def test_a_failed_write_is_the_response_and_the_broker_writes_again_when_it_stops(tmp_path: Path) -> None:
    env = SlowTableEnv()
    async with run_broker(make_broker(tmp_path, env=env)) as broker, open_channel(broker.address) as channel:
        env.error = OSError(errno.ENOSPC, "No space left on device")
        answer = await channel.call(creation("orders"))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark is not None
        assert "cannot be written: No space left on device" in answer.remark
        env.error = None
        group = Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"g"}')
        assert (await channel.call(group)).code == ResponseCode.SUCCESS
    assert "orders" in stored_topics(tmp_path)


async def test_a_topic_of_a_message_is_in_the_file_before_its_response_also_beside_a_creation(tmp_path: Path) -> None:
    env = SlowTableEnv()
    async with run_broker(make_broker(tmp_path, env=env)) as broker, open_channel(broker.address) as channel:
        env.may_write.clear()
        env.began.clear()
        async with open_channel(broker.address) as other, trio.open_nursery() as nursery:
            nursery.start_soon(channel.call, creation("orders"))
            await env.until_writing()
            threading.Timer(0.1, env.may_write.set).start()  # the broker's thread waits for this write
            assert (await other.call(send("by-message", b"x"))).code == ResponseCode.SUCCESS
            assert {"orders", "by-message"} <= stored_topics(tmp_path)


async def test_a_write_that_begins_late_does_not_replace_a_newer_one(tmp_path: Path) -> None:
    table: StateTable[TopicConfig] = StateTable(SystemEnv(), f"{tmp_path}/topics.json", "topicConfigTable")
    limiter = trio.to_thread.current_default_thread_limiter()
    async with trio.open_nursery() as nursery:
        table.put("older", TopicConfig("older", 1, 1))
        limiter.total_tokens, tokens = 1, limiter.total_tokens
        async with limiter:
            nursery.start_soon(table.save_in_thread)
            await trio.testing.wait_all_tasks_blocked()
            assert not table.needs_save, "the thread is about to write it"
            table.put("newer", TopicConfig("newer", 1, 1))
            assert table.needs_save
            table.save()
        limiter.total_tokens = tokens
    stored = TopicConfigSerializeWrapper.from_bytes((tmp_path / "topics.json").read_bytes())
    assert set(stored.topic_config_table) == {"older", "newer"}


async def test_a_cancelled_write_is_still_to_be_done(tmp_path: Path) -> None:
    table: StateTable[TopicConfig] = StateTable(SystemEnv(), f"{tmp_path}/topics.json", "topicConfigTable")
    table.put("orders", TopicConfig("orders", 1, 1))
    with trio.CancelScope() as scope:
        scope.cancel()
        await table.save_in_thread()
    assert table.needs_save
    await table.save_in_thread()
    assert not table.needs_save
    assert not table.changed

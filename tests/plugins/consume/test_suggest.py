"""Responses of a slave and of a broker with restricted permission, and the suggested broker of readers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gantrymq.kernel.env.system import SystemEnv
from gantrymq.plugins.interfaces import ConsumerOffsets, TopicTable
from gantrymq.remoting.bodies.groups import SubscriptionGroupConfig
from gantrymq.remoting.bodies.topics import TopicConfig
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.pull import PullMessageHeader
from gantrymq.remoting.headers.send import SendMessageHeader
from gantrymq.testing.harness import broker_and_channel, make_broker, run_broker, run_cluster

INLINE, SUSPEND, COMMIT = 4, 2, 1


def send(topic: str = "T", size: int = 100, properties: str = "") -> Command:
    header = SendMessageHeader(
        producer_group="g", topic=topic, default_topic="TBW102", default_topic_queue_nums=4, queue_id=0, sys_flag=0,
        born_timestamp=1, flag=0, properties=properties,
    )  # fmt: skip
    return Command(RequestCode.SEND_MESSAGE_V2, header.to_ext(), b"x" * size)


def pull(offset: int, *, tags: str = "*", limit: int = 1, sys_flag: int = INLINE, wait_ms: int = 0) -> Command:
    header = PullMessageHeader(
        consumer_group="cg", topic="T", queue_id=0, queue_offset=offset, max_msg_nums=limit, sys_flag=sys_flag,
        commit_offset=1, suspend_timeout_millis=wait_ms, subscription=tags, sub_version=0, expression_type="TAG",
    )  # fmt: skip
    return Command(RequestCode.PULL_MESSAGE, header.to_ext())


def suggested(answer: Command) -> tuple[int, str]:
    return answer.code, (answer.ext or {})["suggestWhichBrokerId"]


async def set_group(channel: Channel, near: int = 2, far: int = 5) -> None:
    body = SubscriptionGroupConfig("cg", broker_id=near, which_broker_when_consume_slowly=far).to_bytes()
    assert (await channel.call(Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body))).code == 0


@asynccontextmanager
async def slave(data: Path, **settings: str) -> AsyncIterator[Channel]:
    """A slave with ten messages that came to it while it was a master, and the group of :func:`set_group`."""
    async with broker_and_channel(data) as (_, channel):
        await set_group(channel)
        for _ in range(10):
            assert (await channel.call(send())).code == 0
    given = {key.replace("__", "."): value for key, value in settings.items()}
    broker = make_broker(data, settings={"broker.id": "1", **given})
    async with run_broker(broker), open_channel(broker.address) as channel:
        yield channel


@pytest.mark.trio
async def test_all_consumers_are_sent_to_the_master_if_slave_reads_are_disabled(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (_, channel):
        await set_group(channel)
        assert (await channel.call(send())).code == 0
        assert suggested(await channel.call(pull(0))) == (0, "0")
        assert suggested(await channel.call(pull(1))) == (ResponseCode.PULL_NOT_FOUND, "0")


@pytest.mark.trio
async def test_lagging_consumers_are_redirected_to_the_groups_slow_consumer_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SystemEnv, "memory_bytes", lambda env: 2000)
    async with broker_and_channel(tmp_path, plugin__consume__slave_read_enable="true") as (_, channel):
        await set_group(channel)
        for _ in range(9):
            assert (await channel.call(send(properties="TAGS\x01A"))).code == 0
        # 40 % of 2,000 bytes: four messages of some 200 bytes
        assert suggested(await channel.call(pull(0))) == (0, "5")
        assert suggested(await channel.call(pull(8))) == (0, "2")
        assert suggested(await channel.call(pull(0, limit=9))) == (0, "2"), "what counts is where it has come to"
        assert suggested(await channel.call(pull(8, tags="B"))) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "2")
        assert suggested(await channel.call(pull(9))) == (ResponseCode.PULL_NOT_FOUND, "2")
        assert suggested(await channel.call(pull(99))) == (ResponseCode.PULL_OFFSET_MOVED, "2")
        held = await channel.call(pull(9, sys_flag=INLINE | SUSPEND, wait_ms=20))
        assert suggested(held) == (ResponseCode.PULL_NOT_FOUND, "2")
        # on 200 bytes everything but the last message is far behind
        assert (await channel.call(Command(25, {}, b"accessMessageInMemoryMaxRatio=5"))).code == 0
        assert suggested(await channel.call(pull(7))) == (0, "5")
        assert (await channel.call(Command(25, {}, b"slaveReadEnable=false"))).code == 0
        assert suggested(await channel.call(pull(7))) == (0, "0")


@pytest.mark.trio
async def test_a_slave_takes_no_messages(tmp_path: Path) -> None:
    async with slave(tmp_path) as channel:
        for command in (send(), send(properties="DELAY\x011"), send("New")):
            answer = await channel.call(command)
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "slave" in (answer.remark or "")
        back = {"offset": "0", "group": "cg", "delayLevel": "0", "originTopic": "T", "unitMode": "false"}
        answer = await channel.call(Command(RequestCode.CONSUMER_SEND_MSG_BACK, back))
        assert answer.code == ResponseCode.SYSTEM_ERROR


@pytest.mark.trio
@pytest.mark.parametrize(("enabled", "near"), [("false", "0"), ("true", "2")])
async def test_a_slave_serves_its_messages_and_corrects_no_offset(tmp_path: Path, enabled: str, near: str) -> None:
    async with slave(tmp_path, plugin__consume__slave_read_enable=enabled) as channel:
        answer = await channel.call(pull(0))
        assert (*suggested(answer), bool(answer.body)) == (0, near, True)
        assert suggested(await channel.call(pull(10))) == (ResponseCode.PULL_NOT_FOUND, near)
        ahead = await channel.call(pull(99))
        assert suggested(ahead) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "2")
        assert (ahead.ext or {})["nextBeginOffset"] == "99", "the replica may be behind its master"


@pytest.mark.trio
async def test_a_slave_commits_nothing_that_comes_with_a_pull(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path / "master") as (broker, channel):
        assert (await channel.call(send())).code == 0
        assert (await channel.call(pull(0, sys_flag=INLINE | COMMIT))).code == 0
        assert broker.registry.get(ConsumerOffsets).query("cg", "T", 0) == 1
    async with slave(tmp_path / "slave") as channel:
        assert (await channel.call(pull(0, sys_flag=INLINE | COMMIT))).code == 0
        assert (await channel.call(pull(99, sys_flag=INLINE | COMMIT))).code == ResponseCode.PULL_RETRY_IMMEDIATELY
        asked = {"consumerGroup": "cg", "topic": "T", "queueId": "0"}
        answer = await channel.call(Command(RequestCode.QUERY_CONSUMER_OFFSET, asked))
        assert (answer.ext or {}).get("offset") != "1"


@pytest.mark.trio
async def test_a_write_only_broker_refuses_pulls(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (_, channel):
        assert (await channel.call(send())).code == 0
        assert (await channel.call(pull(0))).code == 0
        assert (await channel.call(Command(25, {}, b"brokerPermission=2"))).code == 0
        assert (await channel.call(pull(0))).code == ResponseCode.NO_PERMISSION
        assert (await channel.call(send())).code == 0


@pytest.mark.trio
async def test_a_read_only_broker_refuses_ordered_topics_and_registers_all_topics(
    tmp_path: Path,
) -> None:
    async with run_cluster(tmp_path) as cluster, open_channel(cluster.address) as channel:
        for topic in ("T", "ordered"):
            assert (await channel.call(send(topic))).code == 0
        topics = cluster.broker.registry.get(TopicTable)
        topics.set_ordered(["ordered"])
        assert (await channel.call(Command(25, {}, b"brokerPermission=4"))).code == 0
        assert (await channel.call(send("ordered"))).code == ResponseCode.NO_PERMISSION
        assert (await channel.call(send("T"))).code == 0, "as in RocketMQ: clients stay away by the route"
        back = {"offset": "0", "group": "cg", "delayLevel": "0", "originTopic": "T", "unitMode": "false"}
        answer = await channel.call(Command(RequestCode.CONSUMER_SEND_MSG_BACK, back))
        assert answer.code == ResponseCode.NO_PERMISSION
        registered = cluster.broker.manager.call_each("advertise", dict, broker=cluster.broker)
        (wrapper,) = [part["topic_config_serialize_wrapper"] for _, part in registered if part]
        assert {wrapper.topic_config_table[topic].perm for topic in ("T", "ordered")} == {4}
        kept: TopicConfig | None = topics.get("T")
        assert kept is not None
        assert kept.perm == 6


@pytest.mark.trio
async def test_a_slave_changes_neither_topics_nor_groups(tmp_path: Path) -> None:
    topic = {
        "topic": "New", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "order": "false",
    }  # fmt: skip
    commands = (
        Command(RequestCode.UPDATE_AND_CREATE_TOPIC, topic),
        Command(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}),
        Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, SubscriptionGroupConfig("cg").to_bytes()),
        Command(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "cg"}),
    )
    async with slave(tmp_path) as channel:
        for command in commands:
            answer = await channel.call(command)
            assert (answer.code, "master" in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
        assert (await channel.call(pull(0))).code == 0

"""Messages that a consumer sends back are redelivered with growing delays and end as dead letters."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from gantrymq.kernel.broker import Broker
from gantrymq.kernel.store.log.record import Record
from gantrymq.plugins.interfaces import GroupTable, TopicTable
from gantrymq.remoting.bodies.groups import SubscriptionGroupConfig
from gantrymq.remoting.bodies.routes import TopicRouteData
from gantrymq.remoting.bodies.topics import TopicConfig
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.nameserver import RouteHeader
from gantrymq.remoting.names import SCHEDULE_TOPIC
from gantrymq.remoting.properties import decode_properties
from gantrymq.testing.harness import broker_and_channel, make_broker, run_broker, run_cluster
from gantrymq.testing.requests import pull, send

pytestmark = pytest.mark.trio


async def stored(broker: Broker, channel: Channel, **fields: str) -> Record:
    """A message of the topic T in the log."""
    command = send("T", b"body", queue_id=1, queues=4, properties="TAGS\x01a")
    assert command.ext is not None
    command.ext |= fields
    answer = await channel.call(command)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    assert answer.ext is not None
    return broker.log.read_record(int(answer.ext["msgId"][16:], 16))


def back(offset: int, level: int = 0, *, group: str = "G", version: int = 407, **fields: str) -> Command:
    """36 as RocketMQ's clients send it."""
    ext = {"offset": str(offset), "group": group, "delayLevel": str(level), "originTopic": "T", "unitMode": "false"}
    return Command(RequestCode.CONSUMER_SEND_MSG_BACK, ext | fields, version=version)


async def returned(broker: Broker, channel: Channel, command: Command) -> Record:
    """The record that the request made."""
    end = broker.log.end
    answer = await channel.call(command)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return broker.log.read_record(end)


async def test_a_returned_message_waits_at_its_level_for_the_groups_retry_topic(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (broker, channel):
        first = await stored(broker, channel)
        record = await returned(broker, channel, back(first.offset))
        assert (record.topic, record.queue_id, record.reconsume_times) == (SCHEDULE_TOPIC, 2, 1)
        assert decode_properties(record.properties.decode()) == {
            "TAGS": "a", "CLUSTER": "DefaultCluster", "WAIT": "false", "DELAY": "3", "RETRY_TOPIC": "T",
            "ORIGIN_MESSAGE_ID": first.message_id, "REAL_TOPIC": "%RETRY%G", "REAL_QID": "0",
        }  # fmt: skip
        kept = (record.body, record.flag, record.sys_flag, record.born_timestamp, record.born_host)
        assert kept == (first.body, first.flag, first.sys_flag, first.born_timestamp, first.born_host)
        topic = broker.registry.get(TopicTable).get("%RETRY%G")
        assert topic is not None
        assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (1, 1, 6)


async def test_each_send_back_has_a_longer_delay_and_keeps_the_original_topic_and_id(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (broker, channel):
        first = await stored(broker, channel)
        record = first
        for times in range(1, 5):
            record = await returned(broker, channel, back(record.offset))
            assert record.queue_id == 3 + times - 1 - 1
            assert record.reconsume_times == times
            properties = decode_properties(record.properties.decode())
            assert properties["ORIGIN_MESSAGE_ID"] == first.message_id
            assert properties["RETRY_TOPIC"] == "T"


async def test_the_client_may_choose_the_level(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (broker, channel):
        first = await stored(broker, channel)
        assert (await returned(broker, channel, back(first.offset, 7))).queue_id == 6
        assert (await returned(broker, channel, back(first.offset, 99))).queue_id == 17


DEAD = [
    ({"level": -1}, {}, 16),
    ({"maxReconsumeTimes": "2"}, {"j": "2"}, 16),
    ({"maxReconsumeTimes": "0"}, {}, 16),
    ({"maxReconsumeTimes": "99", "version": 120}, {"j": "16"}, 16),
    ({}, {"j": "16"}, 16),
    ({}, {"j": "5"}, 5),
]


@pytest.mark.parametrize(("request_fields", "message_fields", "group_limit"), DEAD)
async def test_a_dead_letter_goes_to_the_groups_own_topic_at_once(
    tmp_path: Path, request_fields: dict[str, str], message_fields: dict[str, str], group_limit: int
) -> None:
    async with broker_and_channel(tmp_path) as (broker, channel):
        config = broker.registry.get(GroupTable).find("G")
        assert config is not None
        config.retry_max_times = group_limit
        first = await stored(broker, channel, **message_fields)
        record = await returned(broker, channel, back(first.offset, **request_fields))  # type: ignore[arg-type]
        assert (record.topic, record.queue_id) == ("%DLQ%G", 0)
        assert record.reconsume_times == first.reconsume_times + 1
        properties = decode_properties(record.properties.decode())
        assert (properties["DELAY"], properties["RETRY_TOPIC"]) == ("0", "T")
        topic = broker.registry.get(TopicTable).get("%DLQ%G")
        assert topic is not None
        assert (topic.read_queue_nums, topic.perm) == (1, 6), "people can read it"


@pytest.mark.parametrize(
    ("request_fields", "message_fields"),
    [({"maxReconsumeTimes": "99"}, {"j": "16"}), ({"maxReconsumeTimes": "3"}, {"j": "2"}), ({}, {"j": "15"})],
)
async def test_a_message_before_its_last_attempt_is_no_dead_letter(
    tmp_path: Path, request_fields: dict[str, str], message_fields: dict[str, str]
) -> None:
    async with broker_and_channel(tmp_path) as (broker, channel):
        first = await stored(broker, channel, **message_fields)
        record = await returned(broker, channel, back(first.offset, **request_fields))  # type: ignore[arg-type]
        assert record.topic == SCHEDULE_TOPIC


async def test_the_groups_number_of_retry_queues_counts(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (broker, channel):
        first = await stored(broker, channel)
        config = broker.registry.get(GroupTable).find("G")
        assert config is not None
        config.retry_queue_nums = 3
        queues = set()
        for _ in range(40):
            record = await returned(broker, channel, back(first.offset))
            queues.add(decode_properties(record.properties.decode())["REAL_QID"])
        assert queues == {"0", "1", "2"}
        config.retry_queue_nums = 0
        end = broker.log.end
        assert (await channel.call(back(first.offset))).code == ResponseCode.SUCCESS
        assert broker.log.end == end, "a group without retries is done with the message"


async def queues_used(broker: Broker, channel: Channel, offset: int, times: int = 40) -> set[int]:
    """The queues of the retry topic that so many send-backs of a message chose."""
    queues = set()
    for _ in range(times):
        record = await returned(broker, channel, back(offset))
        queues.add(int(decode_properties(record.properties.decode())["REAL_QID"]))
    return queues


async def set_retry_queues(channel: Channel, count: int) -> None:
    group = SubscriptionGroupConfig("G", retry_queue_nums=count)
    answer = await channel.call(Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group.to_bytes()))
    assert answer.code == ResponseCode.SUCCESS


@pytest.mark.parametrize("first_by", ["send-back", "send"])
async def test_a_retry_topic_gets_the_queues_by_which_its_group_was_raised(tmp_path: Path, first_by: str) -> None:
    async with run_cluster(tmp_path) as cluster, open_channel(cluster.address) as channel:
        broker = cluster.broker
        first = await stored(broker, channel)
        topics = broker.registry.get(TopicTable)
        if first_by == "send-back":
            assert await queues_used(broker, channel, first.offset, times=1) == {0}
        else:
            assert (await channel.call(resend(1, limit=None))).code == ResponseCode.SUCCESS
        await set_retry_queues(channel, 3)
        assert await queues_used(broker, channel, first.offset) == {0, 1, 2}
        topic = topics.get("%RETRY%G")
        assert topic is not None
        assert (topic.read_queue_nums, topic.write_queue_nums) == (3, 3)
        # Consumers learn of the queues from the nameserver, and may pull from them.
        async with open_channel(cluster.nameserver) as nameserver:
            with trio.fail_after(10):
                while (await route(nameserver, "%RETRY%G")).queue_datas[0].read_queue_nums != 3:
                    await trio.lowlevel.checkpoint()
        assert (await channel.call(pull("%RETRY%G", 2, group="G"))).code == ResponseCode.PULL_NOT_FOUND


async def route(nameserver: Channel, topic: str) -> TopicRouteData:
    answer = await nameserver.call(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteHeader(topic=topic).to_ext()))
    return TopicRouteData.from_bytes(answer.body or b"")


async def test_a_group_with_fewer_retry_queues_than_before_uses_the_first_ones_and_keeps_the_others(
    tmp_path: Path,
) -> None:
    async with broker_and_channel(tmp_path) as (broker, channel):
        first = await stored(broker, channel)
        await set_retry_queues(channel, 3)
        await queues_used(broker, channel, first.offset, times=1)
        await set_retry_queues(channel, 1)
        assert await queues_used(broker, channel, first.offset, times=10) == {0}
        topic = broker.registry.get(TopicTable).get("%RETRY%G")
        assert topic is not None
        assert topic.read_queue_nums == 3, "messages in the other queues are still consumed"


async def test_a_dead_letter_goes_to_a_queue_that_its_topic_has(tmp_path: Path) -> None:
    """This holds even if the topic has more queues, or none in a store of another broker."""
    async with broker_and_channel(tmp_path) as (broker, channel):
        first = await stored(broker, channel)
        topics = broker.registry.get(TopicTable)
        for before, after in ((0, 1), (4, 4)):
            topics.ensure(TopicConfig("%DLQ%G", 1, 1)).read_queue_nums = before
            assert (await returned(broker, channel, back(first.offset, -1))).queue_id == 0
            topic = topics.get("%DLQ%G")
            assert topic is not None
            assert topic.read_queue_nums == after


@pytest.mark.parametrize("by", ["send-back", "send"])
async def test_a_groups_first_dead_letter_is_stored_at_the_limit_of_topics(tmp_path: Path, by: str) -> None:
    async with broker_and_channel(tmp_path, plugin__topics__max_topics="1") as (broker, channel):
        first = await stored(broker, channel)
        command = back(first.offset, -1) if by == "send-back" else resend(17, limit="16")
        assert (await returned(broker, channel, command)).topic == "%DLQ%G"


async def test_invalid_send_backs_are_refused_and_not_stored(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path, plugin__topics__auto_create_groups="false") as (broker, channel):
        group = SubscriptionGroupConfig("G")
        made = await channel.call(Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group.to_bytes()))
        assert made.code == ResponseCode.SUCCESS
        first = await stored(broker, channel)
        end = broker.log.end
        for command, code in (
            (back(first.offset, group="H"), ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
            (back(first.offset + 1), ResponseCode.SYSTEM_ERROR),
            (back(end), ResponseCode.SYSTEM_ERROR),
            (back(-1), ResponseCode.SYSTEM_ERROR),
            (back(2**62), ResponseCode.SYSTEM_ERROR),
            (Command(RequestCode.CONSUMER_SEND_MSG_BACK, {"group": "G"}), ResponseCode.SYSTEM_ERROR),
        ):
            answer = await channel.call(command)
            assert answer.code == code, answer
            assert answer.remark
        broker.registry.get(TopicTable).ensure(TopicConfig("%RETRY%G", 1, 1))
        topic = broker.registry.get(TopicTable).get("%RETRY%G")
        assert topic is not None
        topic.perm = 4
        assert (await channel.call(back(first.offset))).code == ResponseCode.NO_PERMISSION
        assert broker.log.end == end


async def test_without_a_plugin_for_delays_a_return_is_refused_and_a_dead_letter_is_not(tmp_path: Path) -> None:
    async with (
        run_broker(make_broker(tmp_path, disable=["delay"])) as broker,
        open_channel(broker.address) as channel,
    ):
        first = await stored(broker, channel)
        assert (await channel.call(back(first.offset))).code == ResponseCode.SYSTEM_ERROR
        assert (await returned(broker, channel, back(first.offset, -1))).topic == "%DLQ%G"


def resend(times: int, *, limit: str | None, version: int = 407) -> Command:
    """The message itself, sent to the retry topic, as clients do when 36 failed."""
    command = send("%RETRY%G", b"body", properties="DELAY\x014\x02RETRY_TOPIC\x01T")
    assert command.ext is not None
    command.ext["j"] = str(times)
    if limit is not None:
        command.ext["l"] = limit
    command.version = version
    return command


@pytest.mark.parametrize(
    ("command", "dead"),
    [
        (resend(15, limit=None), False), (resend(16, limit=None), True), (resend(2, limit="3"), False),
        (resend(3, limit="3"), True), (resend(17, limit="99"), False), (resend(3, limit="3", version=120), False),
    ],
)  # fmt: skip
async def test_a_message_that_the_consumer_sends_again_itself_ends_as_well(
    tmp_path: Path, command: Command, dead: bool
) -> None:
    async with broker_and_channel(tmp_path) as (broker, channel):
        await stored(broker, channel)
        record = await returned(broker, channel, command)
        assert record.topic == ("%DLQ%G" if dead else SCHEDULE_TOPIC)
        properties = decode_properties(record.properties.decode())
        assert properties["DELAY"] == ("0" if dead else "4")
        assert properties["RETRY_TOPIC"] == "T"


async def test_returns_are_counted_under_the_topic_and_the_group(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (broker, channel):
        first = await stored(broker, channel)
        await returned(broker, channel, back(first.offset))
        viewed = await channel.call(
            Command(RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": "SNDBCK_PUT_NUMS", "statsKey": "T@G"})
        )
        assert viewed.code == ResponseCode.SUCCESS, viewed.remark


@pytest.mark.parametrize("level", [0, -1])
async def test_a_returned_message_that_no_slave_has_yet_is_not_sent_a_second_time(tmp_path: Path, level: int) -> None:
    """The client sends it itself after any code but SUCCESS, and each of the two retries would double again."""
    broker = make_broker(tmp_path, enable=["ha"], settings={"plugin.ha.role": "sync_master"})
    async with run_broker(broker), open_channel(broker.address) as channel:
        answer = await channel.call(send("T", b"body"))
        assert answer.code == ResponseCode.SLAVE_NOT_AVAILABLE, answer.remark
        offset = int((answer.ext or {})["msgId"][16:], 16)
        record = await returned(broker, channel, back(offset, level))
        assert record.topic == (SCHEDULE_TOPIC if level == 0 else "%DLQ%G")

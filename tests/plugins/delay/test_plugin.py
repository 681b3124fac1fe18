"""The plugin in a broker: what the sender is told, what a consumer gets, what the store's folder holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio

from gantrymq.kernel.errors import StartError
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.names import SCHEDULE_TOPIC
from gantrymq.remoting.records import decode_records
from gantrymq.testing.harness import broker_and_channel, make_broker, run_broker
from gantrymq.testing.requests import pull, send


@pytest.mark.trio
async def test_a_delayed_message_arrives_whole_and_late_enough(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (broker, channel):
        answer = await channel.call(send("T", b"later", queue_id=3, queues=4, properties="DELAY\x011\x02TAGS\x01a"))
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        assert answer.ext is not None
        assert answer.ext["queueId"] == "3", "the queue that was asked for, not the one where it waits"
        waiting = broker.log.read_record(int(answer.ext["msgId"][16:], 16))
        assert (waiting.topic, waiting.queue_id) == (SCHEDULE_TOPIC, 0)
        with trio.fail_after(10):
            found = await channel.call(pull("T", 3, suspend_ms=8000, expression="a"))
        assert found.code == ResponseCode.SUCCESS, "the tag is the filter's again"
        arrived = decode_records(found.body)[0]
        assert arrived.body == b"later"
        assert arrived.store_timestamp >= waiting.store_timestamp + 1000
    stored = (tmp_path / "config" / "delayOffset.json").read_bytes()
    assert stored == b'{"offsetTable":{1:1}}'
    topics = json.loads((tmp_path / "config" / "topics.json").read_text())["topicConfigTable"]
    assert topics[SCHEDULE_TOPIC]["readQueueNums"] == 18


@pytest.mark.trio
async def test_clients_may_not_write_to_the_topic_of_the_levels(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (_, channel):
        answer = await channel.call(send(SCHEDULE_TOPIC, b"x", properties="DELAY\x011"))
        assert answer.code == ResponseCode.NO_PERMISSION


@pytest.mark.trio
async def test_a_broken_file_of_positions_refuses_the_start(tmp_path: Path) -> None:
    async with run_broker(make_broker(tmp_path)):
        pass
    (tmp_path / "config" / "delayOffset.json").write_text("{")
    with pytest.raises(ExceptionGroup) as caught:
        async with run_broker(make_broker(tmp_path)):
            raise AssertionError("it started")
    assert caught.group_contains(StartError, match="delayOffset.json")


@pytest.mark.trio
async def test_the_runtime_info_says_how_far_each_level_is(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (_, channel):
        await channel.call(send("T", b"x", properties="DELAY\x0118"))
        answer = await channel.call(Command(RequestCode.GET_BROKER_RUNTIME_INFO, {}))
        assert json.loads(answer.body)["table"]["scheduleMessageOffset_18"] == "0,1"

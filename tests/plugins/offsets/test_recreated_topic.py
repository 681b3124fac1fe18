"""The first offset of a new group in a topic that was deleted and created again, whose queues continue."""

from __future__ import annotations

from pathlib import Path

import pytest

from gantrymq.remoting.channel import Channel
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.records import decode_records
from gantrymq.testing.harness import broker_and_channel
from gantrymq.testing.requests import pull, send

pytestmark = pytest.mark.trio

DELETED = 3
SMALL = {"store__commit_log_file_bytes": "64 KiB", "store__max_message_bytes": "32 KiB"}
THIRD_OF_FILE = bytes(21 * 1024)


async def recreate(channel: Channel) -> None:
    """Delete the topic with its first messages; its next message, ``b"new"``, creates it again."""
    for _ in range(DELETED):
        assert (await channel.call(send("T", b"deleted"))).code == 0
    assert (await channel.call(Command(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}))).code == 0
    assert (await channel.call(send("T", b"new"))).code == 0


async def query(channel: Channel) -> Command:
    fields = {"consumerGroup": "new group", "topic": "T", "queueId": "0"}
    return await channel.call(Command(RequestCode.QUERY_CONSUMER_OFFSET, fields), 10.0)


async def test_a_new_group_gets_all_messages_of_a_topic_created_again(tmp_path: Path) -> None:
    """The group begins at the first message, as in RocketMQ, where the queue begins at 0 again."""
    async with broker_and_channel(tmp_path / "store") as (_, channel):
        await recreate(channel)
        answer = await query(channel)
        assert (answer.code, answer.ext) == (0, {"offset": str(DELETED)})
        pulled = await channel.call(pull("T", offset=DELETED), 10.0)
        assert [record.body for record in decode_records(pulled.body)] == [b"new"]
    async with broker_and_channel(tmp_path / "store") as (_, channel):
        answer = await query(channel)
        assert (answer.code, answer.ext) == (0, {"offset": str(DELETED)})


async def test_a_new_group_chooses_where_to_begin_after_messages_of_a_topic_created_again_expired(
    tmp_path: Path,
) -> None:
    async with broker_and_channel(tmp_path / "store", **SMALL) as (broker, channel):
        await recreate(channel)
        for _ in range(4):
            assert (await channel.call(send("T", THIRD_OF_FILE))).code == 0
        broker.store.discard(broker.log.detach_before(broker.log.end))
        broker.queues.correct_min(broker.log.min_offset)
        queue = broker.queues.get("T", 0)
        assert queue is not None
        assert DELETED < queue.min_offset < queue.max_offset
        assert (await query(channel)).code == 22

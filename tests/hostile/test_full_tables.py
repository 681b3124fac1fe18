"""A broker whose tables are full starts again."""

from __future__ import annotations

from pathlib import Path

import pytest

from gantrymq.plugins.interfaces import TopicTable
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.names import SCHEDULE_TOPIC, TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC
from gantrymq.testing.harness import broker_and_channel
from gantrymq.testing.requests import send


@pytest.mark.trio
async def test_a_broker_starts_with_the_maximum_number_of_topics(tmp_path: Path) -> None:
    """It once failed: the topics of transactions and delays counted, and were refused when they came last."""
    settings = {"plugins__disable": "transaction,delay", "plugin__topics__max_topics": "1"}
    async with broker_and_channel(tmp_path, **settings) as (_, channel):
        assert (await channel.call(send("First", b"x"))).code == ResponseCode.SUCCESS
    del settings["plugins__disable"]
    async with broker_and_channel(tmp_path, **settings) as (broker, channel):
        topics = set(broker.registry.get(TopicTable).names())
        assert {TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC, SCHEDULE_TOPIC} <= topics
        assert (await channel.call(send("First", b"x"))).code == ResponseCode.SUCCESS
        refused = await channel.call(send("Second", b"x"))
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert "1 topics are the limit" in (refused.remark or "")

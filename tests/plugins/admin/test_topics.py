"""Administrators query topics and clean up their state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gantrymq.remoting.bodies.clients import GroupList
from gantrymq.remoting.bodies.queues import ConsumeQueueBody
from gantrymq.remoting.bodies.topics import TopicList
from gantrymq.remoting.command import Command
from gantrymq.remoting.fastjson import loads
from gantrymq.remoting.names import TIMER_TOPIC
from gantrymq.testing.harness import broker_and_channel
from gantrymq.testing.requests import send

pytestmark = pytest.mark.trio


async def test_topic_statistics_have_the_offsets_of_each_queue(bench: Any) -> None:
    table = dict(loads((await bench.ask(202, {"topic": "orders"})).body))["offsetTable"]
    offsets = {key["queueId"]: value for key, value in table}
    assert (offsets[0]["minOffset"], offsets[0]["maxOffset"]) == (0, 4)
    assert 0 < offsets[0]["lastUpdateTimestamp"] <= bench.broker.env.wall_ms()
    assert offsets[1] == {"minOffset": 0, "maxOffset": 0, "lastUpdateTimestamp": 0}


async def test_consumer_groups_of_a_topic_are_listed(bench: Any) -> None:
    await bench.commit(1, "past")
    async with bench.client(None):
        groups = GroupList.from_bytes((await bench.ask(300, {"topic": "orders"})).body).group_list
    assert groups == ["past", "readers"]


async def test_consume_time_span_has_the_time_of_the_next_message_of_a_group(bench: Any) -> None:
    await bench.commit(3)
    spans = loads((await bench.ask(303, {"topic": "orders", "group": "readers"})).body)["consumeTimeSpanSet"]
    first, second = spans
    assert first["minTimeStamp"] <= first["consumeTimeStamp"] <= first["maxTimeStamp"]
    assert first["delayTime"] >= 0
    assert (second["minTimeStamp"], second["maxTimeStamp"], second["delayTime"]) == (-1, -1, 0)
    caught_up = loads((await bench.ask(303, {"topic": "orders", "group": "nobody"})).body)["consumeTimeSpanSet"]
    assert caught_up[0]["consumeTimeStamp"] == caught_up[0]["minTimeStamp"]


@pytest.mark.parametrize(("code", "more"), [(202, {}), (303, {"group": "g"})])
async def test_a_missing_topic_is_an_error(bench: Any, code: int, more: dict[str, str]) -> None:
    answer = await bench.ask(code, {"topic": "nobody", **more})
    assert (answer.code, answer.remark) == (17, "topic[nobody] not exist")


async def test_system_topics_have_the_brokers_and_the_clusters_name(bench: Any) -> None:
    topics = TopicList.from_bytes((await bench.ask(305)).body).topic_list
    assert {"TBW102", "broker-a", "DefaultCluster"} <= set(topics)


async def test_entries_of_a_queue_are_returned(bench: Any) -> None:
    fields = {"topic": "orders", "queueId": 0, "index": 1, "count": 2, "consumerGroup": "readers"}
    body = ConsumeQueueBody.from_bytes((await bench.ask(321, fields)).body)
    assert (body.min_queue_index, body.max_queue_index) == (0, 4)
    assert body.filter_data == "readers@orders is not online!"
    places = [entry.physic_offset for entry in body.queue_data]
    assert places == [bench.broker.log.read_record(place).offset for place in places]
    assert len(places) == 2


@pytest.mark.parametrize(
    ("changes", "code", "found"),
    [
        ({"queueId": 9}, 1, None), ({"queueId": -1}, 1, None), ({"index": 99}, 0, 0), ({"index": -5}, 0, 0),
        ({"count": -1}, 0, 0), ({"count": 2**31 - 1}, 0, 4), ({"count": 2**31}, 1, None),
        ({"topic": "../../etc"}, 1, None),
    ],
)  # fmt: skip
async def test_impossible_ranges_of_entries_are_refused(
    bench: Any, changes: dict[str, object], code: int, found: int | None
) -> None:
    fields = {"topic": "orders", "queueId": 0, "index": 0, "count": 4, **changes}
    answer = await bench.ask(321, fields)
    assert answer.code == code
    if found is not None:
        assert len(ConsumeQueueBody.from_bytes(answer.body).queue_data) == found


async def test_cleaning_unused_topics_keeps_queues_of_existing_topics(bench: Any) -> None:
    queues = bench.broker.queues
    assert (await bench.ask(316)).code == 0
    assert queues.get("orders", 0) is not None
    table: Any = bench.broker.manager.plugins[0].plugin
    table._topics.remove("orders")
    assert (await bench.ask(316)).code == 0
    assert queues.get("orders", 0) is None


async def test_cleaning_unused_topics_keeps_queues_of_system_topics(bench: Any) -> None:
    answer = await bench.channel.call(send("orders", b"later", queues=2, properties="TIMER_DELAY_SEC\x0150"))
    assert answer.code == 0
    table: Any = bench.broker.manager.plugins[0].plugin
    assert table._topics.remove(TIMER_TOPIC)
    assert (await bench.ask(316)).code == 0
    assert bench.broker.queues.get(TIMER_TOPIC, 0) is not None


async def test_cleaning_unused_topics_keeps_light_queues(bench: Any) -> None:
    bench.broker.store.extend_queue("%LMQ%devices", 0, 1)
    assert (await bench.ask(316)).code == 0
    assert bench.broker.queues.get("%LMQ%devices", 0) is not None


async def test_a_slave_deletes_no_queues_of_topics_missing_from_its_table(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (_, channel):
        assert (await channel.call(send("orders", b"kept"))).code == 0
    async with broker_and_channel(tmp_path, broker__id="1") as (broker, channel):
        broker.manager.plugins[0].plugin._topics.remove("orders")
        assert (await channel.call(Command(316))).code == 0
        assert broker.queues.get("orders", 0) is not None


async def test_cleaning_expired_queues_keeps_queue_offsets(bench: Any) -> None:
    assert (await bench.ask(306)).code == 0
    assert bench.broker.queues.get("orders", 0).max_offset == 4

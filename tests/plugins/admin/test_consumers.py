"""The progress of consumer groups."""

from __future__ import annotations

from typing import Any

import pytest

from gantrymq.plugins.interfaces import Statistics
from gantrymq.remoting.command import Command
from gantrymq.remoting.fastjson import loads
from gantrymq.testing.requests import pull

pytestmark = pytest.mark.trio


async def stats(bench: Any, group: str, **more: str) -> dict[tuple[str, int], tuple[int, int]]:
    answer = await bench.ask(208, {"consumerGroup": group, **more})
    assert answer.code == 0
    table = loads(answer.body)["offsetTable"]
    return {
        (key["topic"], key["queueId"]): (value["brokerOffset"], value["consumerOffset"])
        for key, value in (table if isinstance(table, list) else [])
    }


async def test_offsets_of_a_group_are_returned_by_queue(bench: Any) -> None:
    await bench.commit(3)
    expected = {("orders", 0): (4, 3), ("orders", 1): (0, 0)}
    assert await stats(bench, "readers") == expected
    assert await stats(bench, "readers", topic="orders") == expected
    assert await stats(bench, "nobody") == {}
    assert await stats(bench, "readers", topic="nothing") == {}


async def test_unsubscribed_topics_are_not_shown(bench: Any) -> None:
    await bench.commit(3)
    async with bench.client(None, topic="other"):
        assert await stats(bench, "readers") == {}


async def test_a_list_of_topics_is_returned_whether_or_not_members_subscribe_to_them(bench: Any) -> None:
    await bench.commit(3)
    expected = {("orders", 0): (4, 3), ("orders", 1): (0, 0)}
    async with bench.client(None, topic="other"):
        assert await stats(bench, "readers", topicList="nothing;orders;orders;", topic="nothing") == expected
    assert await stats(bench, "readers", topicList="nothing;") == {}
    assert await stats(bench, "readers", topicList=";") == expected


async def test_offsets_of_a_group_include_what_it_has_pulled(bench: Any) -> None:
    await bench.commit(1)
    await bench.commit(0, queue_id=1)

    async def pull_offsets() -> list[dict[int, int]]:
        one = loads((await bench.ask(208, {"consumerGroup": "readers"})).body)
        every = loads((await bench.ask(317, {"isOrder": "false"})).body)["consumeStatsList"]
        [[of_all]] = [row["readers"] for row in every if "readers" in row]
        return [{key["queueId"]: value["pullOffset"] for key, value in body["offsetTable"]} for body in (one, of_all)]

    assert await pull_offsets() == [{0: 1, 1: 0}] * 2
    answer = await bench.channel.call(pull("orders", 0, 1, group="readers", limit=2), 10.0)
    assert answer.code == 0
    assert await pull_offsets() == [{0: 3, 1: 0}] * 2
    await bench.commit(4)
    assert await pull_offsets() == [{0: 4, 1: 0}] * 2


async def test_a_pulled_offset_is_not_beyond_the_end_of_its_queue(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a topic was deleted and created again."""
    await bench.commit(1)
    statistics = bench.broker.registry.get(Statistics)
    monkeypatch.setattr(type(statistics), "pulled_to", lambda *_: 1000)
    body = loads((await bench.ask(208, {"consumerGroup": "readers"})).body)
    assert [value["pullOffset"] for key, value in body["offsetTable"] if key["queueId"] == 0] == [4]


async def test_all_groups_are_returned_with_their_lag(bench: Any) -> None:
    await bench.commit(3)
    body = loads((await bench.ask(317, {"isOrder": "false"})).body)
    found = {group: len(entries) for row in body["consumeStatsList"] for group, entries in row.items() if entries}
    assert (found, body["totalDiff"], body["brokerAddr"]) == ({"readers": 1}, 1, bench.broker.address)
    ordered = loads((await bench.ask(317, {"isOrder": "true"})).body)
    assert ordered["totalDiff"] == 0


@pytest.mark.parametrize("code", [208, 317, 222, 223, 307, 309, 314, 308, 345])
async def test_a_request_without_its_fields_is_refused(bench: Any, code: int) -> None:
    assert (await bench.ask(code)).code == 1


async def test_a_response_beyond_the_frame_limit_is_an_error(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gantrymq.plugins.admin.consumers.ROWS_MAX", 1)
    await bench.commit(3)
    for code, fields in ((208, {"consumerGroup": "readers"}), (317, {"isOrder": "false"})):
        answer = await bench.ask(code, fields)
        assert (answer.code, "more than 1 queues" in answer.remark) == (1, True)


async def test_a_cloned_group_has_the_offsets_of_its_source(bench: Any) -> None:
    await bench.commit(3)
    fields = {"srcGroup": "readers", "destGroup": "clones", "topic": "orders", "offline": "true"}
    assert (await bench.ask(314, fields)).code == 0
    assert await stats(bench, "clones") == {("orders", 0): (4, 3), ("orders", 1): (0, 0)}
    assert (await bench.ask(314, {**fields, "destGroup": "more", "topic": ""})).code == 0
    assert (await stats(bench, "more"))["orders", 0] == (4, 3)


async def test_a_clone_skips_topics_that_the_source_does_not_subscribe_to(bench: Any) -> None:
    await bench.commit(3)
    fields = {"srcGroup": "readers", "destGroup": "clones", "topic": "orders", "offline": "false"}
    async with bench.client(None, topic="other"):
        assert (await bench.ask(314, fields)).code == 0
        assert await stats(bench, "clones") == {}


async def test_offset_corrections_return_the_lowest_offsets_of_other_groups(bench: Any) -> None:
    for group, offset in (("a", 1), ("b", 2), ("left-out", 0), ("compared", 1)):
        await bench.commit(offset, group)
    fields = {"topic": "orders", "compareGroup": "compared", "filterGroups": "left-out,compared"}
    body = (await bench.ask(308, fields)).body
    assert body == b'{"correctionOffsets":{0:1}}'
    await bench.commit(0, "compared")
    assert (await bench.ask(308, fields)).body == b'{"correctionOffsets":{0:9223372036854775807}}'


async def test_topics_of_a_group_and_the_earliest_store_time_are_returned(bench: Any) -> None:
    await bench.commit(1)
    assert loads((await bench.ask(343, {"group": "readers"})).body)["topicList"] == ["orders"]
    first = await bench.ask(32, {"topic": "orders", "queueId": 0})
    assert int(first.ext["timestamp"]) == bench.broker.log.read_record(0).store_timestamp
    assert (await bench.ask(32, {"topic": "orders", "queueId": 1})).ext == {"timestamp": "-1"}
    assert b'"orders@readers":{0:1}' in (await bench.ask(43)).body


async def test_slaves_of_rocketmq_5_get_all_offsets_with_a_data_version(bench: Any) -> None:
    await bench.commit(1)
    of_4 = await bench.channel.call(Command(43, version=407), 10.0)
    assert of_4.body == b'{"offsetTable":{"orders@readers":{0:1}}}'
    of_5 = dict(loads((await bench.channel.call(Command(43, version=413), 10.0)).body))
    assert of_5.pop("dataVersion").keys() == {"counter", "stateVersion", "timestamp"}
    assert of_5 == loads(of_4.body)


async def test_configurations_of_one_topic_and_one_group_are_returned(bench: Any) -> None:
    assert loads((await bench.ask(351, {"topic": "orders"})).body)["topicName"] == "orders"
    assert (await bench.ask(351, {"topic": "nothing"})).code == 17
    await bench.commit(1)
    assert loads((await bench.ask(352, {"group": "readers"})).body)["groupName"] == "readers"
    assert (await bench.ask(352, {"group": "nobody"})).code == 26

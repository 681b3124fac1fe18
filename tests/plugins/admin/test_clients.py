"""Requests that the broker forwards to clients: it returns their response, or an error after a timeout."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import trio

from gantrymq.plugins.interfaces import ConsumerOffsets, GroupTable
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.fastjson import loads
from gantrymq.remoting.headers.topics import CreateTopicHeader
from gantrymq.testing.harness import broker_and_channel
from gantrymq.testing.requests import send
from support.unreadable import run_out_of_descriptors

pytestmark = pytest.mark.trio

RESET = {"topic": "orders", "group": "readers", "timestamp": -1, "isForce": "true"}
STATUS = b'{"messageQueueTable":{{"brokerName":"broker-a","queueId":0,"topic":"orders"}:%d}}'


class Client:
    """Keeps the broker's requests; sends the given response, or none."""

    def __init__(self, body: bytes | None = b"", code: int = 0) -> None:
        self.asked: list[Command] = []
        self.body = body
        self.code = code
        self.came = trio.Event()

    async def __call__(self, command: Command) -> Command | None:
        if command.code == 40:  # members come and go: not asked here
            return None
        self.asked.append(command)
        self.came.set()
        if command.is_oneway:
            return None
        if self.body is None:
            await trio.sleep_forever()
        return command.answer(self.code, "as scripted", body=self.body or b"")


async def commit_both(bench: Any, offset: int) -> None:
    await bench.commit(offset)
    await bench.commit(0, queue_id=1)


async def test_an_offset_reset_notifies_the_members(bench: Any) -> None:
    client = Client()
    await commit_both(bench, 1)
    async with bench.client(client):
        answer = await bench.ask(222, RESET)
        with trio.fail_after(10):
            await client.came.wait()
    assert answer.code == 0
    (received,) = client.asked
    assert (received.code, received.is_oneway, received.body) == (220, True, answer.body)
    assert received.ext == {"topic": "orders", "group": "readers", "timestamp": "-1", "isForce": "false"}
    assert reset_of(answer) == {0: 4, 1: 0}


async def test_a_reset_without_force_only_lowers_offsets(bench: Any) -> None:
    await commit_both(bench, 1)
    async with bench.client(Client()):
        ahead = await bench.ask(
            222, {**RESET, "isForce": "false", "queueId": -1, "offset": -1}
        )  # all, as from RocketMQ 5
        back = await bench.ask(222, {**RESET, "isForce": "false", "timestamp": 0})
    assert [offset for key, offset in loads(ahead.body)["offsetTable"] if key["queueId"] == 0] == [1]
    assert [offset for key, offset in loads(back.body)["offsetTable"] if key["queueId"] == 0] == [0]


def committed(bench: Any, queue_id: int) -> int | None:
    offset: int | None = bench.broker.registry.get(ConsumerOffsets).query("readers", "orders", queue_id)
    return offset


def reset_of(answer: Command) -> dict[int, int]:
    return {key["queueId"]: offset for key, offset in loads(answer.body)["offsetTable"]}


async def test_a_reset_to_a_time_after_the_last_message_goes_to_the_end(bench: Any) -> None:
    await commit_both(bench, 1)
    async with bench.client(Client()):
        answer = await bench.ask(222, {**RESET, "timestamp": int(time.time() * 1000) + 3_600_000})
    assert reset_of(answer) == {0: 4, 1: 0}


async def test_queues_that_can_only_be_read_are_reset_too(bench: Any) -> None:
    header = CreateTopicHeader(
        topic="orders", default_topic="TBW102", read_queue_nums=3, write_queue_nums=1, perm=6,
        topic_filter_type="SINGLE_TAG",
    )  # fmt: skip
    assert (await bench.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext())).code == 0
    await commit_both(bench, 1)
    async with bench.client(Client()):
        answer = await bench.ask(222, RESET)
    assert reset_of(answer) == {0: 4, 1: 0, 2: 0}


@pytest.mark.parametrize(("offset", "timestamp", "target"), [(3, 0, 3), (-1, -1, 4), (-1, -5, 4), (0, -1, 0)])
async def test_a_reset_of_one_queue_leaves_the_others(bench: Any, offset: int, timestamp: int, target: int) -> None:
    """The tool of RocketMQ 5 sends this for ``-q``; all queues were reset to their first messages."""
    one = {**RESET, "isForce": "false", "timestamp": timestamp, "queueId": 0, "offset": offset}
    client = Client()
    await commit_both(bench, 1)
    alone = await bench.ask(222, one)
    assert (alone.code, reset_of(alone)) == (0, {0: target}), "without members too"
    async with bench.client(client):
        answer = await bench.ask(222, one)
        with trio.fail_after(10):
            await client.came.wait()
    assert (answer.code, reset_of(answer), client.asked[0].body) == (0, {0: target}, answer.body)
    assert committed(bench, 0) == target
    assert committed(bench, 1) == 0


async def test_a_reset_of_one_queue_that_does_not_exist_or_to_an_offset_outside_is_refused(bench: Any) -> None:
    await commit_both(bench, 1)
    for fields in ({"queueId": 2, "offset": 0}, {"queueId": 0, "offset": 6}, {"queueId": 0, "offset": -2}):
        assert (await bench.ask(222, {**RESET, **fields})).code == 1
    assert committed(bench, 0) == 1


@pytest.mark.parametrize("queue_id", [-1, 0])
async def test_a_reset_to_a_time_changes_nothing_without_file_descriptors(
    bench: Any, monkeypatch: pytest.MonkeyPatch, queue_id: int
) -> None:
    client = Client()
    await commit_both(bench, 1)
    async with bench.client(client):
        with monkeypatch.context() as patch:
            run_out_of_descriptors(patch, bench.broker.log)
            answer = await bench.ask(222, {**RESET, "timestamp": 1, "queueId": queue_id, "offset": -1})
        assert (await bench.ask(223, {"topic": "orders", "group": "readers"})).code == 0
    assert answer.code == 1
    assert answer.remark == "queue 0 of topic orders cannot be searched: Too many open files"
    assert committed(bench, 0) == 1
    assert [command.code for command in client.asked] == [221], "no member got new offsets"


@pytest.mark.parametrize(
    ("fields", "code", "remark"),
    [
        ({"topic": "nothing"}, 17, "Topic nothing does not exist"),
        ({"group": "nobody"}, 26, "Group nobody does not exist"),
        ({"group": "x" * 5000}, 26, f"Group {'x' * 255} does not exist"),
    ],
)
async def test_a_reset_of_one_queue_without_its_topic_or_group_is_refused(
    bench: Any, fields: dict[str, str], code: int, remark: str
) -> None:
    await commit_both(bench, 1)
    answer = await bench.ask(222, {**RESET, "queueId": 0, "offset": 3, **fields})
    assert (answer.code, answer.remark) == (code, remark)
    assert list(bench.broker.registry.get(ConsumerOffsets).pairs()) == [("orders", "readers")]
    assert "nobody" not in bench.broker.registry.get(GroupTable).names()


@pytest.mark.parametrize("broker_settings", [{"plugin__offsets__max_entries": "1"}])
async def test_a_reset_of_one_queue_that_the_table_has_no_room_for_is_refused(bench: Any) -> None:
    await bench.commit(1)
    assert (await bench.channel.call(send("returns", b"body"))).code == 0
    answer = await bench.ask(222, {**RESET, "topic": "returns", "queueId": 0, "offset": 1})
    assert (answer.code, "plugin.offsets.max_entries" in answer.remark) == (1, True)
    assert (await bench.ask(222, {**RESET, "queueId": 0, "offset": 0})).code == 0
    assert committed(bench, 0) == 0


async def test_a_slave_refuses_a_reset_of_one_queue(tmp_path: Path) -> None:
    fields = {name: str(value) for name, value in {**RESET, "queueId": 0, "offset": 0}.items()}
    async with broker_and_channel(tmp_path, broker__id="1") as (_, channel):
        answer = await channel.call(Command(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields), 10.0)
    assert (answer.code, answer.remark) == (1, "Can not reset offset in slave broker")


async def test_a_reset_requested_by_a_c_plus_plus_client_uses_its_form(bench: Any) -> None:
    client = Client()
    await commit_both(bench, 1)
    async with bench.client(client):
        ext = {name: str(value) for name, value in RESET.items()}
        assert (await bench.channel.call(Command(222, ext, language="CPP"))).code == 0
        with trio.fail_after(10):
            await client.came.wait()
    rows = loads(client.asked[0].body)["offsetTable"]
    assert rows[0] == {"topic": "orders", "brokerName": "broker-a", "queueId": 0, "offset": 4}


async def test_a_group_that_cannot_be_reset(bench: Any) -> None:
    unknown = await bench.ask(222, {**RESET, "topic": "nothing"})
    assert (unknown.code, "no topic in this broker" in unknown.remark) == (1, True)
    never = await bench.ask(222, RESET)
    assert (never.code, never.remark) == (1, "THe consumer group <readers> not exist")
    await commit_both(bench, 1)
    assert (await bench.ask(222, RESET)).code == 206
    async with bench.client(Client(), version=27):
        old = await bench.ask(222, RESET)
        assert (old.code, "does not support this feature" in old.remark) == (1, True)


async def test_clients_are_queried_for_their_offsets(bench: Any) -> None:
    fields = {"topic": "orders", "group": "readers"}
    assert (await bench.ask(223, fields)).code == 1
    async with bench.client(Client(STATUS % 3)), bench.client(Client(STATUS % 4), "c2"):
        all_of_them = loads((await bench.ask(223, fields)).body)["consumerTable"]
        one = loads((await bench.ask(223, {**fields, "clientAddr": "c2"})).body)["consumerTable"]
    assert {client: table[0][1] for client, table in all_of_them.items()} == {"c1": 3, "c2": 4}
    assert list(one) == ["c2"]


@pytest.mark.parametrize(
    ("body", "code"), [(b"{", 0), (b"\xff", 0), (b'{"messageQueueTable":{"text":1}}', 0), (b"", 0), (STATUS % 1, 1)]
)
async def test_invalid_parts_of_a_clients_response_are_dropped(bench: Any, body: bytes, code: int) -> None:
    async with bench.client(Client(body, code)):
        answer = await bench.ask(223, {"topic": "orders", "group": "readers"})
    assert answer.code == 0
    assert not loads(answer.body)["consumerTable"].get("c1")


async def test_a_clients_running_info_is_returned_unchanged(bench: Any) -> None:
    client = Client(b'{"anything": [1]}')
    fields = {"consumerGroup": "readers", "clientId": "c1", "jstackEnable": "true"}
    async with bench.client(client):
        answer = await bench.ask(307, fields)
    assert (answer.code, answer.remark, answer.body) == (0, "as scripted", b'{"anything": [1]}')
    assert client.asked[0].ext == fields
    gone = await bench.ask(307, fields)
    assert (gone.code, gone.remark) == (1, "The Consumer <readers> <c1> not online")


@pytest.mark.parametrize("client_timeout", ["200ms"])
async def test_a_client_that_does_not_respond_delays_the_request_until_the_timeout(bench: Any) -> None:
    fields = {"consumerGroup": "readers", "clientId": "c1"}
    async with bench.client(Client(None)):
        answer = await bench.ask(307, fields)
    assert (answer.code, "Timeout" in answer.remark) == (207, True)


async def test_clients_of_old_versions_are_not_queried(bench: Any) -> None:
    async with bench.client(Client(), version=61):
        answer = await bench.ask(307, {"consumerGroup": "readers", "clientId": "c1"})
    assert (answer.code, "does not support this feature" in answer.remark) == (1, True)


async def test_a_client_consumes_a_stored_message_on_request(bench: Any) -> None:
    client = Client(b'{"consumeResult":"CR_SUCCESS"}')
    fields = {"consumerGroup": "readers", "clientId": "c1", "msgId": bench.ids[2]}
    async with bench.client(client):
        answer = await bench.ask(309, fields)
    assert answer.body == client.body
    (asked,) = client.asked
    assert asked.ext == {**fields, "brokerName": "broker-a"}
    place = int(bench.ids[2][-16:], 16)
    assert asked.body == bytes(bench.broker.log.view(place, len(asked.body)))
    assert b"body 2" in asked.body


@pytest.mark.parametrize(
    "message_id", ["", "zz", "0" * 31, "G" * 32, "7F00000100002A9F00000000FFFFFFFF", "0" * 31 + "1"]
)
async def test_a_missing_message_is_not_consumed(bench: Any, message_id: str) -> None:
    client = Client()
    fields = {"consumerGroup": "readers", "clientId": "c1", "msgId": message_id}
    async with bench.client(client):
        answer = await bench.ask(309, fields)
    assert (answer.code, "there is no message" in answer.remark) == (1, True)
    assert not client.asked

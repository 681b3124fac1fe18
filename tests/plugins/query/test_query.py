"""Messages by key, by unique id and by message id, through a real broker."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from gantrymq.kernel.env.system import SystemEnv
from gantrymq.plugins.index import IndexPlugin
from gantrymq.plugins.query import lookup, requests
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.transactions import EndTransactionHeader, TransactionState
from gantrymq.remoting.names import TRANS_HALF_TOPIC
from gantrymq.remoting.records import decode_records
from gantrymq.testing.harness import broker_and_channel, make_broker, run_broker
from gantrymq.testing.requests import send

pytestmark = pytest.mark.trio
FOREVER = 2**63 - 1


class ShiftedEnv(SystemEnv):
    """A wall clock that a test can put ahead."""

    ahead_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.ahead_ms


async def put(channel: Channel, body: str, keys: str, *, topic: str = "T", unique: str = "") -> str:
    """Send one message; returns its message id."""
    properties = f"UNIQ_KEY\x01{unique}\x02KEYS\x01{keys}" if unique else f"KEYS\x01{keys}"
    answer = await channel.call(send(topic, body.encode(), properties=properties))
    assert answer.code == ResponseCode.SUCCESS
    return (answer.ext or {})["msgId"]


def query(key: str, *, topic: str = "T", most: int = 10, begin: int = 0, end: int = FOREVER, **more: str) -> Command:
    ext = {"topic": topic, "key": key, "maxNum": f"{most}", "beginTimestamp": f"{begin}", "endTimestamp": f"{end}"}
    return Command(RequestCode.QUERY_MESSAGE, {**ext, **more})


async def bodies(channel: Channel, command: Command) -> list[str]:
    answer = await channel.call(command)
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        assert answer.remark == "can not find message, maybe time range not correct"
        return []
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return [message.body.decode() for message in decode_records(answer.body)]


async def test_the_newest_messages_of_a_key_come_oldest_first(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (_, channel):
        for number in range(5):
            await put(channel, f"m{number}", f"order-{number} all")
        await put(channel, "other", "all", topic="U")
        assert await bodies(channel, query("all")) == ["m0", "m1", "m2", "m3", "m4"]
        assert await bodies(channel, query("all", most=2)) == ["m3", "m4"]
        assert await bodies(channel, query("all", topic="U")) == ["other"]
        assert await bodies(channel, query("order-3")) == ["m3"]
        assert await bodies(channel, query("order-9")) == []
        assert await bodies(channel, query("all", most=0)) == []
        assert await bodies(channel, query("all", most=-5)) == []


async def test_the_answer_says_how_far_the_index_is(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (broker, channel):
        await put(channel, "a", "k")
        last = broker.log.end
        await put(channel, "b", "k")
        answer = await channel.call(query("k"))
        newest = broker.log.read_record(last)
        assert answer.ext == {
            "indexLastUpdateTimestamp": f"{newest.store_timestamp}",
            "indexLastUpdatePhyoffset": f"{last}",
        }
        assert (await channel.call(query("none"))).ext == answer.ext


async def test_an_answer_has_at_most_64_messages_and_32_of_one_unique_id(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (_, channel):
        for number in range(70):
            await put(channel, f"m{number}", "all", unique="7F0000010D5418B4AAC2000000000001")
        assert await bodies(channel, query("all", most=1000)) == [f"m{number}" for number in range(6, 70)]
        unique = query("7F0000010D5418B4AAC2000000000001", most=1, _UNIQUE_KEY_QUERY="true")
        assert await bodies(channel, unique) == [f"m{number}" for number in range(38, 70)]


async def test_an_answer_is_bounded_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "RESPONSE_MAX_BYTES", 3000)
    async with broker_and_channel(tmp_path) as (_, channel):
        for letter in "abcd":
            await put(channel, letter * 1000, "all")
        assert await bodies(channel, query("all")) == ["c" * 1000, "d" * 1000]
        monkeypatch.setattr(lookup, "RESPONSE_MAX_BYTES", 1)
        assert await bodies(channel, query("all")) == ["d" * 1000]


async def test_only_messages_of_the_requested_time_range_are_found(tmp_path: Path) -> None:
    env = ShiftedEnv()
    async with run_broker(make_broker(tmp_path, env=env)) as broker, open_channel(broker.address) as channel:
        await put(channel, "a", "all")
        middle = broker.log.last_timestamp
        env.ahead_ms = 5
        await put(channel, "b", "all")
        assert await bodies(channel, query("all", end=middle)) == ["a"]
        assert await bodies(channel, query("all", begin=middle, end=middle)) == ["a"]
        assert await bodies(channel, query("all", begin=middle + 1)) == ["b"]
        assert await bodies(channel, query("all", begin=9, end=8)) == []


async def test_another_key_of_the_same_hash_is_not_found(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (_, channel):
        await put(channel, "a", "Aa")
        await put(channel, "b", "BB")
        assert await bodies(channel, query("Aa")) == ["a"]
        assert await bodies(channel, query("BB", most=1)) == ["b"]


async def test_a_message_is_found_by_its_id_and_by_no_other_place(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (broker, channel):
        await put(channel, "a", "k")
        identity = await put(channel, "b", "k")
        offset = int(identity[16:], 16)
        found = await channel.call(Command(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": f"{offset}"}))
        assert [message.body for message in decode_records(found.body)] == [b"b"]
        for wrong in (offset + 1, -1, broker.log.end, broker.log.end - 1, 2**63 - 1):
            answer = await channel.call(Command(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": f"{wrong}"}))
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert answer.remark == f"can not find message by the offset, {wrong}"


async def test_without_an_index_a_message_is_still_found_by_its_id(tmp_path: Path) -> None:
    broker = make_broker(tmp_path, disable=["index"])
    async with run_broker(broker):
        async with open_channel(broker.address) as channel:
            identity = await put(channel, "a", "k")
            found = await channel.call(Command(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": f"{int(identity[16:], 16)}"}))
            assert [message.body for message in decode_records(found.body)] == [b"a"]
            refused = await channel.call(query("k"))
            assert refused.code == ResponseCode.SYSTEM_ERROR
            assert "index" in (refused.remark or "")
    assert not (tmp_path / "index").exists()


@pytest.mark.parametrize("missing", ["topic", "key", "maxNum", "beginTimestamp", "endTimestamp"])
async def test_a_query_without_a_field_names_it(tmp_path: Path, missing: str) -> None:
    async with broker_and_channel(tmp_path) as (_, channel):
        command = query("k")
        (command.ext or {}).pop(missing)
        answer = await channel.call(command)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert missing in (answer.remark or "")


async def test_unacknowledged_messages_are_not_returned_by_queries(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (broker, channel):
        identity = await put(channel, "a", "k")
        offset = int(identity[16:], 16)
        assert lookup.read_intact(broker, offset) is not None
        progress = broker.store._progress
        broker.store._progress = (offset, *progress[1:])
        try:
            assert lookup.read_intact(broker, offset) is None
        finally:
            broker.store._progress = progress


async def test_a_damaged_message_is_not_shown(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (_, channel):
        await put(channel, "whole", "k")
        identity = await put(channel, "x" * 50, "k")
        path = tmp_path / "commitlog" / f"{0:020d}"
        data = path.read_bytes()
        with path.open("r+b") as file:
            file.seek(data.index(b"x" * 50) + 7)
            file.write(b"y")
        assert await bodies(channel, query("k")) == ["whole"]
        offset = f"{int(identity[16:], 16)}"
        assert (await channel.call(Command(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset}))).code == 1


async def begin(channel: Channel, body: str, outcome: TransactionState) -> EndTransactionHeader:
    """Send a half message with the key "k" and the unique id "ID"; returns the header that ends its transaction."""
    properties = "UNIQ_KEY\x01ID\x02KEYS\x01k\x02TRAN_MSG\x01true\x02PGROUP\x01orders"
    half = await channel.call(send("T", body.encode(), properties=properties))
    assert half.code == ResponseCode.SUCCESS, half.remark
    assert half.ext is not None
    return EndTransactionHeader(
        producer_group="orders",
        tran_state_table_offset=int(half.ext["queueOffset"]),
        commit_log_offset=int(half.ext["msgId"][16:], 16),
        commit_or_rollback=outcome,
        msg_id="ID",
    )


@pytest.mark.parametrize("strategy", ["half", "state_table"])
async def test_a_transaction_is_found_once_and_only_after_its_commit(tmp_path: Path, strategy: str) -> None:
    unique = {"_UNIQUE_KEY_QUERY": "true"}
    async with broker_and_channel(tmp_path, plugin__transaction__strategy=strategy) as (_, channel):
        rolled_back = await begin(channel, "rolled back", TransactionState.ROLLBACK)
        committed = await begin(channel, "committed", TransactionState.COMMIT)
        assert await bodies(channel, query("k")) == await bodies(channel, query("ID", **unique)) == []
        for end in (rolled_back, committed):
            ended = await channel.call(Command(RequestCode.END_TRANSACTION, end.to_ext()))
            assert ended.code == ResponseCode.SUCCESS, ended.remark
        assert await bodies(channel, query("k")) == ["committed"]
        assert await bodies(channel, query("ID", **unique)) == ["committed"]


async def test_half_messages_are_found_under_the_topic_in_which_they_wait_as_in_rocketmq(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (_, channel):
        half = await begin(channel, "open", TransactionState.COMMIT)
        assert await bodies(channel, query("k", topic=TRANS_HALF_TOPIC)) == ["open"]
        by_offset = Command(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": f"{half.commit_log_offset}"})
        assert (await channel.call(by_offset)).code == ResponseCode.SYSTEM_ERROR


async def test_a_query_that_waits_for_the_index_delays_no_heavy_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, level = trio.Event(), trio.Event()

    async def wait_caught_up(self: IndexPlugin) -> None:
        waits.set()
        await level.wait()

    monkeypatch.setattr(requests, "CATCH_UP_WAIT_S", 60.0)
    made = make_broker(tmp_path, settings={"limits.heavy_requests": "1"})
    async with (
        run_broker(made) as broker,
        open_channel(broker.address) as channel,
        open_channel(broker.address) as other,
    ):
        identity = await put(channel, "a", "k")
        monkeypatch.setattr(IndexPlugin, "wait_caught_up", wait_caught_up)
        found: list[str] = []

        async def ask() -> None:
            found.extend(await bodies(channel, query("k")))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await waits.wait()
            by_id = Command(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": f"{int(identity[16:], 16)}"})
            assert (await other.call(by_id)).code == ResponseCode.SUCCESS
            assert found == []
            level.set()
        assert found == ["a"]

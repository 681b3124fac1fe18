"""The example ``dedup``: duplicates of any kind of message are stored once and acknowledged twice."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

import gantrymq
from gantrymq.kernel.broker import Broker
from gantrymq.remoting.bodies.clients import HeartbeatData, ProducerData
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.transactions import EndTransactionHeader, TransactionState
from gantrymq.remoting.records import decode_records
from gantrymq.testing.harness import make_broker, run_broker, run_cluster
from gantrymq.testing.requests import pull, send

pytestmark = pytest.mark.trio

SOURCE = Path(__file__).resolve().parents[2] / "examples" / "plugins" / "dedup"
ENABLE = "gantrymq_dedup:DedupPlugin"
KEY = "KEYS\x01k"
HALF = f"{KEY}\x02TRAN_MSG\x01true\x02PGROUP\x01orders\x02UNIQ_KEY\x01u"
Place = tuple[str, str, str]


@pytest.fixture(autouse=True)
def example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SOURCE))


def broker(tmp_path: Path, **settings: str) -> Broker:
    return make_broker(tmp_path / "store", settings=settings, enable=[ENABLE])


async def sent(
    channel: Channel, properties: str = KEY, topic: str = "T", body: bytes = b"x", queue_id: int = 0
) -> Place:
    """Id, queue and queue offset in the answer."""
    command = send(topic, body, properties=properties, queue_id=queue_id, queues=2)
    answer = await channel.call(Command(command.code, {**(command.ext or {}), "g": str(time.time_ns() // 10**6)}, body))
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    assert answer.ext is not None
    return answer.ext["msgId"], answer.ext["queueId"], answer.ext["queueOffset"]


async def bodies(channel: Channel, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    return [record.body for record in decode_records((await channel.call(pull(topic, queue_id))).body)]


async def end(channel: Channel, place: Place, state: TransactionState, *, oneway: bool = False) -> None:
    header = EndTransactionHeader(
        producer_group="orders",
        tran_state_table_offset=int(place[2]),
        commit_log_offset=int(place[0][16:], 16),
        commit_or_rollback=state,
        msg_id="u",
    )
    command = Command(RequestCode.END_TRANSACTION, header.to_ext())
    if oneway:
        await channel.send_oneway(command)
    else:
        answer = await channel.call(command)
        assert answer.code == ResponseCode.SUCCESS, answer.remark


async def test_duplicates_are_detected_by_topic_and_both_senders_get_one_answer(tmp_path: Path) -> None:
    async with run_broker(broker(tmp_path)) as running, open_channel(running.address) as channel:
        first = await sent(channel, queue_id=1)
        assert await sent(channel, body=b"again") == first
        assert await sent(channel, topic="U") != first
        assert await sent(channel, "TAGS\x01a") != await sent(channel, "TAGS\x01a"), "without a key nothing is known"
        assert (len(await bodies(channel)), await bodies(channel, queue_id=1)) == (2, [b"x"])


async def test_deduplication_applies_to_configured_topics_and_property_only(tmp_path: Path) -> None:
    settings = {"plugin.dedup.topics": "T", "plugin.dedup.property": "UNIQ_KEY"}
    async with run_broker(broker(tmp_path, **settings)) as running, open_channel(running.address) as channel:
        assert await sent(channel, "UNIQ_KEY\x01u") == await sent(channel, f"UNIQ_KEY\x01u\x02{KEY}")
        assert await sent(channel) != await sent(channel)
        assert await sent(channel, "UNIQ_KEY\x01u", "U") != await sent(channel, "UNIQ_KEY\x01u", "U")


async def test_a_key_expires_after_the_window(tmp_path: Path) -> None:
    settings = {"plugin.dedup.window": "1ms"}
    async with run_broker(broker(tmp_path, **settings)) as running, open_channel(running.address) as channel:
        first = await sent(channel)
        now = running.env.wall_ms()
        while running.env.wall_ms() < now + 5:  # noqa: ASYNC110 - there is no event for it
            await trio.sleep(0.001)
        assert await sent(channel) != first


async def test_the_newest_keys_are_kept_within_the_memory_limit(tmp_path: Path) -> None:
    settings = {"plugin.dedup.max_keys": "3"}
    async with run_broker(broker(tmp_path, **settings)) as running, open_channel(running.address) as channel:
        first, second, *_ = [await sent(channel, f"KEYS\x01{number}") for number in range(4)]
        assert await sent(channel, "KEYS\x011") == second
        assert await sent(channel, "KEYS\x010") != first
        [plugin] = [info.plugin for info in running.manager.plugins if info.name == "dedup"]
        assert len(plugin.keys) == 3


async def test_keys_survive_a_restart_and_the_deletion_of_their_messages(tmp_path: Path) -> None:
    async with run_broker(broker(tmp_path)) as running, open_channel(running.address) as channel:
        places = [await sent(channel), await sent(channel, HALF.replace(KEY, "KEYS\x01half"))]
    async with run_broker(broker(tmp_path)) as running, open_channel(running.address) as channel:
        assert [(await sent(channel))[0][16:], (await sent(channel, HALF.replace(KEY, "KEYS\x01half")))[0][16:]] == [
            place[0][16:] for place in places
        ]
        assert (await channel.call(Command(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}))).code == 0
        assert (await sent(channel))[0][16:] == places[0][0][16:]


@pytest.mark.parametrize("waits", ["DELAY\x011", "TIMER_DELAY_MS\x01300"], ids=["level", "timer"])
async def test_a_delayed_message_is_delivered_once_and_settles_duplicates_before_and_after(
    tmp_path: Path, waits: str
) -> None:
    settings = {"plugin.delay.levels": "1s"}
    with trio.fail_after(40):
        async with run_broker(broker(tmp_path, **settings)) as running, open_channel(running.address) as channel:
            await sent(channel, "TAGS\x01makes-the-topic", queue_id=1)
            first = await sent(channel, f"{KEY}\x02{waits}", queue_id=1)
            assert first[1] == "1"
            assert await sent(channel, f"{KEY}\x02{waits}") == first
            while len(await bodies(channel, queue_id=1)) < 2:  # noqa: ASYNC110 - there is no event for it
                await trio.sleep(0.02)
            assert await sent(channel) == first
            assert await sent(channel, f"{KEY}\x02{waits}") == first
            assert (await bodies(channel), await bodies(channel, queue_id=1)) == ([], [b"x", b"x"])


@pytest.mark.parametrize("strategy", ["half", "state_table"])
async def test_a_half_message_sent_again_is_the_same_transaction(tmp_path: Path, strategy: str) -> None:
    settings = {"plugin.transaction.strategy": strategy}
    async with run_broker(broker(tmp_path, **settings)) as running, open_channel(running.address) as channel:
        half = await sent(channel, HALF)
        assert await sent(channel, HALF) == half
        await end(channel, half, TransactionState.COMMIT)
        assert await bodies(channel) == [b"x"]
        committed = await sent(channel)
        assert (committed != half, committed[1:]) == (True, ("0", "0"))
        answer = await channel.call(send("T", b"x", properties=HALF))
        assert (answer.code, answer.remark) == (
            ResponseCode.MESSAGE_ILLEGAL, "a message with this key (KEYS) is stored already",
        )  # fmt: skip
        assert await bodies(channel) == [b"x"]


@pytest.mark.parametrize("strategy", ["half", "state_table"])
@pytest.mark.parametrize("ends", [(TransactionState.ROLLBACK,), (TransactionState.ROLLBACK, TransactionState.ROLLBACK)])
async def test_a_rolled_back_message_can_be_sent_again_at_once(
    tmp_path: Path, strategy: str, ends: Sequence[TransactionState]
) -> None:
    """The next half message comes before the rollback is on the disk; nor may it become that of the rollback."""
    settings = {"plugin.transaction.strategy": strategy}
    async with run_broker(broker(tmp_path, **settings)) as running, open_channel(running.address) as channel:
        seen = set()
        for state in ends:
            half = await sent(channel, HALF)
            seen.add(half)
            await end(channel, half, state, oneway=True)
        last = await sent(channel, HALF)
        assert last not in seen
        assert await sent(channel, HALF) == last
        await end(channel, last, TransactionState.COMMIT)
        assert await bodies(channel) == [b"x"]


async def test_an_ordinary_message_does_not_wait_for_a_transaction(tmp_path: Path) -> None:
    async with run_broker(broker(tmp_path)) as running, open_channel(running.address) as channel:
        half = await sent(channel, HALF)
        first = await sent(channel, body=b"ordinary")
        assert first != half
        assert await sent(channel) == first
        await end(channel, half, TransactionState.ROLLBACK)
        assert await sent(channel) == first
        assert await bodies(channel) == [b"ordinary"]


async def test_a_checked_back_half_message_stays_the_same_transaction(tmp_path: Path) -> None:
    settings = {
        "plugin.transaction.check_interval": "20ms", "plugin.transaction.timeout": "10ms",
        "plugin.transaction.check_max": "1000000",
    }  # fmt: skip
    with trio.fail_after(40):
        async with run_broker(broker(tmp_path, **settings)) as running, open_channel(running.address) as channel:
            half = await sent(channel, HALF)
            copies = running.queues.get("RMQ_SYS_TRANS_HALF_TOPIC", 0)
            assert copies is not None
            beat = Command(RequestCode.HEART_BEAT, {}, heartbeat())
            assert (await channel.call(beat)).code == 0
            while copies.max_offset < 3:  # noqa: ASYNC110 - there is no event for it
                await trio.sleep(0.01)
            assert await sent(channel, HALF) == half
            await end(channel, half, TransactionState.ROLLBACK)
            assert await sent(channel, HALF) != half


def heartbeat() -> bytes:
    return HeartbeatData("client", [ProducerData("orders")]).to_bytes()


async def test_retries_and_dead_letters_are_delivered_and_batches_lose_only_duplicates(tmp_path: Path) -> None:
    settings = {"plugin.delay.levels": "1s"}
    with trio.fail_after(60):
        async with (
            run_cluster(tmp_path / "store", settings=settings, enable=[ENABLE]) as cluster,
            gantrymq.connect(cluster.nameserver) as client,
            client.producer() as producer,
        ):
            for names in ("ab", "bc", "cd"):
                await producer.send_batch([gantrymq.Message("T", name.encode(), keys=[name]) for name in names])
            seen: list[tuple[bytes, int]] = []
            async with client.consumer("T", "readers", start="first") as messages:
                async for message in messages:
                    seen.append((message.body, message.reconsume_times))
                    if message.body == b"a" and message.reconsume_times == 0:
                        await message.retry(delay_level=1)
                    elif message.body == b"b":
                        await message.retry(-1)
                    else:
                        await message.ack()
                    if len(seen) == 5:
                        break
            assert sorted(seen) == [(b"a", 0), (b"a", 1), (b"b", 0), (b"c", 0), (b"d", 0)]
            async with client.consumer("%DLQ%readers", "dead", start="first") as messages:
                assert (await anext(messages)).body == b"b"

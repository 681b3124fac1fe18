"""The example ``encrypt``: the store's files contain no plaintext body, and consumers receive decrypted messages.

By way of pulls, queries, questions about transactions, retries, delays; with rotation of keys, and without a key.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path

import pytest
import trio

import gantrymq
from gantrymq.kernel.broker import Broker
from gantrymq.kernel.errors import StartError
from gantrymq.plugins.interfaces import GroupTable
from gantrymq.remoting.bodies.clients import HeartbeatData, ProducerData
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.transactions import EndTransactionHeader, TransactionState
from gantrymq.remoting.records import decode_records
from gantrymq.testing.harness import make_broker, run_broker, run_cluster
from gantrymq.testing.requests import pull, send

pytest.importorskip("cryptography", reason="the example needs it: pip install cryptography")
pytestmark = pytest.mark.trio

SOURCE = Path(__file__).resolve().parents[2] / "examples" / "plugins" / "encrypt"
ENABLE = "gantrymq_encrypt:EncryptPlugin"
SECRET = b"the-secret-body"
HALF = "WAIT\x01true\x02TRAN_MSG\x01true\x02PGROUP\x01orders\x02UNIQ_KEY\x01K\x02KEYS\x01order-1"


def line(name: str, size: int = 32) -> str:
    return f"{name} {base64.b64encode((name * size).encode()[:size]).decode()}\n"


@pytest.fixture(autouse=True)
def example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SOURCE))


def options(tmp_path: Path, current: str = "1", keys: str = "", **more: str) -> Mapping[str, str]:
    file = tmp_path / "keys.txt"
    file.write_text(keys or line("1"))
    return {"plugin.encrypt.keys": str(file), "plugin.encrypt.current": current, **more}


def broker(tmp_path: Path, current: str = "1", keys: str = "", **more: str) -> Broker:
    return make_broker(tmp_path / "store", settings=options(tmp_path, current, keys, **more), enable=[ENABLE])


def is_on_disk(tmp_path: Path, text: bytes) -> bool:
    return any(text in path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file())


async def bodies(channel: Channel, topic: str, queue_id: int = 0) -> list[bytes]:
    answer = await channel.call(pull(topic, queue_id))
    records = list(decode_records(answer.body))
    assert not any("ENCRYPTED" in record.properties for record in records)
    return [record.body for record in records]


@pytest.mark.slow
async def test_bodies_are_decrypted_for_consumers_and_encrypted_in_the_files(tmp_path: Path) -> None:
    async with run_broker(broker(tmp_path)) as running, open_channel(running.address) as channel:
        for body in (SECRET, b""):
            answer = await channel.call(send("T", body, properties="KEYS\x01order-1\x02TAGS\x01a"))
            assert answer.code == 0, answer.remark
        assert await bodies(channel, "T") == [SECRET, b""]
        held = pull("T", offset=2, suspend_ms=5000)
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                answer = await channel.call(held, 10.0)
                assert [record.body for record in decode_records(answer.body)] == [SECRET]

            nursery.start_soon(wait)
            await trio.sleep(0.05)
            assert (await channel.call(send("T", SECRET))).code == 0
    assert not is_on_disk(tmp_path, SECRET)
    assert is_on_disk(tmp_path, b"order-1"), "properties stay readable: queries and filters need them"


async def test_queries_return_decrypted_messages(tmp_path: Path) -> None:
    async with run_broker(broker(tmp_path)) as running, open_channel(running.address) as channel:
        sent = await channel.call(send("T", SECRET, properties="KEYS\x01order-1\x02UNIQ_KEY\x01u"))
        assert sent.ext is not None
        found = await channel.call(
            Command(
                RequestCode.QUERY_MESSAGE,
                {"topic": "T", "key": "order-1", "maxNum": "9", "beginTimestamp": "0", "endTimestamp": str(2**62)},
            )
        )
        assert [record.body for record in decode_records(found.body)] == [SECRET]
        offset = str(int(sent.ext["msgId"][16:], 16))
        found = await channel.call(Command(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset}))
        assert [record.body for record in decode_records(found.body)] == [SECRET]


@pytest.mark.parametrize("strategy", ["half", "state_table"])
@pytest.mark.slow
async def test_a_transaction_is_checked_back_and_committed_with_its_body(tmp_path: Path, strategy: str) -> None:
    settings = {
        "plugin.transaction.check_interval": "20ms", "plugin.transaction.timeout": "10ms",
        "plugin.transaction.check_max": "1000000", "plugin.transaction.strategy": strategy,
    }  # fmt: skip
    asked, questions = trio.open_memory_channel[Command](1000)

    def note(command: Command) -> None:
        if command.code == RequestCode.CHECK_TRANSACTION_STATE:
            asked.send_nowait(command)

    running = broker(tmp_path, **settings)
    async with run_broker(running), open_channel(running.address, note) as channel:
        assert (await channel.call(send("T", SECRET, properties=HALF))).code == 0
        heartbeat = HeartbeatData("client", [ProducerData("orders")]).to_bytes()
        assert (await channel.call(Command(RequestCode.HEART_BEAT, {}, heartbeat))).code == 0
        with trio.fail_after(20):
            question = await questions.receive()
        [record] = decode_records(question.body)
        assert (record.body, "ENCRYPTED" in record.properties) == (SECRET, False)
        assert question.ext is not None
        header = EndTransactionHeader(
            producer_group="orders",
            tran_state_table_offset=int(question.ext["tranStateTableOffset"]),
            commit_log_offset=int(question.ext["commitLogOffset"]),
            commit_or_rollback=TransactionState.COMMIT,
            msg_id="K",
        )
        ended = await channel.call(Command(RequestCode.END_TRANSACTION, header.to_ext()))
        assert ended.code == ResponseCode.SUCCESS, ended.remark
        assert await bodies(channel, "T") == [SECRET]
    assert not is_on_disk(tmp_path, SECRET)


@pytest.mark.slow
async def test_delayed_retried_and_batched_messages_are_encrypted_once(tmp_path: Path) -> None:
    settings = options(tmp_path, **{"plugin.delay.levels": "1s 1s 1s 1s 1s"})
    async with (
        run_cluster(tmp_path / "store", settings=settings, enable=[ENABLE]) as cluster,
        gantrymq.connect(cluster.nameserver) as client,
        client.producer() as producer,
    ):
        await producer.send(gantrymq.Message("T", SECRET, delay_level=1))
        await producer.send_batch([gantrymq.Message("T", SECRET + b"1"), gantrymq.Message("T", SECRET + b"2")])
        seen: list[bytes] = []
        async with client.consumer("T", "readers", start="first") as messages:
            with trio.fail_after(30):
                async for message in messages:
                    if message.body == SECRET and not message.reconsume_times:
                        await message.retry(delay_level=1)
                        continue
                    await message.ack()
                    seen.append(message.body)
                    if len(seen) == 3:
                        break
        assert sorted(seen) == [SECRET, SECRET + b"1", SECRET + b"2"]
    assert not is_on_disk(tmp_path, SECRET)


async def test_a_new_key_encrypts_new_messages_and_the_old_key_decrypts_old_ones(tmp_path: Path) -> None:
    async with run_broker(broker(tmp_path)) as running, open_channel(running.address) as channel:
        assert (await channel.call(send("T", SECRET))).code == 0
    both = line("1") + line("2", 16)
    async with run_broker(broker(tmp_path, "2", both)) as running, open_channel(running.address) as channel:
        assert (await channel.call(send("T", b"second"))).code == 0
        assert await bodies(channel, "T") == [SECRET, b"second"]
        marks = [running.log.read_record(at).property_of(b"ENCRYPTED") for at in places(running)]
        assert marks == [b"1", b"2"]


def places(running: Broker) -> list[int]:
    queue = running.queues.get("T", 0)
    assert queue is not None
    entries = queue.entries(0, queue.max_offset)
    return [int.from_bytes(entries[at : at + 8], "big") for at in range(0, len(entries), 20)]


async def test_a_message_without_its_key_stops_consumers_before_it(tmp_path: Path) -> None:
    both = line("1") + line("2")
    async with run_broker(broker(tmp_path, "2", both)) as running, open_channel(running.address) as channel:
        assert (await channel.call(send("T", b"readable"))).code == 0
    async with run_broker(broker(tmp_path, "1", both)) as running, open_channel(running.address) as channel:
        assert (await channel.call(send("T", SECRET))).code == 0
    async with run_broker(broker(tmp_path, "2", line("2"))) as running, open_channel(running.address) as channel:
        assert (await channel.call(send("T", b"later"))).code == 0
        first = await channel.call(pull("T"))
        assert first.ext is not None
        assert [record.body for record in decode_records(first.body)] == [b"readable"]
        assert first.ext["nextBeginOffset"] == "1"
        stuck = await channel.call(pull("T", offset=1))
        assert (stuck.code, stuck.body) == (ResponseCode.SYSTEM_ERROR, b"")
        assert stuck.remark == "the plugin 'encrypt' failed to deliver the message; the broker's log has the reason"
        behind = await channel.call(pull("T", offset=2))
        assert [record.body for record in decode_records(behind.body)] == [b"later"]
    async with run_broker(broker(tmp_path, "2", both)) as running, open_channel(running.address) as channel:
        assert await bodies(channel, "T") == [b"readable", SECRET, b"later"]


async def test_a_sender_cannot_mark_a_plain_body_as_encrypted(tmp_path: Path) -> None:
    async with run_broker(broker(tmp_path)) as running, open_channel(running.address) as channel:
        for key in ("1", "no-such-key"):
            answer = await channel.call(send("T", SECRET, properties=f"ENCRYPTED\x01{key}"))
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL
            assert (answer.remark or "").startswith("property ENCRYPTED: ")


async def test_only_configured_topics_are_encrypted_within_the_brokers_limits(tmp_path: Path) -> None:
    more = {"plugin.encrypt.topics": "secrets", "store.max_message_bytes": "1024"}
    async with run_broker(broker(tmp_path, **more)) as running, open_channel(running.address) as channel:
        assert (await channel.call(send("plain", b"x" * 1024))).code == 0
        assert (await channel.call(send("secrets", b"y" * 996))).code == 0
        answer = await channel.call(send("secrets", b"z" * 997))
        assert (answer.code, answer.remark) == (
            ResponseCode.MESSAGE_ILLEGAL, "the message is too long to be encrypted",
        )  # fmt: skip
        assert await bodies(channel, "secrets") == [b"y" * 996]
    assert is_on_disk(tmp_path, b"x" * 1024)
    assert not is_on_disk(tmp_path, b"y" * 16)


async def test_a_message_that_its_consumer_sends_to_the_retry_topic_is_encrypted_as_in_its_own_topic(
    tmp_path: Path,
) -> None:
    more = {"plugin.encrypt.topics": "secrets"}
    async with run_broker(broker(tmp_path, **more)) as running, open_channel(running.address) as channel:
        running.registry.get(GroupTable).find("readers")
        for topic, body in (("secrets", SECRET), ("plain", b"a-plain-body")):
            resent = send("%RETRY%readers", body, properties=f"RETRY_TOPIC\x01{topic}")
            assert (await channel.call(resent)).code == 0
        assert await bodies(channel, "%RETRY%readers") == [SECRET, b"a-plain-body"]
    assert not is_on_disk(tmp_path, SECRET)
    assert is_on_disk(tmp_path, b"a-plain-body")


@pytest.mark.parametrize(
    ("keys", "current", "text"),
    [
        ("1 short", "1", "line 1 of .* must be an id, and 16, 24 or 32 bytes in base64"),
        (line("1") + "2\n", "1", "line 2 of .* must be an id"),
        (line("1") + line("1"), "1", "line 2 of .* names '1' once more"),
        (line("1"), "7", "plugin.encrypt.current = '7': .* has no such key"),
        ("é", "1", "cannot be read: UnicodeDecodeError"),
    ],
)
async def test_an_invalid_key_file_refuses_the_start_without_showing_keys(
    tmp_path: Path, keys: str, current: str, text: str
) -> None:
    with pytest.raises(StartError, match=text) as refused:
        await broker(tmp_path, current, keys).run()
    assert "short" not in str(refused.value)

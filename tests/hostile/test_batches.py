"""Small requests that would become gigabytes of log or index, and an append that fails midway."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
import trio

from gantrymq.kernel import hookimpl
from gantrymq.kernel.batch import BATCH_MAX_MESSAGES, BATCH_STORED_FACTOR, AppendBatch
from gantrymq.kernel.errors import LogPoisoned
from gantrymq.plugins.index.plain import KEYS_MAX
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.records import decode_records
from gantrymq.testing.harness import broker_and_channel, make_broker, run_broker
from gantrymq.testing.requests import pull, send

pytestmark = pytest.mark.trio
MIB = 1024 * 1024
JSON_AND_BINARY = pytest.mark.parametrize("kind", [0, 1], ids=["json", "binary"])


def batch(count: int, *, body: bytes = b"", own: bytes = b"", common: str = "", kind: int = 0) -> Command:
    """SEND_BATCH_MESSAGE of ``count`` equal messages, with properties of each and of all."""
    inner = struct.pack(">iiiii", 22 + len(body) + len(own), 0, 0, 0, len(body)) + body + struct.pack(">h", len(own))
    command = send("T", (inner + own) * count, properties=common)
    (command.ext or {})["m"] = "true"
    return Command(RequestCode.SEND_BATCH_MESSAGE, command.ext, command.body, kind=kind)


@JSON_AND_BINARY
async def test_properties_of_a_batch_are_limited_when_copied_to_its_messages(tmp_path: Path, kind: int) -> None:
    """4.2 MB with 32 KB of properties that each of 90,000 messages gets: 3 GB of log, once."""
    async with broker_and_channel(tmp_path) as (broker, channel):
        assert (await channel.call(batch(2, common="K\x01v", kind=kind))).code == ResponseCode.SUCCESS
        end = broker.log.end
        answer = await channel.call(batch(90_000, body=b"x" * 20, common="K\x01" + "v" * 32_000, kind=kind), 60)
        assert (answer.code, "store.max_message_bytes" in (answer.remark or "")) == (ResponseCode.MESSAGE_ILLEGAL, True)
        assert broker.log.end == end, "nothing of it is stored"
        assert (await channel.call(batch(2, kind=kind))).code == ResponseCode.SUCCESS


@JSON_AND_BINARY
async def test_a_batch_beyond_its_limit_is_refused(tmp_path: Path, kind: int) -> None:
    async with broker_and_channel(tmp_path, store__max_message_bytes="100000") as (broker, channel):
        assert (await channel.call(batch(1, common="K\x01" + "v" * 1000, kind=kind))).code == ResponseCode.SUCCESS
        each = broker.log.end
        fitting = BATCH_STORED_FACTOR * 100_000 // each
        answer = await channel.call(batch(fitting + 1, common="K\x01" + "v" * 1000, kind=kind))
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert broker.log.end == each
        answer = await channel.call(batch(fitting, common="K\x01" + "v" * 1000, kind=kind))
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        assert broker.queues.next_offset("T", 0) == fitting + 1


@pytest.mark.twins
@JSON_AND_BINARY
async def test_batches_of_one_turn_are_limited_together(tmp_path: Path, kind: int) -> None:
    """Each of these requests of 9 KB is within the limit of a batch; together they would be 15 MB of log at once."""
    settings = {"store.max_message_bytes": "100000", "limits.unacknowledged_bytes": "1 MiB"}
    appended = Appended()
    broker = make_broker(tmp_path, settings=settings, enable=[appended])
    async with run_broker(broker), open_channel(broker.listening) as channel:
        each = batch(350, common="K\x01" + "v" * 900, kind=kind)
        answers = []

        async def call() -> None:
            answers.append((await channel.call(each, 60)).code)

        async with trio.open_nursery() as nursery:
            for _ in range(40):
                nursery.start_soon(call)
        assert answers == [ResponseCode.SUCCESS] * 40
        assert sum(appended.sizes) > 12 * MIB
        assert max(appended.sizes) < 2 * MIB


class Appended:
    """Notes the bytes of properties of each batch."""

    name = "appended"

    def __init__(self) -> None:
        self.sizes: list[int] = []

    @hookimpl
    def before_append(self, batch: AppendBatch) -> None:
        self.sizes.append(sum(batch.sizes_of(row)[1] for row in batch.live))


@pytest.mark.soak(2)
@JSON_AND_BINARY
@pytest.mark.parametrize("advertise", ["127.0.0.1:10911", "[2001:db8::1]:10911"], ids=["ipv4", "ipv6"])
@pytest.mark.slow
async def test_a_response_header_holds_the_ids_of_the_largest_batch(tmp_path: Path, kind: int, advertise: str) -> None:
    """A batch of 16 MiB could have 700,000 messages, but the length of a header has 24 bits."""
    given = {
        "store.max_message_bytes": f"{16 * MIB}",
        "limits.frame_bytes": f"{17 * MIB}",
        "broker.advertise": advertise,
    }
    async with (
        run_broker(make_broker(tmp_path, settings=given)) as broker,
        open_channel(broker.listening) as channel,
    ):
        answer = await channel.call(batch(BATCH_MAX_MESSAGES + 1, kind=kind), 60)
        assert (answer.code, str(BATCH_MAX_MESSAGES) in (answer.remark or "")) == (ResponseCode.MESSAGE_ILLEGAL, True)
        assert broker.log.end == 0
        answer = await channel.call(batch(BATCH_MAX_MESSAGES, kind=kind), 60)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        ids = (answer.ext or {})["msgId"].split(",")
        assert len(ids) == len(set(ids)) == BATCH_MAX_MESSAGES
        assert broker.queues.next_offset("T", 0) == BATCH_MAX_MESSAGES
        assert (await channel.call(send("T", b"x"))).code == ResponseCode.SUCCESS


async def test_a_message_of_16_mib_is_acknowledged_and_delivered(tmp_path: Path) -> None:
    settings = {"store__max_message_bytes": str(16 * MIB), "limits__frame_bytes": str(17 * MIB)}
    settings |= {"store__commit_log_file_bytes": str(64 * MIB), "limits__write_buffer_bytes": str(MIB)}
    async with broker_and_channel(tmp_path, **settings) as (_, channel):
        body = b"x" * (15 * MIB)
        for _number in range(3):
            answer = await channel.call(send("T", body), 60)
            assert answer.code == ResponseCode.SUCCESS
        offset = int((answer.ext or {})["msgId"][16:], 16)
        found = await channel.call(pull("T", 0, 2), 60)
        [message] = decode_records(found.body)
        assert (message.commit_log_offset, message.body) == (offset, body)


@pytest.mark.slow
async def test_a_message_has_a_limited_number_of_index_entries(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (_, channel):
        keys = " ".join(f"key{number}" for number in range(4000))
        answer = await channel.call(send("T", b"x", properties=f"UNIQ_KEY\x01U\x02KEYS\x01{keys}"))
        assert answer.code == ResponseCode.SUCCESS
        assert await is_found(channel, "U")
        assert await is_found(channel, f"key{KEYS_MAX - 2}")
        assert not await is_found(channel, f"key{KEYS_MAX - 1}")
    assert count_entries(tmp_path) == KEYS_MAX


async def is_found(channel: Channel, key: str) -> bool:
    ext = {"topic": "T", "key": key, "maxNum": "5", "beginTimestamp": "0", "endTimestamp": f"{2**63 - 1}"}
    return (await channel.call(Command(RequestCode.QUERY_MESSAGE, ext))).code == ResponseCode.SUCCESS


def count_entries(folder: Path) -> int:
    """The number of entries in the header of the only index file."""
    [path] = (folder / "index").iterdir()
    return int.from_bytes(path.read_bytes()[36:40], "big") - 1  # they are numbered from 1


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_a_memory_error_during_an_append_stops_the_broker_without_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """It once continued with queue offsets without records, so that later acknowledged messages were unreadable."""
    from gantrymq.kernel.store.log import commitlog

    real, armed = commitlog.encode_rows, [False]

    def fail(*arguments: Any) -> Any:
        encoded = real(*arguments)
        if armed[0]:
            raise MemoryError
        return encoded

    monkeypatch.setattr(commitlog, "encode_rows", fail)
    acknowledged: list[bytes] = []

    async def life() -> None:
        broker = make_broker(tmp_path, settings={"plugin.flush.mode": mode})
        async with run_broker(broker), open_channel(broker.address) as channel:
            for number in range(20):
                armed[0] = number == 10
                body = b"%d" % number
                if (await channel.call(send("T", body), 10)).code == ResponseCode.SUCCESS:
                    acknowledged.append(body)

    with pytest.RaisesGroup(
        pytest.RaisesExc(LogPoisoned, match="appending to the commit log failed: MemoryError"), flatten_subgroups=True
    ):
        await life()
    armed[0] = False
    assert acknowledged == [b"%d" % number for number in range(10)], "nothing is acknowledged any more"
    async with broker_and_channel(tmp_path) as (_, channel):
        assert (await channel.call(send("T", b"next"))).code == ResponseCode.SUCCESS
        found = await channel.call(pull("T", 0, 0))
        assert [message.body for message in decode_records(found.body)] == [*acknowledged, b"next"]

"""The size of one pull: RocketMQ's limits for memory and disk, and larger limits for clients that accept more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from gantrymq.kernel.env.system import SystemEnv
from gantrymq.remoting.channel import Channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.pull import PullMessageHeader
from gantrymq.remoting.headers.send import SendMessageHeader
from gantrymq.remoting.records import decode_records
from gantrymq.testing.harness import broker_and_channel

INLINE, SUSPEND = 4, 2
KIB = 1024


async def send(channel: Channel, count: int, size: int = 1, properties: str = "TAGS\x01A") -> None:
    header = SendMessageHeader(
        producer_group="g", topic="T", default_topic="TBW102", default_topic_queue_nums=4, queue_id=0,
        sys_flag=0, born_timestamp=1, flag=0, properties=properties,
    )  # fmt: skip
    for _ in range(count):
        assert (await channel.call(Command(RequestCode.SEND_MESSAGE_V2, header.to_ext(), bytes(size)))).code == 0


def pull(
    offset: int = 0, *, limit: int = 50, wait_ms: int = 0, wanted: str = "*", kind: str = "TAG",
    max_bytes: int | None = None,
) -> Command:  # fmt: skip
    header = PullMessageHeader(
        consumer_group="cg", topic="T", queue_id=0, queue_offset=offset, max_msg_nums=limit,
        sys_flag=INLINE | (SUSPEND if wait_ms else 0), commit_offset=0, suspend_timeout_millis=wait_ms,
        subscription=wanted, sub_version=0, expression_type=kind, gantrymq_max_bytes=max_bytes,
    )  # fmt: skip
    return Command(RequestCode.PULL_MESSAGE, header.to_ext())


async def count(channel: Channel, command: Command) -> int:
    """The number of messages in the response, whose next offset must follow them."""
    asked = int((command.ext or {})["queueOffset"])
    answer = await channel.call(command)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    found = len(decode_records(answer.body))
    assert int((answer.ext or {})["nextBeginOffset"]) == asked + found
    return found


async def change(channel: Channel, text: bytes) -> None:
    answer = await channel.call(Command(RequestCode.UPDATE_BROKER_CONFIG, {}, text))
    assert answer.code == 0, answer.remark


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets the machine's memory, of which 40 % count."""
    return lambda size: monkeypatch.setattr(SystemEnv, "memory_bytes", lambda env: size)


FILTERS = [("*", "TAG"), ("A", "TAG"), ("TAGS = 'A'", "SQL92")]
every_filter = pytest.mark.parametrize(("wanted", "kind"), FILTERS, ids=["all", "tag", "sql92"])


@pytest.mark.trio
@every_filter
async def test_a_pull_gets_32_messages_and_256_kib_from_memory(tmp_path: Path, wanted: str, kind: str) -> None:
    async with broker_and_channel(tmp_path) as (_, channel):
        await send(channel, 50)
        assert await count(channel, pull(wanted=wanted, kind=kind)) == 32
        assert await count(channel, pull(32, wanted=wanted, kind=kind)) == 18
        assert await count(channel, pull(limit=31, wanted=wanted, kind=kind)) == 31
        await send(channel, 5, 60 * KIB)
        assert await count(channel, pull(50, wanted=wanted, kind=kind)) == 4
        await send(channel, 2, 300 * KIB)
        assert await count(channel, pull(55, wanted=wanted, kind=kind)) == 1, "the first message always fits"


@pytest.mark.trio
@every_filter
async def test_a_pull_gets_8_messages_and_64_kib_from_the_disk(
    tmp_path: Path, memory: Callable[[int], None], wanted: str, kind: str
) -> None:
    memory(0)
    async with broker_and_channel(tmp_path) as (_, channel):
        await send(channel, 20)
        assert await count(channel, pull(wanted=wanted, kind=kind)) == 8
        assert await count(channel, pull(limit=5, wanted=wanted, kind=kind)) == 5
        await send(channel, 5, 20 * KIB)
        assert await count(channel, pull(20, wanted=wanted, kind=kind)) == 3
        await send(channel, 2, 100 * KIB)
        assert await count(channel, pull(25, wanted=wanted, kind=kind)) == 1, "the first message always fits"


@pytest.mark.trio
@every_filter
async def test_each_message_counts_by_its_own_distance_from_the_logs_end(
    tmp_path: Path, memory: Callable[[int], None], wanted: str, kind: str
) -> None:
    memory(1000 * KIB)
    async with broker_and_channel(tmp_path) as (_, channel):
        await send(channel, 60, 10 * KIB)
        # the last 39 messages are within 400 KiB of the log's end; six of them fit into 64 KiB, 25 into 256 KiB
        assert await count(channel, pull(14, wanted=wanted, kind=kind)) == 6, "the seventh is on the disk, too"
        assert await count(channel, pull(15, wanted=wanted, kind=kind)) == 25, "six from the disk, the rest from memory"
        assert await count(channel, pull(21, wanted=wanted, kind=kind)) == 25, "all from memory"


@pytest.mark.trio
async def test_a_record_that_is_not_wanted_ends_the_answer_where_it_does_not_fit(tmp_path: Path) -> None:
    """The size is checked before the filter, as in RocketMQ."""
    for wanted, kind in FILTERS[1:]:
        async with broker_and_channel(tmp_path / kind) as (_, channel):
            await send(channel, 1)
            await send(channel, 1, 256 * KIB, "TAGS\x01B")
            await send(channel, 1)
            assert await count(channel, pull(wanted=wanted, kind=kind)) == 1


@pytest.mark.trio
@every_filter
async def test_a_client_that_accepts_more_gets_more_up_to_the_brokers_own_limits(
    tmp_path: Path, memory: Callable[[int], None], wanted: str, kind: str
) -> None:
    memory(0)
    limits = {"plugin__consume__max_messages": "45", "plugin__consume__max_bytes": "400 KiB"}
    async with broker_and_channel(tmp_path, **limits) as (_, channel):
        await send(channel, 50)
        assert await count(channel, pull(wanted=wanted, kind=kind, max_bytes=1 << 20)) == 45
        assert await count(channel, pull(limit=40, wanted=wanted, kind=kind, max_bytes=1 << 20)) == 40
        await send(channel, 9, 60 * KIB)
        assert await count(channel, pull(50, wanted=wanted, kind=kind, max_bytes=1 << 20)) == 6
        assert await count(channel, pull(50, wanted=wanted, kind=kind, max_bytes=130 * KIB)) == 2
        assert await count(channel, pull(50, wanted=wanted, kind=kind, max_bytes=1)) == 1
        assert await count(channel, pull(wanted=wanted, kind=kind, max_bytes=0)) == 8, "0 asks for nothing"
        assert await count(channel, pull(wanted=wanted, kind=kind, max_bytes=-5)) == 8


@pytest.mark.trio
async def test_a_size_that_is_no_number_is_refused(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (_, channel):
        await send(channel, 1)
        for text in ("x", "", "1.5", str(2**31)):
            command = pull()
            assert command.ext is not None
            command.ext["gantrymqMaxBytes"] = text
            assert (await channel.call(command)).code == ResponseCode.SYSTEM_ERROR, text


@pytest.mark.trio
async def test_a_pull_that_waited_keeps_its_limits(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (_, channel), trio.open_nursery() as nursery:
        await send(channel, 1)
        found: dict[int | None, int] = {}

        async def wait(max_bytes: int | None) -> None:
            found[max_bytes] = await count(channel, pull(1, wait_ms=20_000, max_bytes=max_bytes))

        for max_bytes in (None, 1 << 20):
            nursery.start_soon(wait, max_bytes)
        await channel.call(Command(RequestCode.GET_BROKER_CONFIG))
        batch = b"".join(
            (22 + 1).to_bytes(4, "big") + bytes(12) + (1).to_bytes(4, "big") + b"x" + bytes(2) for _ in range(40)
        )
        header = SendMessageHeader(
            producer_group="g", topic="T", default_topic="TBW102", default_topic_queue_nums=4, queue_id=0,
            sys_flag=0, born_timestamp=1, flag=0, properties="", batch=True,
        )  # fmt: skip
        assert (await channel.call(Command(RequestCode.SEND_BATCH_MESSAGE, header.to_ext(), batch))).code == 0
    assert found == {None: 32, 1 << 20: 40}


@pytest.mark.trio
@pytest.mark.slow
async def test_the_limits_are_read_and_changed_by_rocketmqs_names(
    tmp_path: Path, memory: Callable[[int], None]
) -> None:
    memory(0)
    async with broker_and_channel(tmp_path) as (_, channel):
        await send(channel, 50)
        shown = (await channel.call(Command(RequestCode.GET_BROKER_CONFIG))).body.decode().splitlines()
        for line in (
            "maxTransferCountOnMessageInMemory=32", "maxTransferBytesOnMessageInMemory=262144",
            "maxTransferCountOnMessageInDisk=8", "maxTransferBytesOnMessageInDisk=65536",
        ):  # fmt: skip
            assert line in shown
        await change(channel, b"maxTransferCountOnMessageInDisk=2")
        assert await count(channel, pull()) == 2
        await change(channel, b"maxTransferCountOnMessageInDisk=50\nmaxTransferBytesOnMessageInDisk=1000")
        assert await count(channel, pull()) < 20
    memory(1 << 30)
    async with broker_and_channel(tmp_path) as (_, channel):
        await change(channel, b"maxTransferCountOnMessageInMemory=2000")
        await send(channel, 3)
        assert await count(channel, pull()) == 50
        await change(channel, b"maxTransferBytesOnMessageInMemory=1")
        assert await count(channel, pull()) == 1

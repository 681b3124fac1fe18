"""Postponed pulls of old or many messages block nobody, get the same responses, and commit in order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from gantrymq.kernel.env import File
from gantrymq.kernel.env.system import SystemEnv, SystemFile
from gantrymq.kernel.store.log import unreadable
from gantrymq.plugins.consume import postponed
from gantrymq.plugins.consume import pull as pull_module
from gantrymq.plugins.interfaces import Statistics
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command, decode, encode
from gantrymq.remoting.frame import cut_frames
from gantrymq.remoting.headers.pull import PullMessageHeader
from gantrymq.remoting.headers.send import SendMessageHeader
from gantrymq.remoting.records import decode_records
from gantrymq.testing.harness import broker_and_channel, make_broker, run_broker

COMMIT, SUSPEND, INLINE = 1, 2, 4


class ColdDisk(SystemEnv):
    """A system on which what lies in the files has to be fetched first, once ``cold`` is set; ``fetched`` says so."""

    def __init__(self) -> None:
        super().__init__()
        self.cold = False
        self.fetches: list[str] = []
        self.may_fetch = threading.Event()
        self.fails = False

    def open(self, path: str, create: bool = False) -> File:
        file = super().open(path, create)
        assert isinstance(file, SystemFile)
        return ColdFile(self, path, file)


class ColdFile(SystemFile):
    def __init__(self, disk: ColdDisk, path: str, file: SystemFile) -> None:
        super().__init__(file._descriptor)
        self._disk, self._path = disk, path

    def peek_into(self, buffer: memoryview, offset: int) -> int:
        return 0 if self._disk.cold else super().peek_into(buffer, offset)

    def peek(self, size: int, offset: int) -> bytes | None:
        return None if self._disk.cold else super().peek(size, offset)

    def pread(self, size: int, offset: int) -> bytes:
        if self._disk.cold and threading.current_thread() is not threading.main_thread():
            self._disk.fetches.append(self._path)
            assert self._disk.may_fetch.wait(10)
            if not self._disk.fails:
                self._disk.cold = False
        if self._disk.cold and self._disk.fails and "/consumequeue/" not in self._path:  # entries may be flushed or not
            raise OSError(5, "Input/output error")
        return super().pread(size, offset)


async def send(channel: Channel, count: int, body: bytes = b"m", queue: int = 0) -> None:
    for number in range(count):
        header = SendMessageHeader(
            producer_group="g", topic="T", default_topic="TBW102", default_topic_queue_nums=4, queue_id=queue,
            sys_flag=0, born_timestamp=1, flag=0, properties="TAGS\x01A",
        )  # fmt: skip
        command = Command(RequestCode.SEND_MESSAGE_V2, header.to_ext(), body + str(number).encode())
        assert (await channel.call(command)).code == 0


def pull(
    offset: int, *, sys_flag: int = INLINE, commit: int = 0, tags: str = "*", limit: int = 32, opaque: int = 0
) -> Command:
    header = PullMessageHeader(
        consumer_group="cg", topic="T", queue_id=0, queue_offset=offset, max_msg_nums=limit, sys_flag=sys_flag,
        commit_offset=commit, suspend_timeout_millis=60_000, subscription=tags, sub_version=0, expression_type="TAG",
    )  # fmt: skip
    return Command(RequestCode.PULL_MESSAGE, header.to_ext(), opaque=opaque)


def bodies(answer: Command) -> list[bytes]:
    return [record.body for record in decode_records(answer.body)]


async def until(holds: Callable[[], Any]) -> None:
    with trio.fail_after(30):
        while not holds():
            await trio.lowlevel.checkpoint()


@pytest.mark.trio
@pytest.mark.parametrize("tags", ["*", "A", "none"])
async def test_readers_of_old_messages_delay_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tags: str
) -> None:
    disk = ColdDisk()
    broker = make_broker(tmp_path / "store", env=disk)
    async with run_broker(broker), open_channel(broker.address) as channel, trio.open_nursery() as nursery:
        await send(channel, 3)
        await trio.to_thread.run_sync(broker.store.flush_queues)
        disk.cold = True
        answers: list[Command] = []
        waits: list[float] = []
        monkeypatch.setattr(broker.registry.get(Statistics), "waited", lambda *pulled: waits.append(pulled[-1]))

        async def read() -> None:
            answers.append(await channel.call(pull(0, tags=tags), 10.0))

        for _ in range(3):
            nursery.start_soon(read)
        await until(lambda: disk.fetches)
        async with open_channel(broker.address) as other:
            await send(other, 2, queue=1)
        assert answers == []
        disk.may_fetch.set()
        await until(lambda: len(answers) == 3)
        assert [bodies(answer) for answer in answers] == [[] if tags == "none" else [b"m0", b"m1", b"m2"]] * 3
        assert len(waits) >= 3
        assert min(waits) > 0


@pytest.mark.trio
async def test_a_stopping_broker_answers_pulls_that_wait_for_the_disk(tmp_path: Path) -> None:
    disk = ColdDisk()
    broker = make_broker(tmp_path / "store", env=disk)
    answers: list[Command] = []
    async with trio.open_nursery() as nursery, run_broker(broker), open_channel(broker.address) as channel:
        await send(channel, 3)
        await trio.to_thread.run_sync(broker.store.flush_queues)
        disk.cold = True

        async def read() -> None:
            answers.append(await channel.call(pull(1), 10.0))

        for _ in range(3):
            nursery.start_soon(read)
        await until(lambda: disk.fetches)
        broker.stop()
        await until(lambda: len(answers) == 3)  # while the disk still hangs
        disk.may_fetch.set()
    assert [answer.code for answer in answers] == [ResponseCode.PULL_RETRY_IMMEDIATELY] * 3
    assert [answer.ext["nextBeginOffset"] for answer in answers] == ["1"] * 3


@pytest.mark.trio
async def test_a_disk_error_fails_the_pulls_that_need_it_until_reads_succeed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = ColdDisk()
    broker = make_broker(tmp_path / "store", env=disk)
    async with run_broker(broker), open_channel(broker.address) as channel:
        await send(channel, 2)
        disk.fails = disk.cold = True
        disk.may_fetch.set()
        for _ in range(2):
            answer = await channel.call(pull(0), 10.0)
            assert (answer.code, bodies(answer)) == (ResponseCode.SYSTEM_ERROR, [])
            assert "the disk cannot read them" in (answer.remark or "")
        assert disk.fetches
        disk.fails = False
        monkeypatch.setattr(unreadable, "UNREADABLE_S", 0.0)
        assert bodies(await channel.call(pull(0), 10.0)) == [b"m0", b"m1"]


@pytest.mark.trio
@pytest.mark.parametrize("during_the_read", ["deleted", "quarantined"])
async def test_a_file_that_is_deleted_or_a_range_found_damaged_during_its_read_costs_only_its_messages(
    tmp_path: Path, during_the_read: str
) -> None:
    disk = ColdDisk()
    broker = make_broker(tmp_path / "store", settings={"store.commit_log_file_bytes": "64KiB"}, env=disk)
    answers: list[Command] = []
    async with run_broker(broker), open_channel(broker.address) as channel, trio.open_nursery() as nursery:
        await send(channel, 3, b"x" * 30_000)  # the third one is in the second file
        disk.cold = True

        async def read() -> None:
            answers.append(await channel.call(pull(0), 10.0))

        nursery.start_soon(read)
        await until(lambda: disk.fetches)
        if during_the_read == "deleted":
            for segment in broker.log.detach_before(65536):
                segment.file.close()
        else:
            broker.log.quarantine_range(0, 100)
        disk.may_fetch.set()
        await until(lambda: answers)
        assert answers[0].code in (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY)
        rest = bodies(await channel.call(pull(int((answers[0].ext or {})["nextBeginOffset"])), 10.0))
    left = [b"2"] if during_the_read == "deleted" else [b"1", b"2"]
    assert [body[30_000:] for body in bodies(answers[0]) + rest] == left


@pytest.mark.trio
async def test_a_queue_that_cannot_be_read_is_one_outage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object, **_more: object) -> None:
        raise OSError(5, "Input/output error")

    disk = ColdDisk()  # compiled loops read what is in memory
    broker = make_broker(tmp_path / "store", env=disk)
    async with run_broker(broker), open_channel(broker.address) as channel:
        await send(channel, 2)
        disk.cold = True
        disk.may_fetch.set()
        with capture_logs() as logs:
            with monkeypatch.context() as broken:
                broken.setattr(pull_module, "read_queue", fail)
                for _ in range(4):
                    answer = await channel.call(pull(0))
                    assert answer.remark == "the queue cannot be read: Input/output error"
            assert bodies(await channel.call(pull(0))) == [b"m0", b"m1"]
    first, last = (line for line in logs if "consume_queue_unreadable" in (line["event"], line.get("of")))
    assert (first["log_level"], first["topic"], first["queue_id"]) == ("error", "T", 0)
    assert (last["event"], last["failures"]) == ("outage_ended", 4)


@pytest.mark.trio
async def test_failed_reads_ahead_are_one_outage() -> None:
    results = [OSError(5, "Input/output error")] * 3 + [None]
    answered: list[Any] = []

    async def response_of(number: int) -> None:
        with trio.fail_after(30):
            while len(answered) <= number:
                await trio.lowlevel.checkpoint()

    def fetch() -> None:
        if (result := results.pop(0)) is not None:
            raise result

    def answer(given: Any, wait: bool) -> int:
        answered.append(given)
        return 1

    reads = postponed.Postponed(answer, answered.append)
    peer = SimpleNamespace(connection=SimpleNamespace(closed=False))
    given: Any = SimpleNamespace(request=peer, topic="T", queue_id=0)
    with capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reads.run)
            for number in range(4):
                reads.until_fetched(given, fetch)
                await response_of(number)
            nursery.cancel_scope.cancel()
    first, last = logs
    assert (first["event"], first["log_level"], first["topic"]) == ("read_ahead_failed", "error", "T")
    assert (last["event"], last["of"], last["failures"]) == ("outage_ended", "read_ahead_failed", 3)


@pytest.mark.trio
async def test_many_postponed_pulls_are_answered_and_their_commits_keep_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (pull_module, postponed):
        monkeypatch.setattr(module, "TURN_BYTES", 1000)
    async with broker_and_channel(tmp_path) as (broker, channel):
        await send(channel, 9, b"x" * 600)
        commands = [
            pull(offset, sys_flag=INLINE | COMMIT | SUSPEND, commit=offset, limit=1, opaque=offset)
            for offset in range(9)
        ]
        ext = {"consumerGroup": "cg", "topic": "T", "queueId": "0"}
        commands.append(Command(RequestCode.QUERY_CONSUMER_OFFSET, ext, opaque=9))
        answers: dict[int, Command] = {}
        host, _, port = broker.address.rpartition(":")
        with trio.fail_after(30):
            async with await trio.open_tcp_stream(host, int(port)) as stream:
                await stream.send_all(b"".join(map(encode, commands)))
                data = b""
                while len(answers) < 10:
                    data += await stream.receive_some(65536)
                    answers = {one.opaque: one for one in map(decode, cut_frames(data)[0])}
        assert answers.pop(9).ext == {"offset": "8"}
        assert {offset: [body[600:] for body in bodies(one)] for offset, one in answers.items()} == {
            offset: [str(offset).encode()] for offset in range(9)
        }


@pytest.mark.trio
async def test_pulls_beyond_the_limit_are_not_postponed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postponed, "POSTPONED_MAX", 0)
    disk = ColdDisk()
    broker = make_broker(tmp_path / "store", env=disk)
    async with run_broker(broker), open_channel(broker.address) as channel:
        await send(channel, 2)
        disk.cold = True
        for number in range(2):  # each waits for its first message only
            assert bodies(await channel.call(pull(number), 60.0)) == [b"m%d" % number]
        assert disk.fetches == []

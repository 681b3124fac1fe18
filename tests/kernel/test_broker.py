"""The life cycle of a broker: start, stop, restart, and a failing or hanging disk."""

from __future__ import annotations

import errno
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from gantrymq.kernel import hookimpl
from gantrymq.kernel.batch import AppendBatch
from gantrymq.kernel.env import File
from gantrymq.kernel.env.system import SystemEnv, SystemFile
from gantrymq.kernel.errors import LogPoisoned, PluginError, StartError, StoreInUse
from gantrymq.kernel.fast.plain_flusher import Flusher
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.pull import PullMessageHeader
from gantrymq.remoting.headers.send import SendMessageHeader
from gantrymq.remoting.records import decode_records
from gantrymq.testing.harness import make_broker, run_broker


class WatchedFile:
    """A file of the commit log whose datasync does something first."""

    def __init__(self, file: File, before_datasync: Callable[[], None]) -> None:
        self._file = file
        self._before_datasync = before_datasync

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def share(self) -> File:
        return self

    def datasync(self) -> None:
        self._before_datasync()
        self._file.datasync()


class WatchedEnv(SystemEnv):
    """The real system, but for what the commit log's datasync does first; nothing until ``before_datasync`` is set."""

    before_datasync: Callable[[], None] = staticmethod(lambda: None)

    def open(self, path: str, create: bool = False) -> File:
        file = super().open(path, create)
        if "/commitlog/" in path or "/staging/" in path:
            return WatchedFile(file, lambda: self.before_datasync())  # type: ignore[return-value]
        return file

    def flusher(self) -> Flusher:
        return Flusher()  # the one that comes by the files


def send(body: bytes, *, wait: bool = True) -> Command:
    header = SendMessageHeader(
        producer_group="g", topic="T", default_topic="TBW102", default_topic_queue_nums=1, queue_id=0, sys_flag=0,
        born_timestamp=1, flag=0, properties="" if wait else "WAIT\x01false",
    )  # fmt: skip
    return Command(RequestCode.SEND_MESSAGE_V2, header.to_ext(), body)


async def bodies(channel: Channel) -> list[bytes]:
    header = PullMessageHeader(
        consumer_group="cg", topic="T", queue_id=0, queue_offset=0, max_msg_nums=1000, sys_flag=4, commit_offset=0,
        suspend_timeout_millis=0, subscription="*", sub_version=0,
    )  # fmt: skip
    answer = await channel.call(Command(RequestCode.PULL_MESSAGE, header.to_ext()))
    return [record.body for record in decode_records(answer.body)]


@pytest.mark.trio
async def test_acknowledged_messages_survive_a_restart_and_offsets_continue(tmp_path: Path) -> None:
    for life in range(3):
        async with run_broker(make_broker(tmp_path)) as broker, open_channel(broker.address) as channel:
            assert await bodies(channel) == [b"%d" % number for number in range(life * 2)]
            for number in range(2):
                answer = await channel.call(send(b"%d" % (life * 2 + number)))
                assert answer.code == 0
                assert (answer.ext or {})["queueOffset"] == str(life * 2 + number)
        assert not (tmp_path / "abort").exists(), "a stop is clean"


@pytest.mark.trio
async def test_a_cancelled_broker_closes_its_store_cleanly(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:

        async def run(*, task_status: trio.TaskStatus[Any]) -> None:
            await make_broker(tmp_path).run(task_status=task_status)

        broker = await nursery.start(run)
        async with open_channel(broker.address) as channel:
            assert (await channel.call(send(b"x"))).code == 0
        nursery.cancel_scope.cancel()
    assert not (tmp_path / "abort").exists()


@pytest.mark.trio
async def test_a_second_broker_on_the_same_store_is_refused(tmp_path: Path) -> None:
    async with run_broker(make_broker(tmp_path)):
        with pytest.raises(StoreInUse, match=str(tmp_path)):
            await make_broker(tmp_path).run()


@pytest.mark.trio
async def test_a_failed_flush_stops_the_broker_without_an_acknowledgment(tmp_path: Path) -> None:
    env = WatchedEnv()
    answers: list[Command] = []

    def fail() -> None:
        raise OSError(errno.EIO, "Input/output error")

    async def life() -> None:
        async with run_broker(make_broker(tmp_path, env=env)) as broker, open_channel(broker.address) as channel:
            answers.append(await channel.call(send(b"safe")))
            env.before_datasync = fail
            answers.append(await channel.call(send(b"lost"), 5.0))

    with pytest.RaisesGroup(pytest.RaisesExc(LogPoisoned, match="flushing the commit log failed")):
        await life()
    assert [answer.code for answer in answers] == [0]
    assert (tmp_path / "abort").exists(), "the next start recovers as after a crash"
    async with run_broker(make_broker(tmp_path)) as broker, open_channel(broker.address) as channel:
        assert (await bodies(channel))[0] == b"safe"


@pytest.mark.trio
async def test_a_hanging_disk_causes_timeouts_and_no_undurable_message_is_readable(tmp_path: Path) -> None:
    env = WatchedEnv()
    hang = threading.Event()
    settings = {"plugin.flush.timeout": "300ms"}
    broker = make_broker(tmp_path, env=env, settings=settings)
    async with run_broker(broker), open_channel(broker.address) as channel:

        async def send_until_durable(body: bytes) -> None:
            # On a busy machine a flush can take longer than the timeout, too.
            with trio.fail_after(20):
                while (await channel.call(send(body), 10.0)).code != ResponseCode.SUCCESS:
                    pass

        await send_until_durable(b"before")
        first = await bodies(channel)
        assert set(first) == {b"before"}
        env.before_datasync = lambda: (hang.wait(20), None)[1]
        answer = await channel.call(send(b"during"), 10.0)
        assert answer.code == ResponseCode.FLUSH_DISK_TIMEOUT
        assert (answer.ext or {})["queueOffset"] == str(len(first)), "it is stored, and the answer says where"
        assert await bodies(channel) == first
        hang.set()
        await send_until_durable(b"after")
        assert [*dict.fromkeys(await bodies(channel))] == [b"before", b"during", b"after"]


@pytest.mark.trio
async def test_a_failed_write_of_a_table_is_retried_and_delays_no_other_table(tmp_path: Path) -> None:
    hanging, hang = threading.Event(), threading.Event()

    class TableEnv(SystemEnv):
        def replace(self, path: str, data: bytes) -> None:
            if path.endswith("consumerOffset.json") and not hang.is_set():
                hanging.set()
                hang.wait(20)
                raise OSError(errno.EIO, "Input/output error")
            super().replace(path, data)

    broker = make_broker(tmp_path, env=TableEnv(), settings={"broker.persist_interval": "10ms"})
    async with run_broker(broker), open_channel(broker.address) as channel:
        assert (await channel.call(send(b"x"))).code == 0
        commit = {"consumerGroup": "cg", "topic": "T", "queueId": "0", "commitOffset": "1"}
        await bodies(channel)  # makes the group known
        assert (await channel.call(Command(RequestCode.UPDATE_CONSUMER_OFFSET, commit))).code == 0
        await trio.to_thread.run_sync(hanging.wait, 10)
        assert (await channel.call(send(b"y"))).code == 0
        hang.set()
    assert b'"T@cg":{0:1}' in (tmp_path / "config" / "consumerOffset.json").read_bytes()


@pytest.mark.trio
async def test_senders_with_wait_false_are_answered_while_the_disk_hangs(tmp_path: Path) -> None:
    env = WatchedEnv()
    hang = threading.Event()
    async with run_broker(make_broker(tmp_path, env=env)) as broker, open_channel(broker.address) as channel:
        assert (await channel.call(send(b"before"))).code == 0
        env.before_datasync = lambda: (hang.wait(20), None)[1]
        assert (await channel.call(send(b"x", wait=False))).code == 0
        hang.set()


@pytest.mark.trio
@pytest.mark.parametrize("mode", ["async", "buffered"])
async def test_interval_flush_acknowledges_before_the_fsync_and_a_stop_flushes_all(tmp_path: Path, mode: str) -> None:
    env = WatchedEnv()
    hang = threading.Event()
    broker = make_broker(tmp_path, env=env, settings={"plugin.flush.mode": mode})
    async with run_broker(broker), open_channel(broker.address) as channel:
        assert (await channel.call(send(b"before"))).code == 0
        env.before_datasync = lambda: (hang.wait(20), None)[1]
        assert (await channel.call(send(b"x"))).code == 0
        assert await bodies(channel) == [b"before", b"x"]
        assert broker.log.durable < broker.log.end
        hang.set()
    assert broker.log.durable == broker.log.end


@pytest.mark.trio
async def test_buffered_mode_acknowledges_and_serves_only_written_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = make_broker(tmp_path, settings={"plugin.flush.mode": "buffered"})
    go_on = threading.Event()
    async with run_broker(broker), open_channel(broker.address) as channel, trio.open_nursery() as nursery:
        assert (await channel.call(send(b"before"))).code == 0
        pwrite = SystemFile.pwrite

        def slow(file: SystemFile, data: bytes, offset: int, zeros: int = 0) -> None:
            if b"waits" in data:
                assert go_on.wait(20)
            pwrite(file, data, offset, zeros)

        monkeypatch.setattr(SystemFile, "pwrite", slow)
        answers: list[int] = []

        async def ask() -> None:
            answers.append((await channel.call(send(b"waits"), 20.0)).code)

        nursery.start_soon(ask)
        while broker.log.end == broker.log.written:
            await trio.lowlevel.checkpoint()
        async with open_channel(broker.address) as other:
            assert await bodies(other) == [b"before"]
        assert answers == []
        go_on.set()
        while not answers:
            await trio.lowlevel.checkpoint()
        assert answers == [0]
        assert await bodies(channel) == [b"before", b"waits"]
    assert broker.log.durable == broker.log.end


class Raising:
    name = "raising"

    @hookimpl
    def before_append(self, batch: AppendBatch) -> None:
        raise ZeroDivisionError("a bug")


@pytest.mark.trio
async def test_a_plugin_that_raises_on_the_write_path_stops_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.ModuleType("gantrymq_test_raising")
    module.Raising = Raising  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    broker = make_broker(tmp_path, enable=["gantrymq_test_raising:Raising"])

    async def life() -> None:
        async with run_broker(broker), open_channel(broker.address) as channel:
            await channel.call(send(b"x"), 5.0)

    with pytest.RaisesGroup(
        pytest.RaisesExc(PluginError, match="plugin 'raising': before_append failed: ZeroDivisionError")
    ):
        await life()


@pytest.mark.trio
async def test_a_broker_without_a_flush_strategy_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="slot 'flush'"):
        await make_broker(tmp_path, disable=["flush"]).run()


@pytest.mark.trio
async def test_the_advertised_address_is_the_configured_one_and_in_every_message_id(tmp_path: Path) -> None:
    settings = {"broker.advertise": "127.0.0.9:1234"}
    async with run_broker(make_broker(tmp_path, settings=settings)) as broker:
        assert broker.address == "127.0.0.9:1234"
        async with open_channel(broker.listening) as channel:
            answer = await channel.call(send(b"x"))
            assert (answer.ext or {})["msgId"].startswith("7F000009000004D2")


@pytest.mark.trio
async def test_appends_of_a_task_are_acknowledged_without_another_call(tmp_path: Path) -> None:
    async with run_broker(make_broker(tmp_path, settings={"plugin.flush.mode": "async"})) as broker:
        await trio.sleep(0.1)  # the turns of the start are over
        woken: list[None] = []
        wake = broker.sweep.wake
        broker.sweep.wake = lambda: (woken.append(None), wake())[1]  # type: ignore[method-assign]
        done = trio.Event()
        batch = AppendBatch(done=lambda _: done.set())
        batch.add("T", 0, b"from a task", b"")
        broker.append(batch)
        assert woken, "nobody else brings the next turn"
        with trio.fail_after(10):
            await done.wait()
        async with open_channel(broker.address) as channel:
            sent = SendMessageHeader(
                producer_group="p", topic="T", default_topic="TBW102", default_topic_queue_nums=1, queue_id=0,
                sys_flag=0, born_timestamp=1, flag=0,
            )  # fmt: skip
            woken.clear()
            answer = await channel.call(Command(RequestCode.SEND_MESSAGE_V2, sent.to_ext(), b"sent"), 10.0)
            assert answer.code == 0
        assert not woken, "what came by a request goes on in its own turn"

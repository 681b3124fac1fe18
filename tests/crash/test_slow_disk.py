"""A running broker on a hanging disk, and on one with an unreadable block: rows 8, 16, 22 and 23."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

import pytest
import trio

from gantrymq.kernel.env import File
from gantrymq.kernel.env.system import SystemEnv
from gantrymq.kernel.fast.plain_flusher import Flusher
from gantrymq.kernel.network.sweep import LONE_TURNS
from gantrymq.plugins.flush.sync import FAST_FLUSHES
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.records import decode_records
from gantrymq.testing.harness import make_broker, run_broker
from gantrymq.testing.requests import pull, send

pytestmark = pytest.mark.trio


class SickFile:
    """A file whose syncs wait for the environment's event, and whose reads fail at some offsets."""

    def __init__(self, env: SickEnv, path: str, file: File) -> None:
        self._env = env
        self._path = path
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def fileno(self) -> int:
        return -1

    def datasync(self) -> None:
        self._env.healthy.wait(30)
        self._file.datasync()

    def pread(self, size: int, offset: int) -> bytes:
        self._check()
        return self._file.pread(size, offset)

    def peek(self, size: int, offset: int) -> bytes | None:
        self._check()
        return self._file.peek(size, offset)

    def peek_into(self, buffer: memoryview, offset: int) -> int:
        self._check()
        return self._file.peek_into(buffer, offset)

    def share(self) -> File:
        return self

    def _check(self) -> None:
        if self._path.endswith(self._env.unreadable or "/"):
            raise OSError(errno.EIO, "Input/output error")


class SickEnv(SystemEnv):
    """The real disk with files that a test can make sick."""

    def __init__(self) -> None:
        super().__init__()
        self.healthy = threading.Event()
        self.healthy.set()
        self.unreadable = ""

    def open(self, path: str, create: bool = False) -> File:
        return SickFile(self, path, super().open(path, create))

    def flusher(self) -> Flusher:
        return Flusher(0.2)  # the machine may have other work


async def send_until_durable(channel: Channel, body: bytes) -> None:
    # On a busy machine a flush can take longer than the timeout, too.
    with trio.fail_after(20):
        while (await channel.call(send("T", body))).code != ResponseCode.SUCCESS:
            pass


async def readable(channel: Channel) -> list[bytes]:
    """The bodies that a pull from the first offset returns."""
    return [record.body for record in decode_records((await channel.call(pull("T"))).body)]


async def test_senders_get_errors_and_readers_are_served_while_the_disk_hangs(tmp_path: Path) -> None:
    env = SickEnv()
    settings = {"plugin.flush.timeout": "300ms", "plugin.flowcontrol.busy_after": "600ms"}
    broker = make_broker(tmp_path, env=env, settings=settings)
    async with run_broker(broker), open_channel(broker.address) as channel:
        await send_until_durable(channel, b"before")
        before = await readable(channel)
        assert set(before) == {b"before"}
        env.healthy.clear()
        try:
            late = await channel.call(send("T", b"late"))
            assert late.code == ResponseCode.FLUSH_DISK_TIMEOUT
            assert late.remark is not None
            assert await readable(channel) == before, "and not what may be lost"
        finally:
            env.healthy.set()
        await send_until_durable(channel, b"after")
        assert (await readable(channel))[: len(before) + 1] == [*before, b"late"], "stored, as its sender knows"


async def test_a_disk_that_begins_to_hang_stops_readers_for_one_flush_only(tmp_path: Path) -> None:
    env = SickEnv()
    settings = {"plugin.flush.timeout": "300ms", "plugin.flowcontrol.busy_after": "600ms"}
    broker = make_broker(tmp_path, env=env, settings=settings)
    async with run_broker(broker), open_channel(broker.address) as channel:
        for _ in range(FAST_FLUSHES + LONE_TURNS):
            await channel.call(send("T", b"before"))
        env.healthy.clear()
        timer = threading.Timer(0.4, env.healthy.set)  # this thread may be the one that hangs
        timer.start()
        await channel.call(send("T", b"during"))
        await trio.to_thread.run_sync(timer.join)  # if a worker hung, the answer came before
        env.healthy.clear()
        try:
            late = await channel.call(send("T", b"late"))
            assert late.code == ResponseCode.FLUSH_DISK_TIMEOUT
            assert (await channel.call(pull("T"))).code == ResponseCode.SUCCESS
        finally:
            env.healthy.set()


async def test_an_unreadable_block_affects_its_queue_only(tmp_path: Path) -> None:
    settings = {"store.queue_file_units": "20"}
    async with run_broker(make_broker(tmp_path, settings=settings)) as broker, open_channel(broker.address) as channel:
        for queue_id in (0, 1):
            for _ in range(50):
                await channel.call(send("T", b"x", queue_id=queue_id, queues=2))
    env = SickEnv()
    broker = make_broker(tmp_path, env=env, settings=settings)
    async with run_broker(broker), open_channel(broker.address) as channel:
        env.unreadable = f"consumequeue/T/0/{20 * 20:020d}"
        assert (await channel.call(pull("T", 0, 25))).code == ResponseCode.SYSTEM_ERROR
        assert (await channel.call(pull("T", 1, 25))).code == ResponseCode.SUCCESS
        assert (await channel.call(pull("T", 0, 45))).code == ResponseCode.SUCCESS, "another file of that queue"
        env.unreadable = ""
        assert (await channel.call(pull("T", 0, 25))).code == ResponseCode.SUCCESS

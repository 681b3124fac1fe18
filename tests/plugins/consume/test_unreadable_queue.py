"""A queue with an unreadable file fails only its own pulls, on each path to a response."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from gantrymq.kernel.api import Broker
from gantrymq.kernel.batch import Pull, PullBatch
from gantrymq.kernel.env import File
from gantrymq.kernel.env.system import SystemEnv
from gantrymq.plugins.consume import pull as pull_module
from gantrymq.plugins.longpoll.hold import HeldPulls
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.command import Command, decode, encode
from gantrymq.remoting.frame import cut_frames
from gantrymq.remoting.records import decode_records
from gantrymq.testing.harness import make_broker, run_broker
from gantrymq.testing.requests import pull, send

UNREADABLE = "the queue cannot be read: Too many open files"


class ScarceEnv(SystemEnv):
    """A system that opens no file of a queue of ``T`` once it is ``scarce``."""

    scarce = False

    def open(self, path: str, create: bool = False) -> File:
        if self.scarce and "consumequeue/T/" in path:
            raise OSError(errno.EMFILE, "Too many open files", path)
        return super().open(path, create)


async def fill(channel: Channel, queue_id: int) -> None:
    for body in (b"0", b"1"):
        answer = await channel.call(send("T", body, queue_id=queue_id, queues=2, properties="TAGS\x01B"))
        assert answer.code == 0


def bodies(answer: Command) -> list[bytes]:
    return [record.body for record in decode_records(answer.body)]


async def until(holds: Callable[[], Any]) -> None:
    with trio.fail_after(30):
        while not holds():
            await trio.lowlevel.checkpoint()


async def close_queue(broker: Broker, queue_id: int) -> None:
    """Let the next reader of the queue open its file."""
    queue = broker.queues.get("T", queue_id)
    assert queue is not None
    await trio.to_thread.run_sync(queue.flush)
    assert queue.close_files()


async def call_at_once(address: str, *commands: Command) -> list[Command]:
    """The responses to requests that arrive in one turn, in the order of the requests."""
    host, _, port = address.rpartition(":")
    for opaque, command in enumerate(commands):
        command.opaque = opaque
    with trio.fail_after(30):
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            await stream.send_all(b"".join(map(encode, commands)))
            data = b""
            frames: list[Any] = []
            while len(frames) < len(commands):
                data += await stream.receive_some(65536)
                frames = cut_frames(data)[0]
    return sorted(map(decode, frames), key=lambda answer: answer.opaque)


@pytest.mark.trio
@pytest.mark.parametrize("postponed", [False, True])
async def test_pulls_beside_one_of_a_queue_that_cannot_be_opened_get_their_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postponed: bool
) -> None:
    if postponed:
        monkeypatch.setattr(pull_module, "TURN_BYTES", 1)  # all but the first pull of a turn are postponed
    env = ScarceEnv()
    broker = make_broker(tmp_path / "store", env=env)
    async with run_broker(broker), open_channel(broker.address) as channel:
        for queue_id in range(2):
            await fill(channel, queue_id)
        await close_queue(broker, 0)
        env.scarce = True
        before, failed, after = await call_at_once(broker.address, pull("T", 1), pull("T", 0), pull("T", 1))
        assert (failed.code, failed.remark) == (ResponseCode.SYSTEM_ERROR, UNREADABLE)
        assert bodies(before) == bodies(after) == [b"0", b"1"]
        env.scarce = False
        assert bodies(await channel.call(pull("T", 0), 10.0)) == [b"0", b"1"]


@pytest.mark.trio
async def test_a_held_pull_of_a_queue_that_cannot_be_opened_fails_when_its_message_arrives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[PullBatch] = []
    hold = HeldPulls.hold

    def record(table: HeldPulls, batch: PullBatch, now: float) -> list[Pull]:
        held.append(batch)
        return hold(table, batch, now)

    monkeypatch.setattr(HeldPulls, "hold", record)
    env = ScarceEnv()
    broker = make_broker(tmp_path / "store", env=env)
    answers: list[Command] = []
    async with (
        run_broker(broker), open_channel(broker.address) as channel, open_channel(broker.address) as waiting,
        trio.open_nursery() as nursery,
    ):  # fmt: skip
        await fill(channel, 0)

        async def wait() -> None:
            answers.append(await waiting.call(pull("T", offset=2, expression="A", suspend_ms=60_000), 30.0))

        nursery.start_soon(wait)
        await until(lambda: held)
        await fill(channel, 0)  # which the pull does not match
        await close_queue(broker, 0)
        env.scarce = True
        answer = await channel.call(send("T", b"2", properties="TAGS\x01A"), 10.0)
        assert answer.code == 0
        await until(lambda: answers)
        assert (answers[0].code, answers[0].remark) == (ResponseCode.SYSTEM_ERROR, UNREADABLE)
        env.scarce = False
        assert bodies(await channel.call(pull("T", expression="A"), 10.0)) == [b"2"]

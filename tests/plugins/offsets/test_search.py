"""Searches by time in a real store: when the disk cannot be read, and what other clients notice."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import trio

from gantrymq.kernel.store.log.commitlog import CommitLog
from gantrymq.kernel.store.log.record import Record
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.testing.harness import broker_and_channel
from gantrymq.testing.requests import send
from support.unreadable import run_out_of_descriptors

pytestmark = pytest.mark.trio

QUEUE = {"topic": "T", "queueId": "0"}
IN_2100 = "4102444800000"
MESSAGES = 3
ANSWER_S = 10.0


async def fill(channel: Channel) -> None:
    for number in range(MESSAGES):
        assert (await channel.call(send("T", b"%d" % number))).code == 0


async def search(channel: Channel) -> Command:
    fields = {**QUEUE, "timestamp": IN_2100}
    return await channel.call(Command(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields), ANSWER_S)


async def test_a_search_without_file_descriptors_fails_until_there_are_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker_and_channel(tmp_path / "store") as (broker, channel):
        await fill(channel)
        with monkeypatch.context() as patch:
            run_out_of_descriptors(patch, broker.log)
            failed = await search(channel)
        assert (failed.code, failed.remark) == (1, "the queue cannot be searched: Too many open files")
        assert (await search(channel)).ext == {"offset": str(MESSAGES - 1)}


async def test_other_clients_are_served_during_a_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searching, served = threading.Event(), threading.Event()
    read = CommitLog.read_record

    def read_slowly(log: CommitLog, offset: int) -> Record:
        searching.set()
        assert served.wait(ANSWER_S / 2)
        return read(log, offset)

    async with broker_and_channel(tmp_path / "store") as (broker, channel), open_channel(broker.address) as other:
        await fill(channel)
        monkeypatch.setattr(CommitLog, "read_record", read_slowly)
        answers: list[Command] = []

        async def keep_answer() -> None:
            answers.append(await search(channel))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_answer)
            assert await trio.to_thread.run_sync(searching.wait, ANSWER_S)
            end = await other.call(Command(RequestCode.GET_MAX_OFFSET, dict(QUEUE)), ANSWER_S)
            served.set()
        assert end.ext == {"offset": str(MESSAGES)}
        assert answers[0].ext == {"offset": str(MESSAGES - 1)}

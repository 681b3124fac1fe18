"""Searches by time in a real store, with an unreadable disk and beside other clients."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from gantrymq.kernel.store.log.commitlog import CommitLog
from gantrymq.kernel.store.log.record import Record
from gantrymq.kernel.store.queues.table import ConsumeQueues
from gantrymq.plugins.offsets.requests import SEARCHES_MAX
from gantrymq.remoting.address import parse_address
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command, encode
from gantrymq.testing.harness import broker_and_channel
from gantrymq.testing.requests import send
from support.unreadable import run_out_of_descriptors

pytestmark = pytest.mark.trio

QUEUE = {"topic": "T", "queueId": "0"}
IN_2100 = "4102444800000"
MESSAGES = 3
RESPONSE_S = 10.0


async def fill(channel: Channel) -> None:
    for number in range(MESSAGES):
        assert (await channel.call(send("T", b"%d" % number))).code == 0


def searching_request(timestamp: str = IN_2100) -> Command:
    return Command(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {**QUEUE, "timestamp": timestamp})


async def search(channel: Channel) -> Command:
    return await channel.call(searching_request(), RESPONSE_S)


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
        assert served.wait(RESPONSE_S / 2)
        return read(log, offset)

    async with broker_and_channel(tmp_path / "store") as (broker, channel), open_channel(broker.address) as other:
        await fill(channel)
        monkeypatch.setattr(CommitLog, "read_record", read_slowly)
        answers: list[Command] = []

        async def keep_answer() -> None:
            answers.append(await search(channel))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_answer)
            assert await trio.to_thread.run_sync(searching.wait, RESPONSE_S)
            end = await other.call(Command(RequestCode.GET_MAX_OFFSET, dict(QUEUE)), RESPONSE_S)
            served.set()
        assert end.ext == {"offset": str(MESSAGES)}
        assert answers[0].ext == {"offset": str(MESSAGES - 1)}


async def test_a_waiting_search_of_a_closed_connection_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, go_on = threading.Semaphore(0), threading.Event()
    times: list[int] = []
    offset_by_time = ConsumeQueues.offset_by_time

    def search_slowly(queues: ConsumeQueues, topic: str, queue_id: int, timestamp: int, *rest: Any) -> int:
        times.append(timestamp)
        started.release()
        assert go_on.wait(RESPONSE_S / 2)
        return offset_by_time(queues, topic, queue_id, timestamp, *rest)

    async with broker_and_channel(tmp_path / "store") as (broker, channel), trio.open_nursery() as nursery:
        await fill(channel)
        monkeypatch.setattr(ConsumeQueues, "offset_by_time", search_slowly)
        for _ in range(SEARCHES_MAX):
            nursery.start_soon(search, channel)
        for _ in range(SEARCHES_MAX):
            assert await trio.to_thread.run_sync(partial(started.acquire, timeout=RESPONSE_S))
        async with await trio.open_tcp_stream(*parse_address(broker.address)) as leaving:
            end = Command(RequestCode.GET_MAX_OFFSET, dict(QUEUE))
            await leaving.send_all(encode(searching_request("1")) + encode(end))
            assert await leaving.receive_some(), "the broker has received both requests"
        with trio.fail_after(RESPONSE_S):
            while len(broker.connections) > 1:  # noqa: ASYNC110
                await trio.sleep(0.01)
        nursery.start_soon(search, channel)
        go_on.set()
    assert times == [int(IN_2100)] * (SEARCHES_MAX + 1)

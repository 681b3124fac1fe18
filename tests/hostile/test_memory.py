"""Requests that would fill the broker's memory are refused or bounded."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest
import trio

from gantrymq.kernel.batch import AppendBatch
from gantrymq.plugins.interfaces import Statistics
from gantrymq.plugins.stats.items import PERIODS, Item
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.testing.harness import broker_and_channel
from gantrymq.testing.requests import send

LONG = "x" * 4_000_000


def lock(group: str = "G", client: str = "c", topic: str = "T", broker: str = "broker-a") -> Command:
    queue = {"topic": topic, "brokerName": broker, "queueId": 0}
    body = {"consumerGroup": group, "clientId": client, "mqSet": [queue]}
    return Command(RequestCode.LOCK_BATCH_MQ, body=json.dumps(body).encode())


@pytest.mark.trio
@pytest.mark.parametrize("code", [RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ])
async def test_locks_with_illegal_names_are_refused(tmp_path: Path, code: int) -> None:
    requests = [
        lock(group=LONG), lock(client=LONG), lock(topic=LONG), lock(broker=LONG), lock(group="a b"), lock(topic="a b"),
        lock(topic=""),
    ]  # fmt: skip
    async with broker_and_channel(tmp_path) as (_, channel):
        for request in requests:
            request.code = code
            answer = await channel.call(request)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert len(answer.remark or "") < 1000
        assert (await channel.call(lock(topic="%RETRY%G"))).body.startswith(b'{"lockOKMQSet":[{')


@pytest.mark.trio
async def test_statistics_with_illegal_keys_are_not_counted(tmp_path: Path) -> None:
    """A message sent back is counted under its property RETRY_TOPIC, in which its sender may write anything."""
    async with broker_and_channel(tmp_path) as (broker, channel):
        statistics = broker.registry.get(Statistics)
        statistics.add("SNDBCK_PUT_NUMS", "x" * 32_000 + "@G", 1)
        statistics.add("SNDBCK_PUT_NUMS", "T@G", 1)
        for key, code in (("x" * 32_000 + "@G", ResponseCode.SYSTEM_ERROR), ("T@G", ResponseCode.SUCCESS)):
            asked = Command(RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": "SNDBCK_PUT_NUMS", "statsKey": key})
            assert (await channel.call(asked)).code == code


def test_a_counter_takes_at_most_two_kibibytes_for_any_time() -> None:
    tracemalloc.start()
    try:
        items = [Item() for _ in range(200)]
        for now in range(30):
            for item in items:
                item.add(10**12, 10**9)
                for period in range(len(PERIODS)):
                    item.sample(1_800_000_000_000 + now * 10_000, period)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept / len(items) < 2048


@pytest.mark.trio
async def test_messages_that_are_sent_back_are_copied_a_few_at_a_time(tmp_path: Path) -> None:
    """A request of a hundred bytes stands for a message of megabytes."""
    body, count = bytes(1024 * 1024), 60
    async with broker_and_channel(tmp_path, store__commit_log_file_bytes="256 MiB") as (broker, channel):
        sent = await channel.call(send("T", body))
        offset = int((sent.ext or {})["msgId"][16:], 16)
        sizes: list[int] = []
        append = broker.append

        def counted(batch: AppendBatch) -> None:
            sizes.append(sum(map(len, batch.bodies)))
            append(batch)

        broker.append = counted  # type: ignore[method-assign]
        header = {"offset": str(offset), "group": "G", "delayLevel": "3", "originTopic": "T"}
        answers: list[int] = []

        async def give_back() -> None:
            answers.append((await channel.call(Command(RequestCode.CONSUMER_SEND_MSG_BACK, header), 60)).code)

        async with trio.open_nursery() as nursery:
            for _ in range(count):
                nursery.start_soon(give_back)
    assert answers == [ResponseCode.SUCCESS] * count
    assert sum(sizes) == count * len(body)
    assert max(sizes) <= 5 * 1024 * 1024


@pytest.mark.parametrize("code", [RequestCode.QUERY_MESSAGE, RequestCode.VIEW_MESSAGE_BY_ID])
def test_queries_with_large_responses_are_heavy_requests(code: int, tmp_path: Path) -> None:
    async def look() -> None:
        async with broker_and_channel(tmp_path) as (broker, _):
            assert code in broker.requests._heavy_codes

    trio.run(look)

"""A consumer gets the intact messages of responses with damaged ones, as RocketMQ's brokers send them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest

import gantrymq
from gantrymq.remoting.errors import FatalRemoteFault
from gantrymq.remoting.records import Record, decode_records, sort_damaged

pytestmark = pytest.mark.anyio

Cluster = Callable[..., Any]
INTACT = [b"body-0", b"body-1", b"body-3", b"body-4"]


def fill(broker: Any, damaged: int = 2) -> None:
    """Five messages, one of which is damaged."""
    for number in range(5):
        broker.store("T", 0, b"body-%d" % number)
    queue = broker.queues["T", 0]
    queue[damaged] = queue[damaged].replace(b"body-", b"bodY-")


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize("pull_batch", [1, 32])
async def test_a_consumer_skips_a_damaged_message_and_logs_it(
    fake_cluster: Cluster, caplog: pytest.LogCaptureFixture, pull_batch: int
) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        fill(cluster.broker)
        async with client.consumer("T", "g", start="first", pull_batch=pull_batch) as messages:
            got = []
            with anyio.fail_after(20):
                for _ in range(4):
                    message = await anext(messages)
                    got.append(message.body)
                    await message.ack()
        assert got == INTACT
        assert cluster.broker.offsets["g", "T", 0] == 5
    assert logged(caplog) == ["event='damaged_message_skipped' topic='T' queue=0 offset=2 broker='broker-a'"]


async def test_the_offset_passes_a_damaged_message_at_the_end(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        fill(cluster.broker, damaged=4)
        async with client.consumer("T", "g", start="first", ordered=True) as messages:
            with anyio.fail_after(20):
                for _ in range(4):
                    await (await anext(messages)).ack()
        assert cluster.broker.offsets["g", "T", 0] == 5


async def test_a_reader_skips_a_damaged_message_and_logs_it(
    fake_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        fill(cluster.broker)
        async with client.reader("T", start="first", until="end") as reader:
            with anyio.fail_after(20):
                assert [(message.body, message.broker_name) async for message in reader] == [
                    (body, "broker-a") for body in INTACT
                ]
    assert logged(caplog) == ["event='damaged_message_skipped' topic='T' queue=0 offset=2 broker='broker-a'"]


async def test_an_answer_that_is_no_row_of_records_is_an_error_still(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        fill(cluster.broker)
        cluster.broker.queues["T", 0][3] = b"\0\0\0\0" + cluster.broker.queues["T", 0][3][4:]
        async with client.reader("T", start="first") as reader:
            with pytest.raises(gantrymq.BadResponse, match="claims 0 bytes"):
                await reader.poll(timeout=20)


@pytest.fixture
def make_data(fake_cluster: Cluster) -> Any:
    async def make(damaged: int) -> bytes:
        async with fake_cluster(T=1) as cluster:
            fill(cluster.broker, damaged)
            return b"".join(cluster.broker.queues["T", 0])

    return make


@pytest.mark.parametrize("pure", [True, False])
@pytest.mark.parametrize("damaged", range(5))
async def test_damaged_records_are_separated_from_intact_ones(
    make_data: Any, monkeypatch: pytest.MonkeyPatch, damaged: int, pure: bool
) -> None:
    if pure:
        monkeypatch.setattr("gantrymq.remoting.records.cut_compiled", None)
    data = await make_data(damaged)
    delivery = object()
    intact, bad = sort_damaged(data, Record, "broker-a", delivery)
    assert [record.queue_offset for record in bad] == [damaged]
    assert [record.queue_offset for record in intact] == [number for number in range(5) if number != damaged]
    assert all(record.delivery is delivery and record.broker_name == "broker-a" for record in intact)
    with pytest.raises(FatalRemoteFault):
        decode_records(data)
    with pytest.raises(FatalRemoteFault):
        sort_damaged(data[:-1], Record, "broker-a", delivery)

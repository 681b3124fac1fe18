"""A broker counts messages by the offsets of its queues and reports them as RocketMQ does."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from gantrymq.kernel import hookimpl
from gantrymq.kernel.layouts import ENTRY
from gantrymq.kernel.metrics import Metrics
from gantrymq.kernel.store.queues.consume_queue import FILLER
from gantrymq.plugins.interfaces import Statistics
from gantrymq.plugins.stats.sizes import sizes_of
from gantrymq.plugins.stats.table import ENTRIES_AT_ONCE, measure
from gantrymq.remoting.bodies.stats import StatsData
from gantrymq.remoting.bodies.tables import KVTable
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.command import Command
from gantrymq.testing.harness import broker_and_channel, make_broker, run_broker
from gantrymq.testing.requests import pull, send
from support.unreadable import break_queue

pytestmark = pytest.mark.trio


class Bench:
    """A broker whose statistics take their samples when a test says so."""

    def __init__(self, broker: Any, channel: Channel) -> None:
        self.broker = broker
        self.channel = channel
        self.plugin = next(info.plugin for info in broker.manager.plugins if info.name == "stats")

    def sample(self) -> None:
        for _ in self.plugin._table.update():
            pass
        for number in range(3):
            self.plugin._table.sample(self.broker.env.wall_ms(), number, due=True)

    async def send(self, count: int, topic: str = "orders", queue_id: int = 0) -> int:
        """Sends messages; returns their size in the log."""
        before = self.broker.log.end
        for _ in range(count):
            assert (await self.channel.call(send(topic, b"x" * 10, queue_id=queue_id, queues=2))).code == 0
        return self.broker.log.end - before

    async def query(self, name: str, key: str) -> tuple[int, float] | str:
        answer = await self.channel.call(Command(315, {"statsName": name, "statsKey": key}))
        if answer.code:
            return answer.remark or ""
        minute = StatsData.from_bytes(answer.body).stats_minute
        return minute.sum, minute.avgpt


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with broker_and_channel(tmp_path) as (broker, channel):
        yield Bench(broker, channel)


async def test_puts_by_topic_queue_and_broker(bench: Bench) -> None:
    size = await bench.send(3) + await bench.send(2, queue_id=1)
    bench.sample()
    assert await bench.query("TOPIC_PUT_NUMS", "orders") == (5, 1.0)
    assert await bench.query("TOPIC_PUT_SIZE", "orders") == (size, size / 5)
    assert await bench.query("QUEUE_PUT_NUMS", "orders@1") == (2, 1.0)
    assert await bench.query("BROKER_PUT_NUMS", "DefaultCluster") == (5, 1.0)
    bench.sample()
    assert await bench.query("TOPIC_PUT_NUMS", "orders") == (5, 1.0)


async def test_pull_latencies_include_the_wait_for_the_disk(bench: Bench) -> None:
    await bench.send(2)
    for offset in (0, 1):
        await bench.channel.call(pull("orders", 0, offset, limit=1))
    bench.broker.registry.get(Statistics).waited("consumers", "orders", 0, 0.5)
    bench.sample()
    assert await bench.query("GROUP_GET_LATENCY", "0@orders@consumers") == (500, 250.0)


async def test_new_messages_are_counted_without_waiting_for_the_next_sample(bench: Bench) -> None:
    await bench.send(1)
    assert await bench.query("TOPIC_PUT_NUMS", "orders") == (0, 0.0), "known, but no snapshot was taken yet"
    assert await bench.query("TOPIC_PUT_NUMS", "others") == "The stats <TOPIC_PUT_NUMS> <others> not exist"


async def test_pulls_by_group_queue_and_broker(bench: Bench) -> None:
    size = await bench.send(5)
    for offset, limit in ((0, 3), (3, 32), (5, 32)):
        await bench.channel.call(pull("orders", 0, offset, limit=limit))
    bench.sample()
    assert await bench.query("GROUP_GET_NUMS", "orders@consumers") == (5, 2.5)
    assert await bench.query("GROUP_GET_SIZE", "orders@consumers") == (size, size / 2)
    assert await bench.query("QUEUE_GET_NUMS", "orders@0@consumers") == (5, 2.5)
    assert await bench.query("BROKER_GET_NUMS", "DefaultCluster") == (5, 2.5)
    table = KVTable.from_bytes((await bench.channel.call(Command(28))).body).table
    assert (table["msgGetTotalTodayNow"], table["putMessageSizeTotal"]) == ("5", str(size))
    assert bench.plugin._table.pulls_missed == 1
    assert bench.broker.registry.get(Statistics).consume_tps("consumers", "orders") > 0


async def test_pulls_through_a_filter_count_what_it_lets_through(bench: Bench) -> None:
    for tag in ("red", "blue", "red"):
        await bench.channel.call(send("orders", b"x", properties=f"TAGS\x01{tag}"))
    await bench.channel.call(pull("orders", 0, 0, expression="red"))
    bench.sample()
    assert await bench.query("GROUP_GET_NUMS", "orders@consumers") == (2, 2.0)


@pytest.mark.parametrize(
    ("name", "key"), [("TOPIC_PUT_NUMS", "nothing"), ("NO_SUCH", "orders"), ("GROUP_GET_LATENCY", "orders@g")]
)
async def test_an_unknown_statistic_is_reported(bench: Bench, name: str, key: str) -> None:
    assert await bench.query(name, key) == f"The stats <{name}> <{key}> not exist"


async def test_a_request_without_its_fields_is_refused(bench: Bench) -> None:
    assert (await bench.channel.call(Command(315, {"statsName": "TOPIC_PUT_NUMS"}))).code == 1


async def test_other_plugins_count_only_known_statistics(bench: Bench) -> None:
    statistics = bench.broker.registry.get(Statistics)
    statistics.add("SNDBCK_PUT_NUMS", "orders@consumers", 3, 2)
    bench.sample()
    assert await bench.query("SNDBCK_PUT_NUMS", "orders@consumers") == (3, 1.5)
    with pytest.raises(ValueError, match="no statistic 'TYPO'"):
        statistics.add("TYPO", "orders", 1)


async def test_messages_stored_before_the_start_are_not_counted(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (broker, channel):
        await Bench(broker, channel).send(4)
    async with broker_and_channel(tmp_path) as (broker, channel):
        again = Bench(broker, channel)
        await again.send(1)
        again.sample()
        assert await again.query("TOPIC_PUT_NUMS", "orders") == (1, 1.0)
        table = KVTable.from_bytes((await channel.call(Command(28))).body).table
        assert table["msgPutTotalTodayNow"] == "1"


class SlowStart:
    """Metrics are read before the broker listens: at that time a slave settles with its master."""

    name = "slow_start"

    def __init__(self) -> None:
        self.puts_seen = -1

    @hookimpl
    def configure(self, broker: Any) -> None:
        async def read_metrics() -> None:
            broker.manager.call_each("collect_metrics", broker=broker, metrics=Metrics(100))
            self.puts_seen = broker.registry.get(Statistics).messages_put

        broker.before_listening.append(read_metrics)


async def test_messages_stored_before_a_slow_start_are_not_counted(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (broker, channel):
        await Bench(broker, channel).send(4)
    slow_start = SlowStart()
    async with (
        run_broker(make_broker(tmp_path, enable=[slow_start])) as broker,
        open_channel(broker.address) as channel,
    ):
        again = Bench(broker, channel)
        await again.send(1)
        again.sample()
        assert slow_start.puts_seen == 0
        assert await again.query("TOPIC_PUT_NUMS", "orders") == (1, 1.0)
        assert broker.registry.get(Statistics).messages_put == 1


async def test_messages_of_a_queue_that_cannot_be_read_are_not_counted_and_all_others_are(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.send(3)
    await bench.send(2, queue_id=1)
    await bench.send(4, topic="returns")
    with monkeypatch.context() as scarce, capture_logs() as logs:
        break_queue(scarce, "orders")
        bench.sample()
    await bench.send(1)
    bench.sample()
    assert await bench.query("TOPIC_PUT_NUMS", "orders") == (3, 1.0)
    assert await bench.query("TOPIC_PUT_NUMS", "returns") == (4, 1.0)
    (warning,) = [line for line in logs if line["event"] == "messages_not_counted"]
    assert (warning["topic"], warning["queue_id"], warning["messages"]) == ("orders", 0, 3)
    assert "Too many open files" in warning["reason"]


async def test_a_topic_that_is_deleted_while_it_is_counted_is_not_reported_as_unreadable(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.send(3)
    with monkeypatch.context() as scarce, capture_logs() as logs:
        break_queue(scarce, "orders")
        steps = bench.plugin._table._count_puts(bench.broker.queues.get("orders", 0), 0, 3)
        bench.broker.store.delete_topic("orders", bench.broker.log.end)
        assert list(steps) == []
    assert logs == []


async def test_a_deleted_topic_takes_nothing_back(bench: Bench) -> None:
    await bench.send(3)
    bench.sample()
    assert (await bench.channel.call(Command(215, {"topic": "orders"}))).code == 0
    bench.sample()
    table = KVTable.from_bytes((await bench.channel.call(Command(28))).body).table
    assert table["msgPutTotalTodayNow"] == "3"


async def test_the_number_of_counters_is_limited(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path, plugin__stats__max_items="100") as (broker, _):
        statistics = broker.registry.get(Statistics)
        for number in range(200):
            statistics.add("TOPIC_PUT_NUMS", f"t{number}", 1)
            statistics.pulled("g", "t", number, 1, 1)
        table: Any = statistics
        assert sum(map(len, table._items.values())) == 100
        assert len(table._pulled) == 100


async def test_a_pull_of_unknown_end_leaves_the_offset_that_is_known(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (broker, _):
        statistics = broker.registry.get(Statistics)
        statistics.pulled("g", "t", 0, 1, 100, 5)
        statistics.pulled("g", "t", 0, 1, 100)
        assert statistics.pulled_to("g", "t", 0) == 5


async def test_refused_messages_are_failures(bench: Bench) -> None:
    await bench.channel.call(send("orders", b"x", queue_id=99))
    await bench.channel.call(send("orders", b"x" * 5_000_000))
    await bench.send(2)
    table = KVTable.from_bytes((await bench.channel.call(Command(28))).body).table
    assert table["putMessageTimesTotal"] == "2"
    assert sum(bench.plugin._measuring.latency._counts) == 2


async def test_the_clock_brings_samples(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    autojump_clock.autojump_threshold = math.inf  # the kernel may need a moment for the connection
    async with broker_and_channel(tmp_path) as (broker, _):
        autojump_clock.autojump_threshold = 0
        statistics = broker.registry.get(Statistics)
        statistics.add("SNDBCK_PUT_NUMS", "t@g", 5)
        table: Any = statistics
        item = table.find("SNDBCK_PUT_NUMS", "t@g")
        with trio.fail_after(60):
            while item.data().stats_minute.sum == 0:  # noqa: ASYNC110 - nothing else tells of a sample
                await trio.sleep(1)
        assert 9 <= trio.current_time() <= 30


@pytest.mark.parametrize("count", [0, 1, 7, ENTRIES_AT_ONCE])
async def test_entries_are_measured_in_bulk(count: int) -> None:
    entries = b"".join(ENTRY.pack(1 << 40, 100 + number, -number) for number in range(count))
    expected = sum(100 + number for number in range(count))
    assert measure(sizes_of(entries)) == (count, expected)
    assert measure(sizes_of(entries + FILLER * 3)) == (count, expected)

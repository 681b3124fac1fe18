from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from gantrymq.spark.errors import DataLoss, UnknownTopic, Unreachable, WrongOption
from gantrymq.spark.options import read_options
from gantrymq.spark.ranges import QueueRange, plan_ranges, settle_ranges, split_ranges
from gantrymq.spark.security import Security
from gantrymq.spark.wire import Queue, Wire

if TYPE_CHECKING:
    from conftest import FakeCluster


@pytest.fixture
def orders(cluster: FakeCluster) -> FakeCluster:
    """Queue 0 holds 10..29 (its beginning is gone), queue 1 holds 0..4, queue 2 is empty."""
    cluster.add_topic("orders", queues=3)
    cluster.queues["orders", 0].min_offset, cluster.queues["orders", 0].max_offset = 10, 30
    cluster.queues["orders", 1].max_offset = 5
    return cluster


def plan(cluster: FakeCluster, wire: Wire, **options: str) -> list[tuple[int, int, int]]:
    ranges = plan_ranges(read_options({"nameserver": cluster.address, "topic": "orders"} | options), wire)
    return [(item.queue.queue_id, item.start, item.end) for item in ranges]


def test_all_messages_are_read_by_default(orders: FakeCluster, wire: Wire) -> None:
    assert plan(orders, wire) == [(0, 10, 30), (1, 0, 5)]


def plan_by_name(cluster: FakeCluster, wire: Wire, **options: str) -> list[tuple[str, int, int, int]]:
    ranges = plan_ranges(read_options({"nameserver": cluster.address} | options), wire)
    return [(item.queue.topic, item.queue.queue_id, item.start, item.end) for item in ranges]


def test_a_pattern_reads_the_topics_whose_whole_names_match(orders: FakeCluster, wire: Wire) -> None:
    for topic in ("orders-eu", "old-orders", "%RETRY%orders", "%DLQ%orders", "RMQ_SYS_TRACE_TOPIC"):
        orders.add_topic(topic)
        orders.queues[topic, 0].max_offset = 2
    found = [("orders", 0, 10, 30), ("orders", 1, 0, 5), ("orders-eu", 0, 0, 2)]
    assert plan_by_name(orders, wire, topicPattern="orders.*") == found
    assert plan_by_name(orders, wire, topicPattern=".*") == [("old-orders", 0, 0, 2), *found]
    first = '{"orders": {"broker-a": {"0": 25}}}'
    assert plan_by_name(orders, wire, topicPattern="orders", startingOffsets=first)[0] == ("orders", 0, 25, 30)
    with pytest.raises(UnknownTopic, match="no topic with a readable queue matches 'refunds'"):
        plan_by_name(orders, wire, topicPattern="refunds")


def test_a_pattern_matches_no_topic_that_a_cluster_or_broker_has_for_itself(orders: FakeCluster, wire: Wire) -> None:
    """The route of the fake names the cluster "c"."""
    for topic in ("c", "broker-a", "c_REPLY_TOPIC", "c-orders", "broker-ab", "d_REPLY_TOPIC"):
        orders.add_topic(topic)
        orders.queues[topic, 0].max_offset = 2
    found = {topic for topic, *_ in plan_by_name(orders, wire, topicPattern=".*")}
    assert found == {"orders", "c-orders", "broker-ab", "d_REPLY_TOPIC"}
    assert plan_by_name(orders, wire, topic="c") == [("c", 0, 0, 2)], "by its name it can be read"
    orders.add_topic("shop%broker-a")
    orders.queues["shop%broker-a", 0].max_offset = 2
    with Wire(timeout=5.0, security=Security(namespace="shop")) as inside:
        found = {topic for topic, *_ in plan_by_name(orders, inside, topicPattern=".*", namespace="shop")}
    assert found == {"broker-a"}, "a topic in a namespace is none of them"


def test_a_pattern_selects_within_the_namespace(orders: FakeCluster) -> None:
    orders.add_topic("shop%orders")
    orders.queues["shop%orders", 0].max_offset = 2
    with Wire(timeout=5.0, security=Security(namespace="shop")) as wire:
        assert plan_by_name(orders, wire, topicPattern=".*") == [("orders", 0, 0, 2)]


def test_only_assigned_queues_are_read(orders: FakeCluster, wire: Wire) -> None:
    assert plan_by_name(orders, wire, assign='{"orders": {"broker-a": [1, 2]}}') == [("orders", 1, 0, 5)]
    with pytest.raises(WrongOption, match="assign: orders has no queue 7 on 'broker-a'"):
        plan_by_name(orders, wire, assign='{"orders": {"broker-a": [7]}}')


def test_a_task_has_at_most_the_bytes_of_the_option(cluster: FakeCluster, wire: Wire) -> None:
    cluster.add_topic("orders")
    cluster.pull_rows = 32
    sizes = {len(cluster.queues["orders", 0].records[cluster.put("orders", 0, b"x" * 900)]) for _ in range(100)}
    (size,) = sizes
    assert plan(cluster, wire, maxBytesPerPartition=str(25 * size)) == [
        (0, 0, 25), (0, 25, 50), (0, 50, 75), (0, 75, 100),
    ]  # fmt: skip
    assert plan(cluster, wire, maxBytesPerPartition=str(100 * size)) == [(0, 0, 100)]
    assert len(plan(cluster, wire, maxBytesPerPartition="1")) == 100
    for _ in range(100):
        cluster.put("orders", 0, b"x" * 9000)
    parts = plan(cluster, wire, maxBytesPerPartition=str(100_000))
    records = cluster.queues["orders", 0].records
    assert all(sum(len(records[offset]) for offset in range(first, end)) <= 100_000 for _, first, end in parts)


def test_a_range_is_divided_the_same_way_however_many_messages_a_pull_returns(cluster: FakeCluster, wire: Wire) -> None:
    """RocketMQ returns up to 32 messages from memory, and 8 from disk. Keys that ``dedupKeys`` derives depend on the
    parts."""
    cluster.add_topic("orders")
    for number in range(400):
        cluster.put("orders", 0, b"x" * (4000 if number % 200 < 8 else 100))
    bounds = {"maxBytesPerPartition": "60000", "endingOffsets": '{"orders": {"broker-a": {"0": 210}}}'}
    cluster.pull_rows = 32
    parts = plan(cluster, wire, **bounds)
    assert len(parts) > 1
    for cluster.pull_rows in (8, 1):
        assert plan(cluster, wire, **bounds) == parts
    short = bounds | {"startingOffsets": '{"orders": {"broker-a": {"0": 170}}}'}
    parts = plan(cluster, wire, **short)
    for offset in range(210, 400):
        del cluster.queues["orders", 0].records[offset]
    cluster.queues["orders", 0].max_offset = 210
    assert plan(cluster, wire, **short) == parts, "what came after the range does not count"


def test_an_empty_queue_has_an_empty_range(orders: FakeCluster, wire: Wire) -> None:
    options = read_options({"nameserver": orders.address, "topic": "orders"})
    assert [item.rows for item in settle_ranges(options, wire)] == [20, 5, 0]


def test_offsets_of_given_queues_apply_and_others_are_read_completely(orders: FakeCluster, wire: Wire) -> None:
    ranges = plan(
        orders,
        wire,
        startingOffsets='{"orders": {"broker-a": {"0": 12, "1": -2}}}',
        endingOffsets='{"orders": {"broker-a": {"0": 20, "1": -1}}}',
    )
    assert ranges == [(0, 12, 20), (1, 0, 5)]


def test_a_range_that_ends_where_it_starts_is_not_read(orders: FakeCluster, wire: Wire) -> None:
    offsets = '{"orders": {"broker-a": {"0": 12}}}'
    assert plan(orders, wire, startingOffsets=offsets, endingOffsets=offsets) == [(1, 0, 5)]


def test_a_start_below_the_first_message_is_data_loss_that_names_all(orders: FakeCluster, wire: Wire) -> None:
    with pytest.raises(DataLoss) as caught:
        plan(orders, wire, startingOffsets='{"orders": {"broker-a": {"0": 3}}}')
    assert "orders broker-a queue 0: offset 3 is wanted, but messages from there on are gone" in str(caught.value)
    assert "(7 of them; the queue's min offset is 10)" in str(caught.value)


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_start_below_the_beginning_of_a_slave_is_no_data_loss(orders: FakeCluster, wire: Wire, fail: str) -> None:
    """The master may have the messages."""
    orders.broker_ids = (1,)
    with pytest.raises(Unreachable, match="a slave, has orders broker-a queue 0 from offset 10 on only"):
        plan(orders, wire, startingOffsets='{"orders": {"broker-a": {"0": 3}}}', failOnDataLoss=fail)


@pytest.mark.parametrize(("end", "lost", "expected"), [("30", 7, [(0, 10, 30), (1, 0, 5)]), ("8", 5, [(1, 0, 5)])])
def test_lost_messages_are_counted_if_data_loss_is_allowed(
    orders: FakeCluster, wire: Wire, end: str, lost: int, expected: list[tuple[int, int, int]]
) -> None:
    with capture_logs() as logs:
        ranges = plan(
            orders,
            wire,
            startingOffsets='{"orders": {"broker-a": {"0": 3}}}',
            endingOffsets=f'{{"orders": {{"broker-a": {{"0": {end}}}}}}}',
            failOnDataLoss="false",
        )
    assert ranges == expected
    assert [(entry["wanted"], entry["min_offset"], entry["lost"]) for entry in logs] == [(3, 10, lost)]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"startingOffsets": '{"orders": {"broker-a": {"0": 31}}}'}, "ends at offset 30, 31 lies behind"),
        ({"endingOffsets": '{"orders": {"broker-a": {"1": 6}}}'}, "ends at offset 5, 6 lies behind"),
        ({"startingOffsets": '{"orders": {"broker-b": {"0": 1}}}'}, "no queue 0 on 'broker-b'; its brokers: broker-a"),
        ({"endingOffsets": '{"orders": {"broker-a": {"3": 1}}}'}, "no queue 3 on 'broker-a'"),
        (
            {
                "startingOffsets": '{"orders": {"broker-a": {"0": 20}}}',
                "endingOffsets": '{"orders": {"broker-a": {"0": 15}}}',
            },
            r"startingOffsets \(20\) lies behind endingOffsets \(15\)",
        ),
    ],
)
def test_missing_topics_and_queues_are_named(
    orders: FakeCluster, wire: Wire, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(WrongOption, match=says):
        plan(orders, wire, **options)


def test_large_ranges_are_split_in_proportion(orders: FakeCluster, wire: Wire) -> None:
    assert plan(orders, wire, minPartitions="5") == [(0, 10, 15), (0, 15, 20), (0, 20, 25), (0, 25, 30), (1, 0, 5)]


@given(
    st.lists(st.integers(1, 2000), max_size=8).map(
        lambda sizes: [QueueRange(Queue("t", "b", number, "a:1"), 7, 7 + size) for number, size in enumerate(sizes)]
    ),
    st.integers(1, 100),
)
def test_splitting_loses_and_repeats_nothing(ranges: list[QueueRange], at_least: int) -> None:
    pieces = split_ranges(ranges, at_least)
    for whole in ranges:
        own = [piece for piece in pieces if piece.queue == whole.queue]
        assert own[0].start == whole.start
        assert own[-1].end == whole.end
        assert all(left.end == right.start for left, right in pairwise(own))
        assert all(piece.rows > 0 for piece in own)
    assert len(pieces) <= max(len(ranges), at_least + len(ranges))


def test_a_range_has_at_most_the_given_number_of_messages(orders: FakeCluster, wire: Wire) -> None:
    whole = plan(orders, wire)
    parts = plan(orders, wire, maxRecordsPerPartition="3")
    assert {end - start for _, start, end in parts} <= {1, 2, 3}
    assert len(parts) == sum(-(-(end - start) // 3) for _, start, end in whole)
    for number, start, end in whole:
        own = [part for part in parts if part[0] == number]
        assert own[0][1] == start
        assert own[-1][2] == end
        assert all(before[2] == after[1] for before, after in pairwise(own))

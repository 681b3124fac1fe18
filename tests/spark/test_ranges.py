from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from gantrymq.spark.errors import DataLoss, WrongOption
from gantrymq.spark.options import read_options
from gantrymq.spark.ranges import QueueRange, plan_ranges, settle_ranges, split_ranges
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

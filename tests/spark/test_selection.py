from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.remoting.codes import RequestCode
from gantrymq.spark.errors import Refused
from gantrymq.spark.options import read_options
from gantrymq.spark.ranges import QueueRange
from gantrymq.spark.selection import TAGS_MAX, Selection
from gantrymq.spark.wire import Pulled, Queue, Wire

if TYPE_CHECKING:
    from conftest import FakeCluster

QUEUE = Queue("orders", "broker-a", 3, "127.0.0.1:10911")
WHOLE = QueueRange(QUEUE, 10, 30)


def test_a_selection_without_conditions_keeps_all_ranges() -> None:
    assert Selection().cut(WHOLE) == WHOLE


@given(
    st.lists(st.tuples(st.sampled_from(["least", "most", "in"]), st.lists(st.integers(0, 40), min_size=1, max_size=3)))
)
def test_no_matching_offset_is_dropped(conditions: list[tuple[str, list[int]]]) -> None:
    selection = Selection()
    left = set(range(10, 30))
    for kind, values in conditions:
        if kind == "least":
            selection.at_least("queueOffset", values[0])
            left = {offset for offset in left if offset >= values[0]}
        elif kind == "most":
            selection.at_most("queueOffset", values[0])
            left = {offset for offset in left if offset <= values[0]}
        else:
            selection.one_of("queueOffset", values)
            left &= set(values)
    cut = selection.cut(WHOLE)
    assert left <= set(range(cut.start, cut.end))
    assert 10 <= cut.start <= cut.end <= 30
    if left:
        assert (cut.start, cut.end) == (min(left), max(left) + 1) or any(kind == "in" for kind, _ in conditions)


@pytest.mark.parametrize(
    ("column", "values", "rows"),
    [
        ("topic", ["orders"], 20),
        ("topic", ["refunds", "orders"], 20),
        ("topic", ["refunds"], 0),
        ("topic", [None], 0),
        ("broker", ["broker-b"], 0),
        ("queueId", [3], 20),
        ("queueId", [1, 2], 0),
        ("queueId", [], 0),
        ("tags", ["a"], 20),
    ],
)
def test_queues_are_selected_by_their_columns(column: str, values: list[object], rows: int) -> None:
    selection = Selection()
    selection.one_of(column, values)
    assert selection.cut(WHOLE).rows == rows


def test_names_are_intersected() -> None:
    selection = Selection()
    selection.one_of("topic", ["orders", "refunds"])
    selection.one_of("topic", ["refunds"])
    assert selection.cut(WHOLE).rows == 0


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class QueueOfTimes(Wire):
    """A queue whose messages were stored at ``times``; its search by time answers ``hint``."""

    def __init__(self, make_record: Callable[..., bytes], times: list[int], hint: int) -> None:
        super().__init__()
        self._times, self._hint, self._make_record = times, hint, make_record

    def search_offset(self, queue: Queue, millis: int) -> int:
        return self._hint

    def pull(self, queue: Queue, offset: int, *args: object, **options: object) -> Pulled:
        record = self._make_record("orders", 3, offset, b"x", store_timestamp=self._times[offset])
        return Pulled(0, offset + 1, 0, len(self._times), record)


@given(
    steps=st.lists(st.sampled_from([-3, -2, 2, 3]), min_size=6, max_size=12),
    hint=st.integers(0, 13),
    low=st.integers(100, 112),
    high=st.integers(98, 112),
    tolerance=st.integers(3, 5),
    micros=st.sampled_from([0, 999]),
)
def test_no_matching_time_is_dropped_while_clocks_are_set_back_within_the_tolerance(
    make_record: Callable[..., bytes],
    steps: list[int],
    hint: int,
    low: int,
    high: int,
    tolerance: int,
    micros: int,
) -> None:
    times = [100]
    for step in steps:
        times.append(max(times[-1] + step, max(times) - 3))
    selection = Selection()
    selection.at_least("storeTimestamp", EPOCH + timedelta(milliseconds=low, microseconds=micros))
    selection.at_most("storeTimestamp", EPOCH + timedelta(milliseconds=high, microseconds=micros))
    matching = {
        number for number, time in enumerate(times) if low * 1000 + micros <= time * 1000 <= high * 1000 + micros
    }
    wire = QueueOfTimes(make_record, times, hint)
    cut = selection.cut_by_time(QueueRange(QUEUE, 0, len(times)), wire, tolerance / 1000)
    assert matching <= set(range(cut.start, cut.end))
    if cut.rows:
        assert times[cut.start] >= low - tolerance
        assert times[cut.end - 1] <= high + tolerance


def test_a_range_stays_whole_without_a_tolerance_and_if_the_broker_refuses_to_search() -> None:
    selection = Selection()
    selection.one_of("storeTimestamp", [EPOCH])

    class Refusing(Wire):
        def search_offset(self, queue: Queue, millis: int) -> int:
            raise Refused(queue.address, "a search", 16, "no permission")

    assert selection.cut_by_time(WHOLE, Refusing(), 1.0) == WHOLE
    assert selection.cut_by_time(WHOLE, Refusing(), None) == WHOLE


@pytest.mark.parametrize(
    ("conditions", "expression"),
    [
        ([["b", "a"]], "a || b"),
        ([["b", "a"], ["b", "c"]], "b"),
        ([["a"], ["b"]], None),
        ([["a", None]], None),
        ([["*"]], None),
        ([[""]], None),
        ([["a||b"]], None),
        ([[" a"]], None),
        ([[f"t{number}" for number in range(TAGS_MAX + 1)]], None),
        ([], None),
    ],
)
def test_the_broker_filters_by_tags_that_an_expression_can_name(
    conditions: list[list[str | None]], expression: str | None
) -> None:
    selection = Selection()
    for tags in conditions:
        selection.one_of("tags", tags)
    subscription = selection.subscription
    assert (None if subscription is None else subscription.sub_string) == expression


def test_a_where_clause_on_tags_is_not_sent_for_a_system_topic(cluster: FakeCluster) -> None:
    """The index of delayed messages has their delivery times where a broker compares the hashes of tags."""
    pytest.importorskip("pyspark", reason="pip install 'gantrymq[spark]'")
    from pyspark.sql.datasource import EqualTo, InputPartition

    from gantrymq.spark.source import GantryReader

    for topic in ("SCHEDULE_TOPIC_XXXX", "orders"):
        cluster.add_topic(topic)
        cluster.put(topic, 0, b"x", properties={"TAGS": "t"})
    reader = GantryReader(read_options({"nameserver": cluster.address, "topic": "orders"}), ["body"])
    reader.pushFilters([EqualTo(("tags",), "t")])
    for topic, sent in (("SCHEDULE_TOPIC_XXXX", "*"), ("orders", "t")):
        cluster.requests.clear()
        (batch,) = reader.read(InputPartition(QueueRange(Queue(topic, "broker-a", 0, cluster.address), 0, 1)))
        assert batch.to_pylist() == [{"body": b"x"}]
        pulls = [request for request in cluster.requests if request.code == RequestCode.PULL_MESSAGE]
        assert {request.ext["subscription"] for request in pulls} == {sent}

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.spark.ranges import QueueRange
from gantrymq.spark.selection import Selection
from gantrymq.spark.wire import Queue

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

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gantrymq.spark.sharing import share


@given(st.dictionaries(st.integers(), st.integers(1, 10**9), max_size=40), st.integers(1, 10**9))
def test_no_share_exceeds_its_request_or_the_limit_and_nothing_is_left_over(wanted: dict[int, int], limit: int) -> None:
    given = share(wanted, limit)
    assert sum(given.values()) == min(limit, sum(wanted.values()))
    assert all(0 < count <= wanted[key] for key, count in given.items())
    if limit >= len(wanted):
        assert given.keys() == wanted.keys(), "no queue starves"


def test_shares_are_in_proportion() -> None:
    assert share({"a": 1000, "b": 3000, "c": 1}, 401) == {"a": 100, "b": 300, "c": 1}
    assert share({"a": 5, "b": 7, "c": 6}, 2) == {"b": 1, "c": 1}

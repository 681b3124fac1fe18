from __future__ import annotations

from typing import Any

import pytest

from gantrymq.spark import lag


def source(latest: Any, end: Any) -> dict[str, Any]:
    return {"description": "a Python source", "startOffset": None, "latestOffset": latest, "endOffset": end}


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        ([], None),
        ([source({"t": {"b": {"0": 9, "1": 4}}}, {"t": {"b": {"0": 7}}})], 6),
        ([source('{"t": {"b": {"0": 9}}}', '{"t": {"b": {"0": 9}}}')], 0),
        ([source({"t": {"b": {"0": 5}}}, {"t": {"b": {"0": 9}}})], 0),
        ([source({"t": {"0": 9}}, {"t": {"0": 7}}), source({"t": {"b": {"0": 9}}}, {"t": {"b": {"0": 7}}})], 2),
        ([source("LogOffset(3)", "3"), source(None, None)], None),
        ([source(None, {"t": {"b": {"0": 7}}})], None),
    ],
)
def test_the_lag_is_that_of_the_sources_of_this_format(sources: list[Any], expected: int | None) -> None:
    assert lag({"sources": sources}) == expected


def test_a_query_without_progress_has_no_lag() -> None:
    assert lag(None) is None

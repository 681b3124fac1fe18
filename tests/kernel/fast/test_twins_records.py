"""The compiled twin of the store's inner loops has the same results as the plain one for any input."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from gantrymq.kernel.batch import AppendBatch, Source
from gantrymq.kernel.fast import Layout, plain

pytestmark = pytest.mark.once  # it runs both twins

compiled = pytest.importorskip("gantrymq.kernel.fast._records", reason="the extension is not built")

HOSTS = [b"\x7f\0\0\x01\0\0\x2a\x9f", bytes(range(20))]


def outcome(call: Any) -> Any:
    """The result of a call, or the type and text of its exception."""
    try:
        return call()
    except Exception as error:
        return type(error), str(error)


def mostly(usual: st.SearchStrategy[Any], odd: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """``usual`` nine times out of ten."""
    return st.integers(0, 9).flatmap(lambda number: odd if number == 9 else usual)


INT32 = mostly(st.integers(-(2**31), 2**31 - 1), st.sampled_from([2**31, -(2**31) - 1, 2**63, True]))
INT64 = mostly(st.integers(-(2**63), 2**63 - 1), st.sampled_from([2**63, -(2**63) - 1, 2**70]))
SYS_FLAG = mostly(st.sampled_from([0, 1, 2, 3, 4, 8, 12, 0x10, 0x20, 0x30]), st.sampled_from([2**31, -1]))
TOPIC = mostly(
    st.sampled_from(["T", "orders", "%RETRY%g"]), st.sampled_from(["", "a b", "é", "x" * 127, "x" * 128, "\ud800"])
)
PROPERTIES = mostly(
    st.sampled_from(
        [b"", b"TAGS\x01a", b"KEYS\x01k\x02TAGS\x01b\x02", b"TAGS\x01" + "é€".encode(), b"XTAGS\x01q\x02TAGS\x01"]
    ),
    st.sampled_from([b"a\0b", bytes([1]) * 32767, bytes([1]) * 32768]),
)
ROW = st.tuples(
    TOPIC, INT32, st.binary(max_size=40), PROPERTIES, INT32, SYS_FLAG, INT64,
    mostly(st.just(HOSTS[0]), st.just(HOSTS[1])), INT32, INT64,
)  # fmt: skip


def batch_of(rows: list[Any], refused: set[int]) -> AppendBatch:
    batch = AppendBatch()
    for topic, queue_id, body, properties, flag, sys_flag, born, host, times, prepared in rows:
        batch.add(
            topic, queue_id, body, properties, flag=flag, sys_flag=sys_flag, born_timestamp=born, born_host=host,
            reconsume_times=times, prepared_offset=prepared,
        )  # fmt: skip
    for row in refused:
        if row < len(rows):
            batch.refuse(row, 13, "no")
    count = len(rows)
    batch.offsets, batch.sizes, batch.queue_offsets = [-1] * count, [0] * count, [-1] * count
    batch.store_timestamp = 1_700_000_000_000
    batch.own_queue_offsets = {row: 1000 + row for row in range(0, count, 2)}
    return batch


@given(
    st.lists(ROW, max_size=12),
    st.sets(st.integers(0, 11), max_size=2),
    st.sampled_from(HOSTS),
    st.integers(0, 2**40),
    st.integers(0, 3000),
    st.integers(10, 2000),
    st.integers(0, 40),
    st.sampled_from([Source.CLIENT, Source.DELAY]),
)
def test_both_twins_encode_the_same_rows(
    rows: list[Any],
    refused: set[int],
    store_host: bytes,
    offset: int,
    room: int,
    record_max: int,
    body_max: int,
    source: str,
) -> None:
    results = []
    for twin in (plain, compiled):
        batch = batch_of(rows, refused)
        batch.source = source
        table = {("T", 1): 5}
        parts, index, end = twin.encode_rows(
            batch, batch.live, 0, offset, room, table, Layout(store_host, body_max, record_max)
        )
        results.append((b"".join(parts), index, end, table, batch))
        if 0 < index < len(batch.live):
            more = twin.encode_rows(batch, batch.live, index, 0, 10**6, table, Layout(store_host, body_max, record_max))
            results[-1] = (*results[-1], b"".join(more[0]), more[1:], dict(table))
    assert results[0] == results[1]


@given(st.lists(mostly(PROPERTIES, st.binary(max_size=30)), max_size=5))
def test_tag_codes(properties: list[bytes]) -> None:
    assert compiled.tag_codes(properties) == plain.tag_codes(properties)

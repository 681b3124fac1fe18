"""Both twins write the same index entries for any input, in RocketMQ's format."""

from __future__ import annotations

import copy
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from gantrymq.kernel.batch import DispatchBatch
from gantrymq.kernel.fast import scan
from gantrymq.kernel.store.log.record import Record, encode
from gantrymq.plugins.index import plain
from gantrymq.plugins.index.layout import ENTRY, Header
from gantrymq.remoting.properties import java_hash

pytestmark = pytest.mark.once  # it runs both twins

try:
    from gantrymq.plugins.index import _build as compiled
except ImportError:
    compiled = None  # type: ignore[assignment]

TWINS = [plain] if compiled is None else [plain, compiled]


def batch_of(rows: list[tuple[str, bytes, int, int]]) -> DispatchBatch:
    """Rows of topic, properties, store timestamp and sys flag; each record is 100 bytes."""
    offsets = [100 * row for row in range(len(rows))]
    topics, properties, timestamps, flags = ([row[column] for row in rows] for column in range(4))
    numbers = [0] * len(rows)
    return DispatchBatch(
        0, 100 * len(rows), offsets, [100] * len(rows), topics, numbers, offsets, timestamps, flags, numbers,
        properties, numbers,
    )  # fmt: skip


def put(twin: Any, batch: DispatchBatch, slots: int = 7, entries: int = 100, **header: int) -> tuple[Any, ...]:
    table, state = bytearray(4 * slots), Header(**header)
    data, row, key = twin.put_rows(batch, 0, 0, table, state, entries)
    return list(ENTRY.iter_unpack(data)), row, key, bytes(table), state


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.KIND)
def test_the_unique_id_comes_before_the_keys_and_chains_lead_back(twin: Any) -> None:
    batch = batch_of([("T", b"KEYS\x01a  b \x02UNIQ_KEY\x01u", 5000, 0), ("T", b"UNIQ_KEY\x01u\x02", 8999, 0)])
    entries, row, key, table, header = put(twin, batch, slots=1)
    hashes = [abs(java_hash(f"T#{key}")) for key in ("u", "a", "b", "u")]
    assert entries == [
        (hashes[0], 0, 0, 0),
        (hashes[1], 0, 0, 1),
        (hashes[2], 0, 0, 2),
        (hashes[3], 100, 3, 3),
    ]
    assert (row, key) == (2, 0)
    assert table == (4).to_bytes(4, "big")
    assert header == Header(5000, 8999, 0, 100, slots_used=1, count=5)


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.KIND)
def test_a_full_file_stops_in_the_middle_of_a_message(twin: Any) -> None:
    batch = batch_of([("T", b"KEYS\x01a b c", 5000, 0)])
    entries, row, key, _, header = put(twin, batch, entries=3)
    assert (len(entries), row, key, header.count) == (2, 0, 2, 3)
    slots, fresh = bytearray(28), Header(5000, 5000, 0, 0)
    rest, row, key = twin.put_rows(batch, row, key, slots, fresh, 3)
    assert ENTRY.unpack(rest)[0] == abs(java_hash("T#c"))
    assert (row, key, fresh.count) == (1, 0, 2)


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.KIND)
def test_rolled_back_messages_have_no_place_but_prepared_and_committed_ones_have(twin: Any) -> None:
    batch = batch_of([("T", b"KEYS\x01a", 5000, flag) for flag in (0, 4, 8, 12)])
    assert [entry[1] for entry in put(twin, batch)[0]] == [0, 100, 200]


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.KIND)
def test_the_first_entry_of_a_further_file_counts_from_the_end_of_the_one_before(twin: Any) -> None:
    batch = batch_of([("T", b"KEYS\x01a", 9000, 0), ("T", b"KEYS\x01a", 11000, 0)])
    entries, _, _, _, header = put(twin, batch, begin_timestamp=2000, end_timestamp=2000)
    assert [entry[2] for entry in entries] == [7, 2]
    assert header.begin_timestamp == 9000


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.KIND)
def test_seconds_stay_within_their_bounds(twin: Any) -> None:
    batch = batch_of([("T", b"KEYS\x01a", time, 0) for time in (10_000, 3_000, 10_000 + 2**31 * 1000)])
    assert [entry[2] for entry in put(twin, batch)[0]] == [0, 0, 2**31 - 1]


def test_a_hash_without_an_absolute_value_is_0() -> None:
    assert java_hash("polygenelubricants") == -(2**31)
    assert plain.key_hash(b"polygenelubricants") == 0
    assert plain.key_hash("T#köln".encode()) == abs(java_hash("T#köln"))
    assert plain.key_hash(b"x" * 5000) == abs(java_hash("x" * 5000))


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.KIND)
def test_slots_follow_from_the_entries(twin: Any) -> None:
    batch = batch_of([("T", b"KEYS\x01a b c d", 1000 * row, 0) for row in range(20)])
    table, header = bytearray(28), Header()
    data, _, _ = twin.put_rows(batch, 0, 0, table, header, 1000)
    again = bytearray(28)
    assert twin.rebuild_slots(data, 1, 0, again) == (80, header.slots_used, header.end_offset)
    assert again == table
    broken = bytearray(data)
    broken[40 * 20 + 19] ^= 1
    assert twin.rebuild_slots(bytes(broken), 1, 0, bytearray(28))[0] == 40
    zeroed = data[: 30 * 20] + bytes(50 * 20)
    assert twin.rebuild_slots(zeroed, 1, 0, bytearray(28))[0] == 30


NAME = st.sampled_from([b"UNIQ_KEY", b"KEYS", b"TAGS", b"XKEYS", b"UNIQ_KEYS", b""])
VALUE = st.sampled_from(
    [b"", b"a", b"k1 k2", b" a  b ", "é ü".encode(), b"\xff\xfe", b"a\x01b", b"7F0000010D5418B4AAC2000000000001", b" "]
)
PROPERTIES = st.one_of(
    st.lists(st.tuples(NAME, VALUE), max_size=4).map(lambda pairs: b"\x02".join(b"\x01".join(pair) for pair in pairs)),
    st.lists(st.sampled_from([b"KEYS", b"UNIQ_KEY", b"\x01", b"\x02", b" ", b"x"]), max_size=8).map(b"".join),
)
ROW = st.tuples(
    st.sampled_from(["T", "orders", "%RETRY%g"]),
    PROPERTIES,
    st.integers(0, 2**50),
    st.sampled_from([0, 4, 8, 12, 0x33]),
)


@pytest.mark.skipif(compiled is None, reason="the extension is not built")
@given(st.lists(ROW, max_size=12), st.integers(1, 9), st.integers(2, 20))
def test_both_twins_put_the_same_of_rows_read_from_the_log(rows: list[Any], slots: int, entries: int) -> None:
    stored = b""
    for topic, properties, timestamp, flags in rows:
        record = Record(
            topic, 0, b"", properties, sys_flag=flags & 0xF, offset=len(stored), store_timestamp=timestamp
        )  # fmt: skip
        stored += encode(record)
    batch, _ = scan(stored, 0, len(rows) + 1, check_body=True)
    assert len(batch) == len(rows)
    outcomes = []
    for twin in (compiled, plain):  # the compiled one first: it must not need the columns that the plain one creates
        table, header = bytearray(4 * slots), Header()
        put = twin.put_rows(batch, 0, 0, table, header, entries)
        outcomes.append((put, bytes(table), header, twin.first_with_keys(batch)))
    assert outcomes[0] == outcomes[1]


@pytest.mark.skipif(compiled is None, reason="the extension is not built")
@given(st.lists(ROW, max_size=12), st.integers(1, 9), st.integers(2, 20), st.integers(0, 2**50))
def test_both_twins_put_the_same(rows: list[Any], slots: int, entries: int, begin: int) -> None:
    batch = batch_of(rows)
    outcomes = []
    for twin in TWINS:
        results = []
        table, header, row, key = bytearray(4 * slots), Header(begin, begin), 0, 0
        while row < len(rows):
            data, row, key = twin.put_rows(batch, row, key, table, header, entries)
            results.append((data, row, key, bytes(table), copy.copy(header)))
            if row < len(rows):
                table, header = bytearray(4 * slots), Header(header.end_timestamp, header.end_timestamp)
        outcomes.append((results, twin.first_with_keys(batch)))
    assert outcomes[0] == outcomes[1]


@pytest.mark.skipif(compiled is None, reason="the extension is not built")
@given(st.binary(max_size=200), st.integers(1, 5), st.integers(0, 3))
def test_both_twins_evaluate_damaged_entries_the_same(data: bytes, slots: int, offset: int) -> None:
    data = data[: len(data) // ENTRY.size * ENTRY.size]
    outcomes = []
    for twin in TWINS:
        table = bytearray(4 * slots)
        outcomes.append((twin.rebuild_slots(data, 1, offset, table), bytes(table)))
    assert outcomes[0] == outcomes[1]

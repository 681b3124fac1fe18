"""Both twins encode the rows of a write into the same messages as the client."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest

from gantrymq.client.checks import encode_message_properties
from gantrymq.client.ids import UniqueKeys
from gantrymq.client.outgoing import encode_row
from gantrymq.message import Message
from gantrymq.spark import rows as encoding
from gantrymq.spark.options import SinkOptions
from gantrymq.spark.rows import MessageColumns, PlainRows, RowEncoder, make_compiled, make_encoder

pa = pytest.importorskip("pyarrow", reason="rows are Arrow's: pip install 'gantrymq[spark]'")

OPTIONS = SinkOptions("127.0.0.1:9876", "orders")
MAP = pa.map_(pa.string(), pa.string())
compiled_only = pytest.mark.skipif(
    encoding.compiled is None, reason="the compiled loops are not built, or GANTRYMQ_PURE excludes them"
)
USUAL = {
    "body": [b"a", b"b" * 300],
    "keys": ["k1 k2", None],
    "tags": [None, "paid"],
    "order_key": [None, "o"],
    "dedup_key": ["d", None],
}


def batch_of(**columns: list[Any]) -> pa.RecordBatch:
    types = {"properties": MAP, "body": pa.binary()}
    arrays = {name: pa.array(values, types.get(name, pa.string())) for name, values in columns.items()}
    return pa.record_batch(list(arrays.values()), list(arrays))


def keys_for(batch: pa.RecordBatch) -> list[str]:
    return [f"KEY{number:05}" for number in range(batch.num_rows)]


def plain_rows(batch: pa.RecordBatch, options: SinkOptions = OPTIONS) -> RowEncoder:
    return PlainRows(MessageColumns(batch, options, "query-7-0", 100))


def both(batch: pa.RecordBatch, options: SinkOptions = OPTIONS) -> list[RowEncoder]:
    found = [plain_rows(batch, options)]
    if encoding.compiled is not None:
        fast = make_compiled(batch, options, "query-7-0", 100)
        assert fast is not None
        found.append(fast)
    return found


def encode_one_by_one(batch: pa.RecordBatch, encoder: RowEncoder) -> list[bytes | None]:
    """Each row; None for one that ``encoder`` leaves to the client."""
    keys, found = keys_for(batch), []
    for at in range(batch.num_rows):
        data, end = encoder.encode(range(batch.num_rows), at, keys, 1)
        assert end in (at, at + 1)
        assert bool(data) == (end > at)
        found.append(data or None)
    return found


def test_a_row_becomes_the_message_that_the_client_makes_of_it() -> None:
    batch = batch_of(**USUAL, properties=[[("color", "grün"), ("n", "1")], None])
    messages = [
        Message("orders", b"a", keys="k1 k2", properties={"color": "grün", "n": "1", "DEDUP_KEY": "d"}),
        Message("orders", b"b" * 300, tags="paid", order_key="o"),
    ]
    expected = [
        encode_row(message.body, encode_message_properties(message, key), 0)
        for message, key in zip(messages, keys_for(batch), strict=True)
    ]
    for encoder in both(batch):
        assert encoder.encode(range(2), 0, keys_for(batch), 10_000) == (b"".join(expected), 2)


def test_derived_deduplication_keys_count_the_rows_of_the_task() -> None:
    options = SinkOptions("127.0.0.1:9876", "orders", derive_dedup_keys=True)
    batch = batch_of(body=[b"a", b"b"])
    for encoder in both(batch, options):
        data, _ = encoder.encode(range(2), 1, keys_for(batch), 10_000)
        assert b"DEDUP_KEY\x01query-7-0-101\x02UNIQ_KEY\x01KEY00001" in data


def test_a_part_has_at_most_the_given_bytes_unless_one_row_alone_has_more() -> None:
    batch = batch_of(body=[b"x" * size for size in (10, 10, 500, 10, 10)])
    keys = keys_for(batch)
    for encoder in both(batch):
        parts, at = [], 0
        while at < batch.num_rows:
            data, end = encoder.encode(range(5), at, keys, 120)
            parts.append(end - at)
            assert len(data) <= 120 or end == at + 1
            at = end
        assert parts == [2, 1, 2]


@pytest.mark.parametrize(
    "row",
    [
        {"body": None},
        {"body": b""},
        {"body": b"x" * 4_194_305},
        {"tags": ""},
        {"tags": "a\x01b"},
        {"tags": "x" * 32_767},
        {"order_key": ""},
        {"dedup_key": ""},
        {"dedup_key": "a\x02b"},
        {"properties": [("TAGS", "x")]},
        {"properties": [("UNIQ_KEY", "x")]},
        {"properties": [("TIMER_DELIVER_MS", "1")]},
        {"order_key": "a\x01b"},
        {"properties": [("", "x")]},
        {"properties": [("x", "")]},
        {"properties": [("x", None)]},
        {"properties": [("x", "a\x02b")]},
    ],
)
def test_a_row_that_is_no_message_of_a_batch_is_left_to_the_client(row: dict[str, Any]) -> None:
    good: dict[str, Any] = {
        "body": b"fine",
        "tags": "t",
        "order_key": "o",
        "dedup_key": "d",
        "properties": [("a", "b")],
    }
    batch = batch_of(**{name: [value, row.get(name, value), value] for name, value in good.items()})
    keys = keys_for(batch)
    for encoder in both(batch):
        assert encoder.encode(range(3), 0, keys, 10_000)[1] == 1
        assert encoder.encode(range(3), 1, keys, 10_000) == (b"", 1)
        assert encoder.encode(range(3), 2, keys, 10_000)[1] == 3


TEXTS = [
    "",
    "a",
    "x" * 40,
    "grün",
    "a b",
    " a",
    "a ",
    "a  b",
    "a\tb",
    "\u00a0",
    "a\x01b",
    "\x02",
    "\x1f",
    "KEYS",
    "TIMER_X",
    None,
]


@compiled_only
@pytest.mark.parametrize("seed", range(40))
def test_the_twins_encode_the_same_rows(seed: int) -> None:
    chosen = random.Random(seed)
    names = ["n", "m", "KEYS", "DEDUP_KEY", "TIMER_Y", "", "grün", "o", "n"]

    def pairs() -> list[tuple[str, str | None]] | None:
        count = chosen.choice([0, 1, 2, 3, 40 if seed % 7 == 0 else 1])
        found = [(name, chosen.choice(TEXTS)) for name in chosen.choices(names[: chosen.choice([2, 9])], k=count)]
        return chosen.choice([found, found, found, None])

    columns: dict[str, list[Any]] = {
        "body": [chosen.choice([b"x", b"\xff" * 70, b"", None, b"y" * 9]) for _ in range(60)]
    }
    for name in ("tags", "keys", "order_key", "dedup_key"):
        if chosen.random() < 0.8:
            columns[name] = [chosen.choice(TEXTS) for _ in range(60)]
    if chosen.random() < 0.8:
        columns["properties"] = [pairs() for _ in range(60)]
    options = SinkOptions("127.0.0.1:9876", "orders", derive_dedup_keys="dedup_key" not in columns)
    first, count = chosen.randrange(20), chosen.randrange(1, 40)
    batch = batch_of(**columns).slice(first, count)
    plain, fast = (encode_one_by_one(batch, encoder) for encoder in both(batch, options))
    for expected, found in zip(plain, fast, strict=True):
        assert found in (expected, None)
    encoded = [row for row in fast if row is not None]
    if columns.keys() == {"body"}:
        assert len(encoded) == sum(row is not None for row in plain)


@compiled_only
def test_usual_rows_are_encoded_by_the_compiled_twin_alone() -> None:
    batch = batch_of(**USUAL, properties=[[("color", "grün")], []])
    for part in (batch, batch.slice(1), batch.select(["body"]), batch_of(**USUAL, properties=[[], None])):
        encoder = make_encoder(part, OPTIONS, "", 0)
        assert isinstance(encoder, encoding.compiled.Rows)
        assert encoder.encode(range(part.num_rows), 0, keys_for(part), 10_000)[1] == part.num_rows


@compiled_only
def test_text_that_is_no_unicode_is_left_to_the_client() -> None:
    bad = pa.array([b"a\xff"]).view(pa.string())
    batch = pa.record_batch([pa.array([b"x"]), bad], ["body", "tags"])
    for encoder in both(batch):
        assert encoder.encode([0], 0, ["K"], 1000) == (b"", 0)


def test_rows_for_several_topics_are_sent_one_by_one() -> None:
    assert make_encoder(batch_of(body=[b"x"], topic=["a"]), OPTIONS, "", 0) is None


def test_rows_are_encoded_in_the_given_order() -> None:
    batch = pa.record_batch({"body": [b"%d" % number for number in range(5)], "order_key": [7, 8, None, -1, 9]})
    keys = keys_for(batch)
    for encoder in both(batch):
        data, place = encoder.encode([4, 0, 3], 1, keys, 10_000)
        assert place == 3
        assert [key.encode() in data for key in keys] == [True, False, False, True, False]
        assert data.index(b"__SHARDINGKEY\x017\x02") < data.index(b"__SHARDINGKEY\x01-1\x02")
        with pytest.raises(IndexError):
            encoder.encode([5], 0, keys, 10_000)


def test_types_that_the_compiled_twin_does_not_read_have_the_plain_one() -> None:
    batch = pa.record_batch({"body": pa.array([b"x"], pa.large_binary()), "keys": pa.array([["a", "b"]])})
    encoder = make_encoder(batch, OPTIONS, "", 0)
    assert isinstance(encoder, PlainRows)
    assert b"KEYS\x01a b" in encoder.encode([0], 0, ["K"], 1000)[0]


def test_text_is_sent_as_utf_8_and_keys_may_be_one_text() -> None:
    batch = pa.record_batch({"body": ["grün"], "keys": ["a b"], "delay": [2]})
    message = MessageColumns(batch, OPTIONS, "", 0).message(0)
    assert (message.body, message.keys, message.delay) == ("grün".encode(), ("a", "b"), 2.0)


def test_many_unique_keys_continue_those_made_one_by_one() -> None:
    made = UniqueKeys("10.0.0.1")
    keys = [made.next(), *made.next_many(3), made.next(), *made.next_many(4000)]
    assert len(set(keys)) == len(keys)
    counters = [struct.unpack(">H", bytes.fromhex(key[-4:]))[0] for key in keys]
    assert counters == [number & 0xFFFF for number in range(len(keys))]

from __future__ import annotations

import datetime
import random
import sys
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from gantrymq.remoting.address import encode_host
from gantrymq.spark import columns
from gantrymq.spark.columns import COLUMNS, CompiledColumns, PlainColumns
from gantrymq.spark.errors import BrokenRecord
from gantrymq.spark.wire import Queue

pytest.importorskip("pyarrow", reason="the columns are Arrow's: pip install 'gantrymq[spark]'")

QUEUE = Queue("orders", "broker-a", 3, "127.0.0.1:10911")
Maker = Callable[..., bytes]
Kind = type[PlainColumns] | type[CompiledColumns]
kind: Kind = PlainColumns
"""The twin under test."""


@pytest.fixture(params=["plain", "compiled"], autouse=True)
def _twin(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "compiled":
        if columns.compiled is None:
            pytest.skip("the compiled loops are not built, or GANTRYMQ_PURE excludes them")
        monkeypatch.setitem(globals(), "kind", CompiledColumns)


def build(raw: bytes, start: int = 0, end: int = 100, limit: int = 1000) -> list[dict[str, Any]]:
    builder = kind(QUEUE, list(COLUMNS), limit)
    count, read = builder.add(raw, start, end)
    assert read == len(raw)
    rows: list[dict[str, Any]] = builder.build().to_pylist()
    assert len(rows) == count
    return rows


def test_every_field_of_a_record_has_its_column(make_record: Maker) -> None:
    properties = {"KEYS": "k1 k2", "TAGS": "paid", "UNIQ_KEY": "AC11", "color": "grün"}
    assert build(make_record("orders", 3, 7, b"hello", properties, flag=5, reconsume_times=2, sys_flag=2)) == [
        {
            "topic": "orders",
            "broker": "broker-a",
            "queueId": 3,
            "queueOffset": 7,
            "commitLogOffset": 1700,
            "msgId": "AC11",
            "keys": "k1 k2",
            "tags": "paid",
            "body": b"hello",
            "properties": list(properties.items()),
            "bornTimestamp": datetime.datetime(2023, 11, 14, 22, 13, 20, 123_000, datetime.UTC),
            "storeTimestamp": datetime.datetime(2023, 11, 14, 22, 13, 21, 123_000, datetime.UTC),
            "bornHost": "127.0.0.1:5000",
            "reconsumeTimes": 2,
            "flag": 5,
            "sysFlag": 2,
        }
    ]


def test_a_minimal_record_has_nulls_and_the_id_of_its_offset(make_record: Maker) -> None:
    (row,) = build(make_record("orders", 3, 0, b""))
    assert (row["keys"], row["tags"], row["properties"], row["body"]) == (None, None, [], b"")
    assert row["msgId"] == "0A000001" + "00002A9F" + "00000000000003E8"


def test_ipv6_hosts_are_decoded(make_record: Maker) -> None:
    (row,) = build(make_record("orders", 3, 0, b"x", born_host=encode_host("::1", 5000)))
    assert row["bornHost"] == "[::1]:5000"


def test_each_row_has_the_host_of_its_own_producer(make_record: Maker) -> None:
    hosts = [
        ("10.0.0.1", 5000),
        ("10.0.0.1", 5001),
        ("10.0.0.1", 5001),
        ("255.255.255.255", 65535),
        ("::1", 5000),
        ("10.0.0.1", 5000),
    ]
    raw = [make_record("orders", 3, at, b"x", born_host=encode_host(*host)) for at, host in enumerate(hosts)]
    shown = [row["bornHost"] for row in build(b"".join(raw))]
    assert shown == [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in hosts]


@pytest.mark.parametrize("born", [2**63 - 1, -(2**63)])
def test_a_born_timestamp_that_spark_cannot_hold_is_null(make_record: Maker, born: int) -> None:
    (row,) = build(make_record("orders", 3, 0, b"x", born_timestamp=born))
    assert row["bornTimestamp"] is None


def test_invalid_utf_8_is_replaced_and_the_rest_kept(make_record: Maker) -> None:
    raw = make_record("orders", 3, 0, b"x", {"TAGS": "aXb"}).replace(b"aXb", b"a\xffb")
    assert build(raw)[0]["tags"] == "a\ufffdb"


def test_only_selected_columns_are_built_in_the_given_order(make_record: Maker) -> None:
    builder = kind(QUEUE, ["body", "queueOffset"], 1000)
    builder.add(make_record("orders", 3, 0, b"x"), 0, 1)
    assert builder.build().schema.names == ["body", "queueOffset"]


def test_messages_outside_the_range_and_duplicates_are_skipped(make_record: Maker) -> None:
    raw = b"".join(make_record("orders", 3, offset, b"x") for offset in (3, 4, 5, 5, 4, 6, 7))
    assert [row["queueOffset"] for row in build(raw, start=4, end=7)] == [4, 5, 6]


def test_building_a_batch_empties_the_builder(make_record: Maker) -> None:
    builder = kind(QUEUE, ["body"], 1000)
    builder.add(make_record("orders", 3, 0, b"four"), 0, 1)
    assert (builder.rows, builder.size) == (1, 4)
    builder.build()
    assert (builder.rows, builder.size) == (0, 0)


@pytest.mark.parametrize("sys_flag", [0x1, 0x301])
def test_a_compressed_body_is_inflated(make_record: Maker, sys_flag: int) -> None:
    raw = make_record("orders", 3, 0, zlib.compress(b"z" * 900), sys_flag=sys_flag)
    assert build(raw)[0]["body"] == b"z" * 900


@pytest.mark.parametrize(
    ("body", "sys_flag", "says"),
    [
        (zlib.compress(b"z" * 1001), 0x1, "more than 1000 bytes"),
        (zlib.compress(b"z" * 900)[:-5], 0x1, "cut short"),
        (b"plain", 0x1, "zlib"),
        (b"plain", 0x401, "unknown compressor"),
        (b"many", 0x80, "a batch kept as one record"),
    ],
)
def test_a_body_that_cannot_be_decompressed_is_reported(
    make_record: Maker, body: bytes, sys_flag: int, says: str
) -> None:
    with pytest.raises(BrokenRecord, match=f"orders broker-a queue 3 on 127.0.0.1:10911: offset 9.*{says}"):
        build(make_record("orders", 3, 9, body, sys_flag=sys_flag))


BAD_BODIES = [(b"plain", 0x1), (zlib.compress(b"z" * 1001), 0x1), (b"plain", 0x401), (b"many", 0x80)]


@pytest.mark.parametrize(("body", "sys_flag"), BAD_BODIES[:3])
def test_a_body_that_is_not_wanted_is_not_decompressed(make_record: Maker, body: bytes, sys_flag: int) -> None:
    builder = kind(QUEUE, ["queueOffset", "tags"], 1000)
    assert builder.add(make_record("orders", 3, 9, body, {"TAGS": "t"}, sys_flag=sys_flag), 0, 100)[0] == 1
    assert builder.build().to_pylist() == [{"queueOffset": 9, "tags": "t"}]


@pytest.mark.parametrize("names", [["queueOffset", "body"], ["queueOffset"]])
def test_bodies_that_cannot_be_read_may_be_null(make_record: Maker, names: list[str]) -> None:
    found: list[tuple[int, str]] = []
    good, bad = make_record("orders", 3, 0, b"good"), BAD_BODIES if "body" in names else BAD_BODIES[3:]
    raw = good + b"".join(
        make_record("orders", 3, at, body, sys_flag=sys_flag) for at, (body, sys_flag) in enumerate(bad, 1)
    )
    raw += make_record("orders", 3, 9, zlib.compress(b"more"), sys_flag=1)
    builder = kind(QUEUE, names, 1000, bad_body=lambda offset, reason: found.append((offset, reason)))
    assert builder.add(raw, 0, 100) == (len(bad) + 2, len(raw))
    batch = builder.build()
    batch.validate(full=True)
    offsets = range(1, len(bad) + 1)
    assert batch["queueOffset"].to_pylist() == [0, *offsets, 9]
    assert [offset for offset, _ in found] == [*offsets]
    assert found[-1][1].startswith("a batch kept as one record")
    if "body" in names:
        assert batch["body"].to_pylist() == [b"good", *[None] * len(bad), b"more"]
        builder.add(make_record("orders", 3, 10, b"next"), 0, 100)
        assert builder.build()["body"].to_pylist() == [b"next"], "the next batch has no null"


def test_a_missing_compressor_is_an_error_although_bad_bodies_are_null(
    make_record: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lz4", None)
    monkeypatch.setitem(sys.modules, "lz4.frame", None)
    builder = kind(QUEUE, ["body"], 1000, bad_body=lambda offset, reason: None)
    with pytest.raises(BrokenRecord, match=r"pip install 'gantrymq\[compression\]'"):
        builder.add(make_record("orders", 3, 0, b"x", sys_flag=0x101), 0, 1)


def test_a_full_builder_stops_and_goes_on_where_it_stopped(make_record: Maker) -> None:
    packed = zlib.compress(bytes(1000))
    raw = b"".join(make_record("orders", 3, at, packed, sys_flag=1) for at in (0, 1, 1, 2, 3, 4, 5))
    builder = kind(QUEUE, ["queueOffset", "body"], 1000, 2000)
    read, found = 0, []
    while read < len(raw):
        count, read = builder.add(raw, 0, 5, read)
        assert (builder.rows, builder.size) == (count, count * 1000)
        assert count <= 2
        found.append(builder.build()["queueOffset"].to_pylist())
        assert builder.next_offset == found[-1][-1] + 1
    assert found == [[0, 1], [2, 3], [4]]


def test_the_size_has_the_properties_that_columns_are_made_of(make_record: Maker) -> None:
    raw = make_record("orders", 3, 0, b"four", {"TAGS": "t" * 5000})
    sizes = []
    for names in (["body"], ["tags"], ["body", "properties"], ["queueOffset"]):
        builder = kind(QUEUE, names, 1000)
        builder.add(raw, 0, 1)
        sizes.append(builder.size)
    assert sizes == [4, 5005, 5009, 0]


def test_every_damage_to_a_record_is_reported(make_record: Maker) -> None:
    raw = make_record("orders", 3, 9, b"hello")
    for broken in (raw[:-1], raw[:40], raw + b"\0", raw.replace(b"hello", b"hellO"), b"\0" * len(raw)):
        with pytest.raises(BrokenRecord, match="a pull at offset 0 answers with"):
            build(broken)


@pytest.mark.parametrize("size", [1, 15, 16, 17, 63, 64, 65, 4096])
def test_one_changed_byte_of_a_body_of_any_length_is_found(make_record: Maker, size: int) -> None:
    body = bytes(range(256)) * 16
    raw = make_record("orders", 3, 9, body[:size])
    assert len(build(raw)) == 1
    at = raw.rindex(body[:size])
    for place in {at, at + size // 2, at + size - 1}:
        with pytest.raises(BrokenRecord):
            build(raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :])


def in_both(raw: bytes, start: int = 0) -> list[Any]:
    """The twins' result for ``raw``: a batch, or their error."""
    found: list[Any] = []
    for twin in (PlainColumns, CompiledColumns):
        builder = twin(QUEUE, list(COLUMNS), 1000)
        try:
            builder.add(raw, start, 100)
            batch = builder.build()
            batch.validate(full=True)
            found.append(batch)
        except BrokenRecord as error:
            found.append(str(error))
    return found


@pytest.mark.skipif(columns.compiled is None, reason="the compiled loops are not built")
@pytest.mark.parametrize(
    "pairs",
    [
        b"",
        b"\x01\x02\x02=\x01",
        b"KEYS\x01a\x02TAGS\x01b\x02UNIQ_KEY\x01c\x02",
        b"KEYS\x01a\x02x\x01y\x02KEYS\x01b",
        b"TAGS\x01\x02KEYS\x01a\x01b\x02n\x01v",
        b"TAGS\x01a\xffb\x02gr\xc3\xbcn\x01\xe2\x82",
        b"\x02".join(b"p%d\x01v%d" % (number % 90, number) for number in range(200)) + b"\x02TAGS\x01t",
    ],
)
def test_the_twins_read_the_same_properties(make_record: Maker, pairs: bytes) -> None:
    marker = "M" * len(pairs)
    head = {"M": "x" * (len(pairs) - 2)} if len(pairs) > 2 else {}
    raw = make_record("orders", 3, 0, b"body", head)
    if head:
        raw = raw.replace(b"M\x01" + b"x" * (len(marker) - 2), pairs)
        assert pairs in raw
    plain, fast = in_both(raw)
    assert plain == fast
    assert plain.num_rows == 1


@pytest.mark.skipif(columns.compiled is None, reason="the compiled loops are not built")
def test_the_twins_read_the_same_of_mutated_records(make_record: Maker) -> None:
    chance = random.Random(19)
    whole = b"".join(
        make_record("orders", 3, offset, b"b" * offset, {"KEYS": f"k{offset}", "TAGS": "t", "c": "grün"}, flag=offset)
        for offset in range(5)
    ) + make_record("orders", 3, 5, zlib.compress(b"z" * 90), {"UNIQ_KEY": "U"}, sys_flag=1)
    assert in_both(whole)[0] == in_both(whole)[1]
    outcomes = set()
    for _ in range(1500):
        raw = bytearray(whole)
        for _ in range(chance.randint(1, 3)):
            raw[chance.randrange(len(raw))] = chance.choice((0, 1, 2, 0x10, 0x20, 0x80, 0xFF, chance.randrange(256)))
        data = bytes(raw[: chance.choice((len(raw), len(raw), chance.randrange(len(raw))))])
        plain, fast = in_both(data)
        # Of two faults in one answer each twin may report another one.
        assert plain == fast or (isinstance(plain, str) and isinstance(fast, str)), data.hex()
        outcomes.add(isinstance(plain, str))
    assert outcomes == {True, False}

"""Encoding and decoding of records, one at a time and in batches: golden bytes, cuts, round trips."""

from __future__ import annotations

import struct

import attrs
import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from gantrymq.kernel.batch import AppendBatch, DispatchBatch, Source
from gantrymq.kernel.fast import Layout, Stop, encode_rows, queue_entries, scan, tag_code
from gantrymq.kernel.store.log.record import (
    BadRecord,
    Record,
    blank,
    check_begun,
    decode,
    encode,
    is_intact,
)
from gantrymq.remoting.address import decode_host, encode_host
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.message_ids import offset_message_id, parse_offset_message_id
from gantrymq.remoting.properties import java_hash
from gantrymq.remoting.records import decode_records
from support.columns import dispatched

GOLDEN = bytes.fromhex(
    "00000072DAA320A73610A6860000000200000000000000000000000B00000000000004000000000000000000000003E87F00000100001388"
    "00000000000007D07F00000100002A9F0000000000000000000000000000000568656C6C6F09546F706963546573740009544147530154616741"
)
"""The bytes of RocketMQ's own encoder."""
GOLDEN_RECORD = Record(
    "TopicTest",
    2,
    b"hello",
    b"TAGS\x01TagA",
    queue_offset=11,
    offset=1024,
    born_timestamp=1000,
    born_host=encode_host("127.0.0.1", 5000),
    store_timestamp=2000,
    store_host=encode_host("127.0.0.1", 10911),
)
LAYOUT = Layout(encode_host("127.0.0.1", 10911), 1 << 22, 1 << 30)

i32 = st.integers(-(1 << 31), (1 << 31) - 1)
i64 = st.integers(-(1 << 63), (1 << 63) - 1)
hosts = st.one_of(st.binary(min_size=8, max_size=8), st.binary(min_size=20, max_size=20))
topics = st.from_regex(r"[%|a-zA-Z0-9_-]{1,127}", fullmatch=True)
texts = st.binary(max_size=200).map(lambda data: data.replace(b"\0", b"."))
records = st.builds(
    Record,
    topic=topics,
    queue_id=i32,
    body=st.binary(max_size=300),
    properties=texts,
    flag=i32,
    sys_flag=st.integers(0, (1 << 31) - 1).map(lambda flag: flag & ~0x30),
    queue_offset=i64,
    offset=st.integers(0, 1 << 60),
    born_timestamp=i64,
    born_host=hosts,
    store_timestamp=i64,
    store_host=hosts,
    reconsume_times=i32,
    prepared_offset=i64,
)


NEGATIVE = java_hash("z" * 10)
"""A tag whose hash is below zero."""


def v2(record: Record) -> bytes:
    """Encode as 5.x does when the topic is long."""
    topic = record.topic.encode()
    data = bytearray(encode(attrs.evolve(record, topic="x")))
    at = data.index(b"\x01x", 88)
    data[at : at + 2] = len(topic).to_bytes(2, "big") + topic
    data[:8] = struct.pack(">iI", len(data), 0xDAA320AB)
    return bytes(data)


def test_the_golden_record_is_encoded_and_decoded() -> None:
    assert encode(GOLDEN_RECORD) == GOLDEN
    assert decode(GOLDEN) == (GOLDEN_RECORD, 114)
    assert GOLDEN_RECORD.message_id == "7F00000100002A9F0000000000000400"


@given(records)
@example(GOLDEN_RECORD)
def test_round_trip(record: Record) -> None:
    data = encode(record)
    again, end = decode(data)
    assert end == len(data)
    bits = (0x10 if len(record.born_host) == 20 else 0) | (0x20 if len(record.store_host) == 20 else 0)
    assert again.sys_flag == record.sys_flag | bits
    assert encode(again) == data
    assert [found.commit_log_offset for found in decode_records(data)] == [record.offset]


@given(records, st.binary(max_size=40))
def test_bytes_behind_a_record_are_ignored(record: Record, rest: bytes) -> None:
    data = encode(record)
    assert decode(rest + data + rest, len(rest)) == (decode(data)[0], len(rest) + len(data))


@pytest.mark.parametrize("data", [GOLDEN, encode(Record("T", 0, b"", born_host=bytes(20), store_host=bytes(20)))])
def test_every_truncated_record_is_rejected(data: bytes) -> None:
    for size in range(len(data)):
        with pytest.raises(BadRecord):
            decode(data[:size])


@given(records)
def test_every_prefix_of_a_record_is_incomplete_and_not_invalid(record: Record) -> None:
    data = encode(record)
    for size in range(len(data) + 1):
        check_begun(data[:size])
        check_begun(data[:size], len(data) + 8)
    check_begun(blank(300))
    check_begun(blank(300), 300)


@pytest.mark.parametrize(
    ("at", "value", "there", "reason"),
    [
        (4, b"\xda\xa3\x20\xa8", 91, "no record: magic DAA320A8"),
        (0, b"\x7f\xff\xff\xff", 114, "the parts make 114 bytes"),
        (84, b"\xff\xff\xff\xff", 91, "a body of -1 bytes does not fit"),
        (84, b"\0\0\0\x63", 91, "a body of 99 bytes does not fit"),
        (93, b"\xff", 94, "a topic of 255 bytes does not fit"),
        (103, b"\0\x0a", 105, "the parts make 115 bytes"),
    ],
)
def test_a_wrong_length_is_detected_as_soon_as_it_is_read(at: int, value: bytes, there: int, reason: str) -> None:
    data = GOLDEN[:at] + value + GOLDEN[at + len(value) :]
    with pytest.raises(BadRecord, match=reason):
        check_begun(data[:there])


@pytest.mark.parametrize(("data", "room"), [(blank(0x00EF0068), 0x68), (blank(96), 0x68), (GOLDEN, len(GOLDEN) - 1)])
def test_a_record_beyond_the_rest_of_its_file_is_invalid(data: bytes, room: int) -> None:
    check_begun(data[:7], room)
    with pytest.raises(BadRecord, match=f"and {room} are left in its log file"):
        check_begun(data[:8], room)


@given(st.binary(max_size=300))
def test_any_bytes_are_rejected_or_decoded(data: bytes) -> None:
    try:
        record, end = decode(data)
    except BadRecord:
        return
    assert encode(record)[8:end] == data[8:end]


@pytest.mark.parametrize(
    ("at", "value", "reason"),
    [
        (4, b"\xda\xa3\x20\xa8", "no record: magic DAA320A8"),
        (0, b"\0\0\0\x0a", "fixed fields alone are more"),
        (0, b"\xff\xff\xff\xff", "fixed fields alone are more"),
        (0, b"\x7f\xff\xff\xff", "cut short"),
        (0, b"\0\0\0\x71", "the parts make 114 bytes, the record says 113"),
        (84, b"\xff\xff\xff\xff", "a body of -1 bytes does not fit"),
        (84, b"\0\0\0\x63", "a body of 99 bytes does not fit"),
        (93, b"\xff", "a topic of 255 bytes does not fit"),
        (103, b"\0\x0a", "the parts make 115 bytes"),
        (88, b"j", "does not match its CRC"),
        (94, b"\xff", "not UTF-8"),
    ],
)
def test_every_inconsistent_field_is_reported(at: int, value: bytes, reason: str) -> None:
    data = GOLDEN[:at] + value + GOLDEN[at + len(value) :]
    with pytest.raises(BadRecord, match=reason):
        decode(data)


def test_the_body_checksum_can_be_skipped() -> None:
    data = GOLDEN.replace(b"hello", b"jello")
    assert decode(data, check_body=False)[0].body == b"jello"


def test_values_that_the_format_cannot_hold_are_rejected() -> None:
    for record, reason in [
        (Record("x" * 128, 0, b""), "the topic has 128 bytes"),
        (Record("T", 0, b"", b"x" * 32768), "the properties have 32768 bytes"),
        (Record("T", 1 << 31, b""), "out of its range"),
        (Record("T", 0, b"", born_host=b"x" * 9), "8 or 20 bytes"),
    ]:
        with pytest.raises(ValueError, match=reason):
            encode(record)
    assert decode(encode(Record("x" * 127, 0, b"", b"x" * 32767)))[0].topic == "x" * 127


def test_long_topics_of_5x_are_decoded() -> None:
    record = Record("x" * 200, 3, b"body", b"a\x01b", offset=7)
    assert decode(v2(record)) == (record, len(v2(record)))
    batch, stop = scan(v2(record), 7, 10, check_body=True)
    assert (batch.topics, batch.properties, stop) == (["x" * 200], [b"a\x01b"], Stop.DATA)


def test_message_ids_and_hosts_are_encoded() -> None:
    v6 = encode_host("2001:db8::1", 10911)
    assert decode_host(v6) == ("2001:db8::1", 10911)
    assert decode_host(encode_host("10.1.2.3", 80)) == ("10.1.2.3", 80)
    for host in (v6, encode_host("10.1.2.3", 80)):
        text = offset_message_id(host, 1 << 40)
        assert len(text) in (32, 56)
        assert parse_offset_message_id(text) == (host, 1 << 40)
    for bad in ("", "7F", "zz" * 16, "00" * 17, "0 " * 16, "FF" * 16, " " + "00" * 16):
        with pytest.raises(ValueError):  # noqa: PT011 - the texts of bytes.fromhex differ by version
            parse_offset_message_id(bad)
    with pytest.raises(ValueError, match="8 or 20"):
        decode_host(b"123")
    with pytest.raises(ValueError, match="does not appear to be"):
        encode_host("example", 1)


# ---------------------------------------------------------------------------------------------------------- the fast


def batch_of(some: list[Record]) -> AppendBatch:
    batch = AppendBatch()
    for one in some:
        batch.add(
            one.topic,
            one.queue_id,
            one.body,
            one.properties,
            flag=one.flag,
            sys_flag=one.sys_flag,
            born_timestamp=one.born_timestamp,
            born_host=one.born_host,
            reconsume_times=one.reconsume_times,
            prepared_offset=one.prepared_offset,
        )
    batch.offsets, batch.sizes, batch.queue_offsets = [-1] * len(some), [0] * len(some), [-1] * len(some)
    return batch


@given(st.lists(records, max_size=10), hosts, st.integers(0, 1 << 40))
def test_rows_are_encoded_as_records_and_scanned_back(some: list[Record], store_host: bytes, start: int) -> None:
    batch = batch_of(some)
    batch.store_timestamp = 77
    parts, index, end = encode_rows(batch, batch.live, 0, start, 1 << 30, {}, LAYOUT._replace(store_host=store_host))
    data = b"".join(parts)
    assert index == len(some)
    assert end == start + len(data)
    position, counts = 0, dict[tuple[str, int], int]()
    for row, one in enumerate(some):
        record, next_position = decode(data, position)
        key = (one.topic, one.queue_id)
        queue_offset = 0 if one.sys_flag & 4 else counts.get(key, 0)
        counts[key] = counts.get(key, 0) + (not one.sys_flag & 4)
        assert record.offset == batch.offsets[row] == start + position
        assert record.queue_offset == batch.queue_offsets[row] == queue_offset
        assert next_position - position == batch.sizes[row]
        assert (record.topic, record.queue_id, record.body, record.properties) == (*key, one.body, one.properties)
        assert (record.flag, record.sys_flag & ~0x30) == (one.flag, one.sys_flag)
        assert (record.born_timestamp, record.born_host) == (one.born_timestamp, one.born_host)
        assert (record.store_timestamp, record.store_host) == (77, store_host)
        assert (record.reconsume_times, record.prepared_offset) == (one.reconsume_times, one.prepared_offset)
        assert encode(record) == data[position:next_position]
        position = next_position
    found, stop = scan(data, start, 100, check_body=True)
    assert stop is Stop.DATA
    assert (found.start, found.end) == (start, end)
    assert (found.offsets, found.sizes, found.queue_offsets) == (batch.offsets, batch.sizes, batch.queue_offsets)
    assert (found.topics, found.queue_ids, found.properties) == (batch.topics, batch.queue_ids, batch.properties)
    assert (found.sys_flags, found.prepared_offsets) == (batch.sys_flags, batch.prepared_offsets)
    assert found.store_timestamps == [77] * len(some)
    assert found.tag_codes == [tag_code(one.properties) for one in some]


def test_encoding_stops_when_the_file_is_full_but_for_eight_bytes() -> None:
    batch = batch_of([GOLDEN_RECORD] * 3)
    for room, rows in ((121, 0), (122, 1), (114 * 2 + 8, 2), (114 * 2 + 7, 1), (1000, 3)):
        next_offsets: dict[tuple[str, int], int] = {}
        parts, index, end = encode_rows(batch, batch.live, 0, 50, room, next_offsets, LAYOUT)
        assert (index, end, len(b"".join(parts))) == (rows, 50 + 114 * rows, 114 * rows)
        assert next_offsets.get(("TopicTest", 2), 0) == rows


@pytest.mark.parametrize("source", Source.ALL)
def test_the_limit_of_a_body_does_not_apply_to_messages_that_are_stored_already(source: str) -> None:
    batch = batch_of([GOLDEN_RECORD] * 3)
    batch.source = source
    batch.bodies[1] = b"x" * (LAYOUT.max_body_bytes + 1)
    batch.bodies[2] = b"x" * (2 * LAYOUT.max_body_bytes)
    layout = LAYOUT._replace(max_record_bytes=2 * LAYOUT.max_body_bytes)
    encode_rows(batch, batch.live, 0, 0, 1 << 30, {}, layout)
    is_stored = source in (Source.RETRY, Source.DELAY, Source.TIMER, Source.TRANSACTION)
    assert batch.statuses == [0, 0 if is_stored else 13, 13]


def test_only_the_rows_that_cannot_be_stored_are_refused() -> None:
    good = GOLDEN_RECORD
    batch = batch_of([good] * 8)
    batch.bodies[0] = b"x" * (LAYOUT.max_body_bytes + 1)
    batch.properties[1] = b"x" * 32768
    batch.topics[2] = "x" * 128
    batch.topics[3] = "../x"
    batch.properties[4] = b"a\x01\0"
    batch.queue_ids[5] = 1 << 31
    batch.topics[6] = "\ud800"
    _, index, _ = encode_rows(batch, batch.live, 0, 0, 1 << 30, {}, LAYOUT)
    assert index == 8
    assert batch.statuses == [ResponseCode.MESSAGE_ILLEGAL] * 7 + [ResponseCode.SUCCESS]
    reasons = ["the body has", "the properties have", "the topic's name", "the topic's name", "there is a zero byte"]
    for row, reason in enumerate([*reasons, "a field is out of its range", "the topic's name"]):
        assert batch.remarks[row].startswith(reason)
    assert batch.offsets == [-1] * 7 + [0]
    assert batch.queue_offsets[7] == 0
    assert batch.live == [7]


def test_refused_rows_are_not_encoded() -> None:
    batch = batch_of([GOLDEN_RECORD] * 4)
    batch.refuse(1, 16, "no")
    parts, index, _ = encode_rows(batch, batch.live, 0, 0, 1 << 30, {}, LAYOUT)
    assert index == 3
    assert len(b"".join(parts)) == 3 * 114
    assert batch.queue_offsets == [0, -1, 1, 2]


def many(count: int) -> bytes:
    batch = batch_of([GOLDEN_RECORD] * count)
    return b"".join(encode_rows(batch, batch.live, 0, 0, 1 << 30, {}, LAYOUT)[0])


def test_a_scan_of_a_truncated_log_stops_after_the_last_complete_record() -> None:
    data = many(2)
    for size in range(len(data) + 1):
        batch, stop = scan(data[:size], 0, 9, check_body=True)
        assert len(batch) == size // 114
        assert batch.end == 114 * len(batch)
        if size % 114 == 0:
            assert stop is Stop.DATA
        else:
            assert stop is Stop.CUT
        again, stop_again = scan(memoryview(data)[:size], 0, 9, check_body=True)
        assert (dispatched(again), stop_again) == (dispatched(batch), stop)


def test_a_scan_distinguishes_zeros_blanks_and_damage() -> None:
    data = many(1)
    for rest, expected in [
        (bytes(500), Stop.ZERO),
        (bytes(7), Stop.CUT),
        (blank(500) + b"stale" + bytes(487), Stop.BLANK),
        (blank(8), Stop.BLANK),
        (blank(400) + bytes(492), Stop.BAD),
        (blank(600) + bytes(492), Stop.CUT),
        (b"\xff" * 500, Stop.BAD),
        (data, Stop.BAD),  # says that it lies at 0
        (many(2)[114:].replace(b"hello", b"jello"), Stop.BAD),
        (many(2)[114:].replace(b"TopicTest", b"Topic\0\0\0\0"), Stop.BAD),
    ]:
        batch, stop = scan(data + rest, 0, 9, check_body=True)
        assert (len(batch), batch.end, stop) == (1, 114, expected)
    assert scan(many(5), 0, 3, check_body=True)[1] is Stop.ROWS
    damaged = many(1).replace(b"hello", b"jello")
    assert len(scan(damaged, 0, 9, check_body=False)[0]) == 1


@given(st.binary(max_size=400), st.booleans())
def test_a_scan_accepts_any_bytes(data: bytes, begin_well: bool) -> None:
    prefix = many(1) if begin_well else b""
    batch, _ = scan(prefix + data, 0, 9, check_body=True)
    assert len(batch) >= begin_well
    assert batch.end <= len(prefix) + len(data)


@pytest.mark.parametrize(
    ("properties", "code"),
    [
        (b"TAGS\x01TagA", 2598919),
        (b"KEYS\x01k\x02TAGS\x01TagA\x02", 2598919),
        (b"XTAGS\x01no", 0),
        (b"XTAGS\x01no\x02TAGS\x01TagA", 2598919),
        (b"", 0),
        (b"KEYS\x01TAGS", 0),
        ("TAGS\x01é€".encode(), 31 * 0xE9 + 0x20AC),
        (b"TAGS\x01" + b"z" * 10, NEGATIVE),
    ],
)
def test_tag_codes(properties: bytes, code: int) -> None:
    assert tag_code(properties) == code


def test_entries_have_twenty_bytes_and_belong_to_the_rows_of_their_queue() -> None:
    batch = DispatchBatch(
        0, 12, [1, 4, 9], [3, 5, 3], ["T", "U", "T"], [1, 1, 1], [7, 8, 8], [0] * 3, [0] * 3, [0] * 3, [b""] * 3,
        [-5, 6, 9],
    )  # fmt: skip
    first, second = queue_entries(batch, {"U": lambda queue_id, properties, stored: queue_id + 41})
    assert first == ("T", 1, 7, 1, 12, struct.pack(">qiqqiq", 1, 3, -5, 9, 3, 9), None)
    assert second == ("U", 1, 8, 4, 9, struct.pack(">qiq", 4, 5, 42), None)
    batch.queue_offsets[2] = 9
    assert queue_entries(batch, {})[0].queue_offsets == [7, 9]


def test_a_flipped_bit_in_body_or_offsets_is_detected() -> None:
    data = encode(Record("T", 1, b"body" * 20, b"TAGS\x01a", offset=4096))
    assert is_intact(data, 4096)
    assert not is_intact(data, 4097), "another place"
    assert not is_intact(data[:-1], 4096)
    assert not is_intact(data + b"\0", 4096)
    assert not is_intact(b"", 0)
    covered = [*range(12), *range(28, 36), *range(84, 88 + 80)]
    for at in covered:
        for bit in range(8):
            broken = bytearray(data)
            broken[at] ^= 1 << bit
            assert not is_intact(bytes(broken), 4096), f"bit {bit} of byte {at}"

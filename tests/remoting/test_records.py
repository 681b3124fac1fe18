"""Decoding stored records: captured bytes, every cut and wrong length, compressed bodies under a limit."""

from __future__ import annotations

import json
import struct
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.message import DeliveredRecord
from gantrymq.remoting import records
from gantrymq.remoting.errors import FatalRemoteFault
from gantrymq.remoting.properties import encode_properties
from gantrymq.remoting.records import BodyError, CompressorMissing, Record, decode_records, decompress

GOLDEN = bytes.fromhex(
    "00000072DAA320A73610A6860000000200000000000000000000000B00000000000004000000000000000000000003E87F000001000013880000"
    "0000000007D07F00000100002A9F0000000000000000000000000000000568656C6C6F09546F706963546573740009544147530154616741"
)
CAPTURED = [
    case
    for case in json.loads((Path(__file__).parents[1] / "golden" / "records.json").read_text())
    if case["order"]["what"] == "record"
]


@pytest.fixture(params=["compiled", "plain"], autouse=True, scope="module")
def twin(request: pytest.FixtureRequest) -> Iterator[None]:
    """The twin that each test runs with."""
    if request.param == "compiled":
        if records.cut_compiled is None:
            pytest.skip("the compiled twin is not there, or not wanted")
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "cut_compiled", None)
        yield


FIELDS = (
    "topic", "queue_id", "flag", "queue_offset", "commit_log_offset", "sys_flag", "born_timestamp", "raw_born_host",
    "store_timestamp", "raw_store_host", "reconsume_times", "prepared_offset", "stored_body", "raw_properties",
    "stored_size", "broker_name", "delivery", "retry_topic", "decoded",
)  # fmt: skip


def record(
    body: bytes = b"hello",
    *,
    topic: bytes = b"TopicTest",
    properties: bytes = b"TAGS\x01TagA",
    sys_flag: int = 0,
    born_host: bytes = b"\x7f\0\0\x01\0\0\x13\x88",
    store_host: bytes = b"\x7f\0\0\x01\0\0\x2a\x9f",
    v2: bool = False,
    queue_offset: int = 11,
) -> bytes:
    head = struct.pack(">iiiqqiq", zlib.crc32(body) & 0x7FFFFFFF, 2, 0, queue_offset, 1024, sys_flag, 1000)
    tail = born_host + struct.pack(">q", 2000) + store_host + struct.pack(">iqi", 0, 0, len(body)) + body
    tail += struct.pack(">H" if v2 else ">B", len(topic)) + topic + struct.pack(">H", len(properties)) + properties
    return struct.pack(">iI", 8 + len(head) + len(tail), 0xDAA320AB if v2 else 0xDAA320A7) + head + tail


def packed(host: str) -> bytes:
    address, _, port = host.rpartition(":")
    return ip_address(address).packed + int(port).to_bytes(4, "big")


def test_records_of_the_java_broker_are_decoded_with_all_fields() -> None:
    (read,) = decode_records(GOLDEN)
    assert record() == GOLDEN
    assert (read.topic, read.queue_id, read.queue_offset, read.commit_log_offset) == ("TopicTest", 2, 11, 1024)
    assert (read.born_timestamp, read.born_host) == (1000, "127.0.0.1:5000")
    assert (read.store_timestamp, read.store_host) == (2000, "127.0.0.1:10911")
    assert (read.flag, read.sys_flag, read.reconsume_times, read.prepared_offset) == (0, 0, 0, 0)
    assert (read.body, read.tags, read.keys, read.properties) == (b"hello", "TagA", (), {"TAGS": "TagA"})
    assert read.stored_size == 114
    assert read.offset_message_id == read.message_id == "7F00000100002A9F0000000000000400"


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
@pytest.mark.parametrize("case", CAPTURED, ids=[case["name"] for case in CAPTURED])
def test_captured_records_have_the_content_that_java_stored(case: dict[str, Any], version: str) -> None:
    fields = case["order"]["fields"]
    (read,) = decode_records(bytes.fromhex(case["hex"][version]))
    assert {
        "topic": read.topic,
        "flag": read.flag,
        "body": read.stored_body.hex(),
        "properties": read.properties,
        "queueId": read.queue_id,
        "queueOffset": read.queue_offset,
        "physicalOffset": read.commit_log_offset,
        "sysFlag": read.sys_flag,
        "bornTimestamp": read.born_timestamp,
        "storeTimestamp": read.store_timestamp,
        "reconsumeTimes": read.reconsume_times,
        "preparedTransactionOffset": read.prepared_offset,
    }.items() <= fields.items()
    assert (read.raw_born_host, read.raw_store_host) == (packed(fields["bornHost"]), packed(fields["storeHost"]))


properties_text = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=20)


@given(
    st.lists(
        st.tuples(
            st.binary(max_size=200),
            st.dictionaries(properties_text, properties_text, max_size=4),
            st.sampled_from([0, 0x10, 0x20, 0x30]),
            st.booleans(),
        ),
        max_size=5,
    )
)
def test_records_are_decoded_as_they_were_encoded(rows: list[tuple[bytes, dict[str, str], int, bool]]) -> None:
    data = b"".join(
        record(
            body,
            properties=encode_properties(properties).encode(),
            sys_flag=sys_flag,
            born_host=bytes(range(20 if sys_flag & 0x10 else 8)),
            store_host=bytes(range(20 if sys_flag & 0x20 else 8)),
            v2=v2,
            queue_offset=index,
        )
        for index, (body, properties, sys_flag, v2) in enumerate(rows)
    )
    read = decode_records(data)
    assert [(one.body, one.properties, one.sys_flag) for one in read] == [row[:3] for row in rows]
    assert [one.queue_offset for one in read] == list(range(len(rows)))
    assert sum(one.stored_size for one in read) == len(data)


def test_every_truncated_record_is_a_fault() -> None:
    for end in range(1, len(GOLDEN)):
        with pytest.raises(FatalRemoteFault):
            decode_records(GOLDEN + GOLDEN[:end])


@pytest.mark.parametrize("trailing", [b"x", bytes(8), bytes(200), b"\0\0\0\x08\xcb\xd4\x31\x94"])
def test_trailing_bytes_that_are_not_a_record_are_a_fault(trailing: bytes) -> None:
    with pytest.raises(FatalRemoteFault):
        decode_records(GOLDEN + trailing)


@pytest.mark.parametrize(
    ("offset", "word"),
    [(0, -1), (0, 0), (0, 91), (0, 113), (0, 115), (0, 2**31 - 1), (84, -1), (84, 4), (84, 6), (84, 2**31 - 1)],
)
def test_a_wrong_length_of_record_or_body_is_a_fault(offset: int, word: int) -> None:
    data = bytearray(GOLDEN)
    struct.pack_into(">i", data, offset, word)
    with pytest.raises(FatalRemoteFault):
        decode_records(bytes(data))


def test_a_body_that_does_not_match_its_crc_is_a_fault_unless_unchecked() -> None:
    data = GOLDEN.replace(b"hello", b"hullo")
    with pytest.raises(FatalRemoteFault, match="CRC"):
        decode_records(data)
    assert decode_records(data, check_crc=False)[0].body == b"hullo"


def test_invalid_text_does_not_stop_the_queue() -> None:
    (read,) = decode_records(record(topic=b"\xff", properties=b"TAGS\x01\xff\xfe"))
    assert (read.topic, read.tags) == ("�", "��")


def test_the_class_of_the_results_can_be_chosen() -> None:
    class Mine(Record):
        pass

    assert type(decode_records(GOLDEN, Mine)[0]) is Mine


def test_ipv6_hosts_read_as_addresses() -> None:
    host = bytes(15) + b"\x01" + b"\0\0\x13\x88"
    (read,) = decode_records(record(sys_flag=0x30, born_host=host, store_host=host))
    assert read.born_host == read.store_host == "[::1]:5000"
    assert read.offset_message_id == (host + struct.pack(">q", 1024)).hex().upper()
    assert len(read.offset_message_id) == 56


def pack(kind: int, body: bytes) -> bytes:
    if kind == 0x100:
        import lz4.frame

        return bytes(lz4.frame.compress(body))
    if kind == 0x200:
        import zstandard

        return zstandard.ZstdCompressor().compress(body)
    return zlib.compress(body, 5)


@pytest.mark.parametrize("kind", [0, 0x100, 0x200, 0x300])
def test_compressed_bodies_are_unpacked_and_kept_as_stored(kind: int) -> None:
    packed = pack(kind, b"x" * 5000)
    (read,) = decode_records(record(packed, sys_flag=1 | kind))
    assert read.body == b"x" * 5000
    assert read.stored_body == packed


@pytest.mark.parametrize("kind", [0, 0x100, 0x200, 0x300])
def test_a_body_that_unpacks_beyond_the_cap_is_refused_and_one_at_the_cap_is_not(kind: int) -> None:
    packed = pack(kind, bytes(1_000_000))
    assert len(decompress(packed, 1 | kind, limit=1_000_000)) == 1_000_000
    with pytest.raises(BodyError, match="more than 999999 bytes"):
        decompress(packed, 1 | kind, limit=999_999)


@pytest.mark.parametrize("kind", [0, 0x100, 0x200, 0x300])
def test_a_damaged_or_cut_body_is_an_error_of_that_message_alone(kind: int) -> None:
    packed = pack(kind, b"a sentence that will not come out whole" * 3)
    cut, good = decode_records(record(packed[:-6], sys_flag=1 | kind) + record())
    with pytest.raises(BodyError):
        _ = cut.body
    with pytest.raises(BodyError, match="cannot be unpacked"):
        decompress(b"garbage, no stream", 1 | kind)
    assert good.body == b"hello"


@pytest.mark.parametrize("sys_flag", [0x80, 0xC0, 0x81])
@pytest.mark.parametrize("make", [Record, DeliveredRecord])
def test_a_batch_kept_as_one_record_is_no_body(sys_flag: int, make: type[Record]) -> None:
    stored = zlib.compress(b"rows")
    batch, good = decode_records(record(stored, sys_flag=sys_flag) + record(), make)
    with pytest.raises(BodyError, match="BatchCQ"):
        _ = batch.body
    assert batch.stored_body == stored
    assert good.body == b"hello"


def test_an_unknown_compressor_is_named() -> None:
    with pytest.raises(BodyError, match="unknown compressor 5"):
        decompress(b"x", 1 | 0x500)


@pytest.mark.parametrize(("kind", "module"), [(0x100, "lz4"), (0x200, "zstandard")])
def test_a_missing_compressor_names_the_extra_to_install(
    kind: int, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, module, None)
    monkeypatch.setitem(__import__("sys").modules, "lz4.frame", None)
    extras = r"'gantrymq\[compression\]' \(or 'gantrymq-client\[compression\]'"
    with pytest.raises(CompressorMissing, match=rf"package {module}: run pip install {extras}"):
        decompress(b"x", 1 | kind)


@given(st.data())
def test_both_twins_decode_and_reject_the_same_records(data: st.DataObject) -> None:
    one = st.builds(
        record, st.binary(max_size=20), topic=st.binary(max_size=20), properties=st.binary(max_size=20),
        v2=st.booleans(), queue_offset=st.integers(-(2**63), 2**63 - 1),
    )  # fmt: skip
    raw = bytearray(b"".join(data.draw(st.lists(one, max_size=4))))
    for _ in range(data.draw(st.integers(0, 2))):
        if raw:
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    given_bytes, check_crc = bytes(raw), data.draw(st.booleans())

    def outcome(read: Callable[[], list[Record]]) -> object:
        try:
            found = read()
        except FatalRemoteFault as error:
            return str(error)
        return [[getattr(each, name) for name in FIELDS] for each in found]

    class PlainRecord(records.PlainFields):
        pass

    expected = outcome(lambda: records.cut_records(given_bytes, PlainRecord, check_crc))  # type: ignore[arg-type]
    assert outcome(lambda: decode_records(given_bytes, check_crc=check_crc)) == expected


def test_both_twins_make_the_same_record_of_given_fields() -> None:
    host = bytes(range(20))
    given_fields = ("T", 1, 2, 3, 4, 0x11, 5, host, 6, host[:8], 7, 8, zlib.compress(b"body"), b"TAGS\x01a", 9)
    for kind in (Record, records.PlainFields):
        made = kind(*given_fields)
        assert (made.raw_born_host, made.raw_store_host) == (host, host[:8])
        assert (made.body, made.properties) == (b"body", {"TAGS": "a"})
        assert (made.broker_name, made.delivery, made.retry_topic, made.decoded) == ("", None, None, None)
        assert (made.queue_id, made.reconsume_times, made.prepared_offset, made.stored_size) == (1, 7, 8, 9)


def test_attributes_assigned_before_lazy_decoding_remain() -> None:
    (read,) = decode_records(GOLDEN)
    read.topic, read.reconsume_times = "Other", 7
    assert (read.queue_id, read.topic, read.reconsume_times) == (2, "Other", 7)
    with pytest.raises(AttributeError, match="'Record' object has no attribute 'nothing'"):
        read.nothing  # type: ignore[attr-defined] # noqa: B018


def test_pulled_records_have_their_broker_and_delivery() -> None:
    data = record(b"one", queue_offset=5) + record(b"two", v2=True, queue_offset=6)
    delivery = object()
    found = records.decode_pulled(data, DeliveredRecord, "broker-a", delivery)
    assert [(each.body, each.queue_offset, each.broker_name) for each in found] == [
        (b"one", 5, "broker-a"), (b"two", 6, "broker-a"),
    ]  # fmt: skip
    assert all(each.delivery is delivery and each.queue.topic == "TopicTest" for each in found)
    assert all(type(each) is DeliveredRecord for each in found)
    with pytest.raises(FatalRemoteFault, match="does not match its CRC"):
        records.decode_pulled(data.replace(b"two", b"owt"), DeliveredRecord, "broker-a", delivery)


def test_pulled_records_take_no_dictionary_of_their_own() -> None:
    """Its 200 bytes for each message would be the larger part of what a consumer holds."""
    data = record() * 2000

    # A class of its own: instances have room for each attribute that an earlier one of their class was given.
    class FreshRecord(DeliveredRecord):
        __slots__ = ()

    kind: type[DeliveredRecord] = FreshRecord
    records.decode_pulled(data, kind, "broker-a", None)
    tracemalloc.start()
    try:
        found = records.decode_pulled(data, kind, "broker-a", None)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size / len(found) < 600

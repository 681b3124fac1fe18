"""Both twins of the wire's inner loops have the same results as the slow path, which compiles nothing."""

from __future__ import annotations

import itertools
import json
import struct
from typing import Any

import attrs
import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from gantrymq.kernel.batch import Source
from gantrymq.kernel.fast import Layout, plain_requests
from gantrymq.kernel.store.log.record import BadRecord, Record
from gantrymq.kernel.store.log.record import encode as encode_record
from gantrymq.plugins.consume import plain as plain_pulls
from gantrymq.plugins.produce import plain as plain_sends
from gantrymq.remoting.codes import ONEWAY_FLAG, RESPONSE_FLAG, ResponseCode
from gantrymq.remoting.command import Command, decode, encode
from gantrymq.remoting.errors import FatalRemoteFault
from gantrymq.remoting.frame import cut_frames
from gantrymq.remoting.headers.transactions import EndTransactionHeader
from support.columns import columns_of
from support.loops import HOSTS, LONG_NAMES, PROPERTIES, SEND, Loops, Peer, SlowPath, frame, outcome

pytestmark = pytest.mark.once  # it runs both twins

compiled = Loops(
    pytest.importorskip("gantrymq.kernel.fast._requests", reason="the extension is not built"),
    pytest.importorskip("gantrymq.plugins.produce._fast", reason="the extension is not built"),
    pytest.importorskip("gantrymq.plugins.consume._fast", reason="the extension is not built"),
)
plain = Loops(plain_requests, plain_sends, plain_pulls)

LIMIT = 64 * 1024
PULL = {
    "consumerGroup": "g", "topic": "orders", "queueId": "1", "queueOffset": "7", "maxMsgNums": "32", "sysFlag": "2",
    "commitOffset": "5", "suspendTimeoutMillis": "15000", "subscription": "*", "subVersion": "1",
    "expressionType": "TAG",
}  # fmt: skip
END = {
    "producerGroup": "g", "tranStateTableOffset": "3", "commitLogOffset": "700", "commitOrRollback": "8",
    "fromTransactionCheck": "true", "msgId": "A0",
}  # fmt: skip
VALUES = st.one_of(
    st.sampled_from(
        ["", "0", "-1", "7", "01", "-0", "+1", " 1", "1.0", "1e2", "9" * 18, "9" * 19, "2147483648", "-2147483649",
         "true",         "false", "null", "TRUE", "orders", "né", *PROPERTIES]
    ),
    st.text(max_size=8),
)  # fmt: skip


@st.composite
def commands(draw: st.DrawFn) -> Command:
    code, usual = draw(
        st.sampled_from([
            (310, SEND), (310, SEND), (320, SEND), (11, PULL), (361, PULL), (10, SEND), (37, END), (999, {}),
        ])
    )  # fmt: skip
    ext = dict(usual)
    for name in draw(st.lists(st.sampled_from([*"abcdefghijklmn", *PULL, *END, "other"]), max_size=3)):
        ext[name] = draw(VALUES)
    if draw(st.booleans()):
        ext["i"] = draw(st.sampled_from(PROPERTIES))
    if ext and draw(st.integers(0, 9)) == 0:
        ext.pop(draw(st.sampled_from(sorted(ext))))
    return Command(
        code,
        ext,
        draw(st.binary(max_size=20)),
        opaque=draw(st.sampled_from([0, 1, -5, 2**31 - 1, -(2**31)])),
        flag=draw(st.sampled_from([0, 0, 0, ONEWAY_FLAG, RESPONSE_FLAG, 4])),
        language=draw(st.sampled_from(["JAVA", "PYTHON", "other"])),
        kind=draw(st.sampled_from([0, 0, 1])),
    )


def seen(result: Any) -> Any:
    requests, taken = result
    return [
        (request.code, request.topic, dict(request.ext), request.body,
         outcome(lambda r=request: r.header(EndTransactionHeader)), request.command, request.is_oneway,
         request.answered)
        for request in requests
    ], taken  # fmt: skip


def both_read(data: bytes, limit: int = LIMIT) -> Any:
    peer: Any = Peer()
    expected = outcome(lambda: seen(SlowPath.read_requests(peer, data, limit)))
    for twin, form in itertools.product((plain, compiled), (data, bytearray(data))):
        other: Any = Peer()
        found = outcome(lambda twin=twin, form=form, other=other: seen(twin.read_requests(other, form, limit)))  # type: ignore[misc]
        assert found == expected
        if expected[0] is not FatalRemoteFault:
            assert other.answers == peer.answers
    return expected


@given(st.lists(commands(), max_size=4), st.integers(0, 12), st.booleans())
def test_both_twins_decode_the_same_requests(some: list[Command], cut: int, reorder: bool) -> None:
    data = b"".join(map(encode, some))
    both_read(data[: len(data) - cut])


@given(st.lists(st.sampled_from([310, 310, 11, 37, 999, -1, 2**31, 2**70]), max_size=4))
@example([2**70])
@example([310, 2**70])
@example([2**70, 310])
def test_both_twins_know_whether_all_requests_have_the_same_code(codes: list[int]) -> None:
    usual = {310: SEND, 11: PULL, 37: END}
    data = b"".join(encode(Command(code, usual.get(code, {}))) for code in codes)
    for twin in (plain, compiled):
        peer: Any = Peer()
        requests, _ = twin.read_requests(peer, data, LIMIT)
        found = twin.common_code(requests)
        assert found == (codes[0] if len(set(codes)) == 1 else None)


@given(commands(), st.lists(st.tuples(st.integers(0, 500), st.integers(0, 255)), min_size=1, max_size=3))
def test_both_twins_reject_the_same_damaged_requests(command: Command, damage: list[tuple[int, int]]) -> None:
    data = bytearray(encode(command) * 2)
    for at, value in damage:
        data[at % len(data)] = value
    both_read(bytes(data))


def test_both_twins_reject_a_header_of_another_form_than_its_frame_declares() -> None:
    fields = b'{"a":"g","b":"orders","c":"TBW102","d":"4","e":"1","f":"0","g":"1700000000000","h":"3"}'
    header = b'{"code":310,"extFields":%s,"flag":0,"language":"JAVA","opaque":1,"version":407}' % fields
    assert not isinstance(both_read(frame(header))[0], type)
    assert both_read(frame(header, kind=1))[0] is FatalRemoteFault
    assert both_read(frame(encode(Command(310, kind=1))[8:], kind=0))[0] is FatalRemoteFault


@given(
    st.dictionaries(
        st.sampled_from(["code", "extFields", "flag", "opaque", "version", "language", "remark", "x"]), VALUES
    )
)
def test_both_twins_decode_headers_of_any_type_the_same(fields: dict[str, Any]) -> None:
    both_read(frame(json.dumps({"code": 310, "extFields": SEND, **fields}).encode()))


ANY_VALUES = st.one_of(
    VALUES, st.booleans(), st.none(), st.integers(), st.floats(allow_nan=False), st.just([1, {"a": 2}])
)


@given(
    st.sampled_from([
        (310, SEND), (10, {LONG_NAMES[name]: value for name, value in SEND.items()}), (11, PULL), (37, END), (999, {}),
    ]),
    st.dictionaries(st.sampled_from([*"abcdefghijklmn", *PULL, *END]), ANY_VALUES, max_size=4),
    st.sampled_from([(",", ":"), (", ", ": ")]),
)  # fmt: skip
def test_both_twins_decode_fields_of_any_type_the_same(
    usual: tuple[int, dict[str, str]], changes: dict[str, Any], separators: tuple[str, str]
) -> None:
    header = {"code": usual[0], "opaque": 5, "extFields": {**usual[1], **changes}}
    both_read(frame(json.dumps(header, separators=separators).encode()))


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize(
    ("code", "usual", "name"), [(310, SEND, "i"), (310, SEND, "b"), (11, PULL, "subscription"), (37, END, "msgId")]
)
def test_both_twins_decode_long_headers_the_same(code: int, usual: dict[str, str], name: str, kind: int) -> None:
    for text in ("x" * 98_705, '\x01é"' * 40_000, "\\" * 98_705):
        requests, _ = both_read(encode(Command(code, {**usual, name: text}, kind=kind)), 16 * LIMIT)
        assert requests[0][2][name] == text


EXT = json.dumps(SEND, separators=(",", ":"))[1:-1]


@pytest.mark.parametrize(
    "header",
    [
        '{"code":310,"extFields":{@}}',
        '{"extFields":{@},"code":310}',
        '{"code":310,"code":11,"extFields":{@}}',
        '{"code":310,"extFields":{@},"extFields":{}}',
        '{"code":310,"extFields":{@,"e":"2"}}',
        '{"code":310,"extFields":{@,"z":"2","z":"3"}}',
        '{"code":310,"extFields":{@},"flag":3}',
        '{"code":310,"extFields":{@},"opaque":-0}',
        '{"code":310,"extFields":{@},"opaque":2147483648}',
        '{"code":310.0,"extFields":{@}}',
        '{"code":310,"extFields":{@}} ',
        '{"code":310,"extFields":{@}},',
        '{"code":310, "extFields":{@}}',
        '{"code":310,"extFields":{@},"remark":null}',
        '{"code":310,"extFields":{@},"remark":"r","kind":1,"body":"eA=="}',
        '{"code":310,"extFields":{@},"serializeTypeCurrentRPC":"JSON","language":"GO","version":3}',
        '{"code":310,"extFields":{@,"i":"a\\u0001b\\u0002c\\u0001d"}}',
        '{"code":310,"extFields":{@,"i":"\\u00e9\\ud83d\\ude00"}}',
        '{"code":310,"extFields":{@,"i":"\\ud83d"}}',
        '{"code":310,"extFields":{@,"i":"\\x"}}',
        '{"code":310,"extFields":{@,"i":"\\u00g1"}}',
        '{"code":310,"extFields":{@,"i":"a\tb"}}',
        '{"code":310,"extFields":{@,"i":"\\',
        '{"code":310,"extFields":{@,"\\u0069":"a"}}',
        '{"code":310,"extFields":{@',
        '{"code":310,"extFields":{@,}}',
        '{"code":310,"extFields":{@,"n":"broker-a"}}',
        '{"code":310,"extFields":{}}',
        '{"code":310,"extFields":null}',
        '{"code":310}',
        "{}",
        "",
        "{",
    ],
)  # fmt: skip
def test_both_twins_decode_unusual_headers_the_same(header: str) -> None:
    header = header.replace("@", EXT)
    for raw in (header.encode(), header.encode().replace(b"orders", b"\xff\xfe"), header.encode() + b"\0"):
        both_read(frame(raw))
    both_read(frame(header.replace('"g"', '"\xe9"').encode()))


@pytest.mark.parametrize("value", [b"", b"\xff\xfe", b"\xc3", b"\xed\xa0\x80", "é".encode()])
def test_both_twins_decode_raw_bytes_in_properties_the_same(value: bytes) -> None:
    both_read(frame(b'{"code":310,"extFields":{%s,"i":"%s"}}' % (EXT.encode(), value)))
    fields = b"".join(
        struct.pack(">h", len(name)) + name.encode() + struct.pack(">i", len(raw)) + raw
        for name, raw in [*((name, text.encode()) for name, text in SEND.items()), ("i", value)]
    )
    both_read(frame(struct.pack(">hBhiiii", 310, 0, 407, 9, 0, 0, len(fields)) + fields, kind=1))


@pytest.mark.parametrize("mark", [0x02000004, 0x00FFFFFF, 0x00010001, 0x00000005])
@pytest.mark.parametrize("length", [-1, 0, 3, 4, 20, LIMIT])
def test_both_twins_reject_the_same_invalid_frames(mark: int, length: int) -> None:
    for begin in (b"", encode(Command(310, SEND))):
        for tail in (b"", b"123", bytes(40)):
            both_read(begin + struct.pack(">iI", length, mark) + tail)
            both_read(begin + struct.pack(">i", length) + tail[:3])


@given(st.binary(max_size=60))
@example(b"")
def test_both_twins_decode_any_bytes_the_same(data: bytes) -> None:
    both_read(data)


@pytest.mark.parametrize("twin", [plain, compiled])
def test_a_tied_row_is_refused_with_its_previous_row(twin: Any) -> None:
    batch = twin.new_batch(None, Source.CLIENT)
    for number in range(4):
        batch.add("orders", number, b"", b"")
        if number < 2:
            batch.tie_next_to(number)
    batch.refuse(0, 13, "odd")
    batch.refuse(3, 14, "other")
    assert (batch.statuses, batch.live) == ([13, 13, 13, 14], [])
    assert batch.remarks == {0: "odd", 1: "odd", 2: "odd", 3: "other"}


@pytest.mark.parametrize("twin", [plain, compiled])
def test_a_batch_has_the_source_of_its_rows(twin: Any) -> None:
    batch = twin.new_batch(None, Source.TIMER)
    assert batch.source == Source.TIMER
    batch.source = Source.DELAY
    assert batch.source == Source.DELAY


RECORD_PARTS = [name.name for name in attrs.fields(Record)] + ["message_id", "body_size", "properties_size"]


def parts_of(record: Any) -> Any:
    """The visible attributes of a record, or None."""
    if record is None:
        return None
    properties = [record.property_of(name) for name in (b"K", b"TAGS", b"", b"none")]
    return [getattr(record, name) for name in RECORD_PARTS], properties


@given(
    st.sampled_from(["orders", "%RETRY%g", "x" * 127]), st.integers(-1, 5), st.binary(max_size=20),
    st.sampled_from(PROPERTIES).map(str.encode), st.tuples(st.sampled_from(HOSTS), st.sampled_from(HOSTS)),
    st.integers(0, 2**63 - 1), st.lists(st.tuples(st.integers(0, 250), st.integers(0, 255)), max_size=2),
    st.integers(-3, 3), st.sampled_from([0, 0, 1]),
)  # fmt: skip
def test_both_twins_decode_a_record_the_same(
    topic: str, number: int, body: bytes, properties: bytes, hosts: tuple[bytes, bytes], large: int,
    damage: list[tuple[int, int]], cut: int, elsewhere: int,
) -> None:  # fmt: skip
    record = Record(
        topic, number, body, properties, number - 1, 8 + number, large, 500, large, hosts[0], large, hosts[1], number, 7
    )
    data = bytearray(encode_record(record))
    for at, value in damage:
        data[at % len(data)] = value
    raw = bytes(data)[:cut] if cut < 0 else bytes(data) + bytes(cut)
    results = [
        [parts_of(found) for found in twin.read_records(form, 500 - elsewhere, [500 - elsewhere, 497, -1, 500, 2**62])]
        for twin in (plain, compiled)
        for form in (raw, memoryview(raw))
    ]
    assert results[1:] == results[:1] * 3
    if not damage and cut >= 0 and not elsewhere:
        assert results[0][0][0][0] == topic
        assert results[0][1:] == [None, None, results[0][0], None]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["orders", "%RETRY%g", "x" * 127, "é"]), st.integers(-1, 5), st.binary(max_size=20),
            st.sampled_from(PROPERTIES).map(str.encode), st.tuples(st.sampled_from(HOSTS), st.sampled_from(HOSTS)),
        ),
        max_size=4,
    ),
    st.lists(st.tuples(st.integers(0, 600), st.integers(0, 255)), max_size=2),
    st.integers(-3, 90),
)  # fmt: skip
def test_both_twins_read_the_same_columns_of_delivered_records(
    rows: list[tuple[str, int, bytes, bytes, tuple[bytes, bytes]]], damage: list[tuple[int, int]], cut: int
) -> None:
    records = [
        Record(topic, number, body, properties, 1, 0, 2**40 + number, 500 + at, 7, hosts[0], 9 + at, hosts[1])
        for at, (topic, number, body, properties, hosts) in enumerate(rows)
    ]
    data = bytearray(b"".join(map(encode_record, records)))
    for at, value in damage if data else []:
        data[at % len(data)] = value
    raw = bytes(data)[:cut] if cut < 0 else bytes(data) + bytes(cut)

    def columns(twin: Any) -> Any:
        try:
            return twin.delivery_columns(raw)
        except BadRecord as error:
            return str(error)

    expected = columns(plain)
    assert columns(compiled) == expected
    if not damage and not cut:
        names = ("topic", "queue_id", "queue_offset", "offset", "store_timestamp", "body", "properties")
        assert [*expected[1:]] == [[getattr(record, name) for record in records] for name in names]
        assert expected[0][-1] == len(raw)


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("large", [2**31 - 1, 2**31])
@pytest.mark.parametrize("others", [False, True])
def test_a_stored_message_becomes_a_row(host: bytes, large: int, others: bool) -> None:
    stored = encode_record(
        Record("orders", 1, b"body", b"K\x01v", -5, 4, 3, 500, 1_700_000_000_000, host, 9, HOSTS[1], 2)
    )
    seen = []
    twins: list[Any] = [plain, compiled]
    for twin in twins:
        (record,) = twin.read_records(stored, 500, [500])
        batch = twin.new_batch(None, Source.CLIENT)
        for topic, flag in (("elsewhere", 8), ("orders", large), ("elsewhere", 0)):
            batch.add_stored(record, topic, 3, sys_flag=flag, prepared_offset=500, wait=flag == 8, origin=flag)
        batch.add_stored(record, "orders", 4)
        if others:
            batch.add_stored(record, "orders", 5, properties=b"other\x01one")
        del record
        batch.place(700, 1_700_000_000_001)
        parts = outcome(
            lambda b=batch, t=twin: t.encode_rows(b, b.live, 0, 700, 10**6, {}, Layout(HOSTS[0], 140, 1000))
        )  # type: ignore[misc]
        seen.append((b"".join(parts[0]), parts[1:], columns_of(batch), batch.waited_for, batch.remarks))
    assert seen[0] == seen[1]


@given(st.dictionaries(st.sampled_from([*END]), VALUES, max_size=3), st.sampled_from([0, 1]))
def test_both_twins_decode_typed_headers(changes: dict[str, str], kind: int) -> None:
    both_read(encode(Command(37, {**END, **changes}, kind=kind)))


@pytest.mark.parametrize("ext", ["", ',"extFields":{}', ',"extFields":null', ',"extFields":{"producerGroup":"g"}'])
def test_both_twins_report_missing_fields_of_typed_headers(ext: str) -> None:
    both_read(frame(b'{"code":37%s}' % ext.encode()))


@pytest.mark.parametrize("code", [0, 1, 17, ResponseCode.SUCCESS, ResponseCode.SLAVE_NOT_AVAILABLE, -3])
@pytest.mark.parametrize("opaque", [0, 7, -(2**31), 2**31 - 1])
@pytest.mark.parametrize("kind", [0, 1])
def test_responses_with_a_code_only_equal_those_of_the_encoder(code: int, opaque: int, kind: int) -> None:
    data = encode(Command(37, END, opaque=opaque, kind=kind))
    for twin in (plain, compiled):
        peer: Any = Peer()
        (request,), _ = twin.read_requests(peer, data, LIMIT)
        request.answer(code)
        assert peer.frames == [encode(request.command.answer(code))]


@given(
    st.lists(st.tuples(st.sampled_from([0, 0, 0, 1, ONEWAY_FLAG]), st.integers(0, 1), st.integers(0, 1)), max_size=6),
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from([10, 12, 13, 1])), max_size=2),
    st.sampled_from([None, "origins", "statuses", "offsets", "topics"]),
    st.booleans(),
)
def test_both_twins_encode_the_same_responses_to_rows(
    rows: list[tuple[int, int, int]], outcomes: list[tuple[int, int]], looked_at: str | None, placed: bool
) -> None:
    results = []
    twins: list[Any] = [plain, compiled]
    for reader, writer in itertools.product(twins, twins):
        peers: list[Any] = [Peer(), Peer()]
        batch = writer.new_batch(None, Source.CLIENT)
        for number, (flag, kind, whose) in enumerate(rows):
            data = encode(Command(37, END, opaque=number, kind=kind, flag=flag & ONEWAY_FLAG))
            (request,), _ = reader.read_requests(peers[whose], data, LIMIT)
            batch.add("orders", 0, b"", b"", origin=None if flag == 1 else request)
        if placed:
            batch.place(500, 1_700_000_000_000)
        for row, status in outcomes:
            if row < len(rows) and status in (10, 12):
                batch.statuses[row] = status
            elif row < len(rows):
                batch.refuse(row, status, "odd")
        if looked_at is not None:
            assert getattr(batch, looked_at) is not None
        writer.answer_rows(batch)
        writer.answer_rows(batch)
        results.append([peer.frames for peer in peers])
    assert results[1:] == results[:1] * 3


@pytest.mark.parametrize(("code", "ext"), [(11, PULL), (310, SEND), (37, END)])
def test_a_forgotten_request_can_be_answered(code: int, ext: dict[str, str]) -> None:
    peer: Any = Peer()
    data = encode(Command(code, ext, opaque=8)) + encode(Command(code, ext, opaque=9, flag=ONEWAY_FLAG))
    for twin in (plain, compiled):
        requests, _ = twin.read_requests(peer, data, LIMIT)
        for request in requests:
            request.forget()
            assert (request.command.ext, request.command.body, request.code) == (None, b"", code)
            request.answer(19, "nothing")
            request.answer(19, "nothing")
    frames, _ = cut_frames(b"".join(peer.frames))
    assert [(decode(one).code, decode(one).opaque, decode(one).remark) for one in frames] == [(19, 8, "nothing")] * 2


@pytest.mark.parametrize("offsets", [[2**63 - 1, 3], [2**63 - 2, 2**63 - 1], [2**63 - 1, -(2**63)], [-(2**63)], [5, 7]])
def test_both_twins_make_entries_for_queue_offsets_near_64_bits(offsets: list[int]) -> None:
    parts = []
    for number, queue_offset in enumerate(offsets):
        record = Record("orders", 1, b"x", offset=91 * number, queue_offset=queue_offset)
        parts.append(encode_record(record))
    data = b"".join(parts)
    assert {len(part) for part in parts} == {len(data) // len(offsets)}
    start = 0
    results = []
    for twin in (plain, compiled):
        data = b"".join(
            encode_record(Record("orders", 1, b"x", offset=start + len(parts[0]) * number, queue_offset=queue_offset))
            for number, queue_offset in enumerate(offsets)
        )
        batch, _ = twin.scan(data, start, 10, check_body=True)
        results.append([tuple(one) for one in twin.queue_entries(batch, {})])
    assert results[0] == results[1]
    (found,) = results[0]
    assert found[-1] == (None if len(offsets) == 1 or offsets[0] + 1 == offsets[1] else offsets)


@pytest.mark.parametrize("offsets", [[2**63 - 1], [-(2**63), 2**63 - 1], [2**63 - 1, -(2**63)]])
def test_records_beyond_64_bits_are_not_read(offsets: list[int]) -> None:
    for start in (0, 2**63 - 1, -(2**63)):
        for twin in (plain, compiled):
            assert twin.read_records(bytes(200), start, offsets) == [None] * len(offsets)

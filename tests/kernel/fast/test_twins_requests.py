"""Both twins of the wire's inner loops read, refuse and answer as the slow road does, on which nothing is hot."""

from __future__ import annotations

import itertools
import json
import struct
import sys
from collections.abc import Sequence
from typing import Any

import attrs
import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from gantrymq.kernel.batch import AppendBatch, Trait
from gantrymq.kernel.fast import Layout, plain_requests, reply_form
from gantrymq.kernel.fast.plain import encode_rows
from gantrymq.kernel.processors import Request
from gantrymq.kernel.store.log.record import Record
from gantrymq.kernel.store.log.record import encode as encode_record
from gantrymq.plugins.produce.send import Origin, SendProcessor
from gantrymq.remoting.codes import ONEWAY_FLAG, RESPONSE_FLAG, ResponseCode
from gantrymq.remoting.command import Command, decode, encode
from gantrymq.remoting.errors import FatalRemoteFault
from gantrymq.remoting.frame import cut_frames
from gantrymq.remoting.headers.send import SEND_LETTERS
from gantrymq.remoting.headers.transactions import EndTransactionHeader
from gantrymq.remoting.properties import encode_properties
from support.columns import columns_of, dispatched

pytestmark = pytest.mark.once  # it runs both twins

compiled = pytest.importorskip("gantrymq.kernel.fast._requests", reason="the extension is not built")

LIMIT = 64 * 1024
HOSTS = [b"\x7f\0\0\x01\0\0\x2a\x9f", bytes(range(20))]
SEND = {"a": "g", "b": "orders", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1700000000000", "h": "3"}
LONG_NAMES = {letter: name for name, letter in SEND_LETTERS.items()}
PULL = {
    "consumerGroup": "g", "topic": "orders", "queueId": "1", "queueOffset": "7", "maxMsgNums": "32", "sysFlag": "2",
    "commitOffset": "5", "suspendTimeoutMillis": "15000", "subscription": "*", "subVersion": "1",
    "expressionType": "TAG",
}  # fmt: skip
END = {
    "producerGroup": "g", "tranStateTableOffset": "3", "commitLogOffset": "700", "commitOrRollback": "8",
    "fromTransactionCheck": "true", "msgId": "A0",
}  # fmt: skip
PROPERTIES = [
    "", "\x02", "UNIQ_KEY\x01A0\x02WAIT\x01true", "WAIT\x01false\x02KEYS\x01k\x02", "AWAIT\x01false",
    "WAIT\x01x\x02\x02",
    "TIMER_DELAY_MS\x015\x02K\x01v", "K\x01v\x02TIMER_DEL_UNIQKEY\x01a", "XTIMER_DELIVER_MS\x011",
    "DELAY\x013", "TRAN_MSG\x01true\x02K\x01v", "CLUSTER\x01other\x02K\x01v", "XCLUSTER\x01other", "TAGS\x01é€😀",
    'quoted\x01"\\/\b\f\n\r\t', "K\x01v\x00", "\x02\x02K\x01v\x02\x02WAIT\x01true\x02\x02", "K\x01\x7f\x80",
    "x" * 32760,
    "TRAN_MSG\x01true\x02PGROUP\x01g\x02WAIT\x01true\x02TAGS\x01a", "PGROUP\x01g\x02TRAN_MSG\x01true\x02WAIT\x01false",
    "TRAN_MSG\x01TRUE", "TRAN_MSG\x01true\x02TRAN_MSG\x01false", "TRAN_MSG\x01false\x02TRAN_MSG\x01true",
    "TRAN_MSG\x01true\x02DELAY\x013", "XTRAN_MSG\x01true", "TRAN_MSG\x01", "TRAN_MSG\x01true\x02K\x02\x02K\x01\x02",
]  # fmt: skip
VALUES = st.one_of(
    st.sampled_from(
        ["", "0", "-1", "7", "01", "-0", "+1", " 1", "1.0", "1e2", "9" * 18, "9" * 19, "2147483648", "-2147483649",
         "true",         "false", "null", "TRUE", "orders", "né", *PROPERTIES]
    ),
    st.text(max_size=8),
)  # fmt: skip


class Peer:
    """A connection that keeps what is sent to it."""

    def __init__(self, host: bytes = b"\x7f\0\0\x01\0\0\x2a\x9f") -> None:
        self.host = host
        self.frames: list[bytes] = []
        self.answers: list[Command] = []

    def take_answer(self, command: Command) -> None:
        self.answers.append(command)

    def send(self, command: Command) -> None:
        self.send_bytes(encode(command))

    def send_bytes(self, data: bytes) -> None:
        frames, taken = cut_frames(data)
        assert taken == len(data)
        start = 0
        for frame in frames:
            end = start + 8 + len(frame.header) + len(frame.body)
            self.frames.append(data[start:end])
            start = end


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
        (request.code, outcome(lambda r=request: r.header(EndTransactionHeader)), request.command, request.is_oneway,
         request.answered)
        for request in requests
    ], taken  # fmt: skip


def outcome(call: Any) -> Any:
    """What a call returns, or the kind and text of what it raises."""
    try:
        return call()
    except Exception as error:
        return type(error), str(error)


class SlowRoad:
    """What the twins' functions mean: each frame a command, each request and each row for ``other``."""

    new_batch = staticmethod(plain_requests.new_batch)
    encode_rows = staticmethod(plain_requests.encode_rows)
    dispatch_batch = staticmethod(plain_requests.dispatch_batch)
    queue_entries = staticmethod(plain_requests.queue_entries)

    @staticmethod
    def read_requests(peer: Any, data: bytes, limit: int) -> Any:
        requests: list[Request] = []
        position = 0
        while True:
            length = int.from_bytes(data[position : position + 4], "big", signed=True)
            frames, taken = cut_frames(data[position : position + 4 + max(0, length)], limit)
            if not taken:
                return requests, position
            position += taken
            command = decode(frames[0])
            if command.is_response:
                peer.take_answer(command)
            else:
                requests.append(Request(peer, command))

    @staticmethod
    def add_sends(batch: AppendBatch, requests: list[Request], *given: Any) -> None:
        for request in requests:
            given[-1](batch, request)

    @staticmethod
    def answer_sends(batch: AppendBatch, form: Any, other: Any) -> None:
        row = 0
        while row < len(batch):
            row = other(batch, row)


def both_read(data: bytes, limit: int = LIMIT) -> Any:
    peer: Any = Peer()
    expected = outcome(lambda: seen(SlowRoad.read_requests(peer, data, limit)))
    for twin, form in itertools.product((plain_requests, compiled), (data, bytearray(data))):
        other: Any = Peer()
        found = outcome(lambda twin=twin, form=form, other=other: seen(twin.read_requests(other, form, limit)))  # type: ignore[misc]
        assert found == expected
        if expected[0] is not FatalRemoteFault:
            assert other.answers == peer.answers
    return expected


@given(st.lists(commands(), max_size=4), st.integers(0, 12), st.booleans())
def test_requests_are_read_alike(some: list[Command], cut: int, reorder: bool) -> None:
    data = b"".join(map(encode, some))
    both_read(data[: len(data) - cut])


@given(commands(), st.lists(st.tuples(st.integers(0, 500), st.integers(0, 255)), min_size=1, max_size=3))
def test_damaged_requests_are_refused_alike(command: Command, damage: list[tuple[int, int]]) -> None:
    data = bytearray(encode(command) * 2)
    for at, value in damage:
        data[at % len(data)] = value
    both_read(bytes(data))


def frame(header: bytes, body: bytes = b"body", kind: int = 0) -> bytes:
    return struct.pack(">iI", 4 + len(header) + len(body), kind << 24 | len(header)) + header + body


def test_a_header_of_the_other_form_than_its_frame_says_is_refused_alike() -> None:
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
def test_headers_of_any_type_are_read_alike(fields: dict[str, Any]) -> None:
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
def test_fields_of_any_type_are_read_alike(
    usual: tuple[int, dict[str, str]], changes: dict[str, Any], separators: tuple[str, str]
) -> None:
    header = {"code": usual[0], "opaque": 5, "extFields": {**usual[1], **changes}}
    both_read(frame(json.dumps(header, separators=separators).encode()))


def test_numbers_and_booleans_of_a_send_are_read_as_their_text() -> None:
    for code, names in ((310, {}), (10, LONG_NAMES)):
        ext: dict[str, Any] = {
            names.get(name, name): value for name, value in {**SEND, "k": "false", "m": "false"}.items()
        }
        typed = {name: json.loads(value) if value[0] in "0123456789f" else value for name, value in ext.items()}
        text, numbers = (
            frame(json.dumps({"code": code, "opaque": 5, "extFields": fields}, separators=(",", ":")).encode())
            for fields in (ext, typed)
        )
        assert numbers != text
        runs = [Produce(twin).run(data) for twin in (plain_requests, compiled) for data in (text, numbers)]
        assert runs[1:] == runs[:1] * 3
        (request,), _ = compiled.read_requests(Peer(), numbers, LIMIT)
        assert type(request) is compiled.SendRequest  # the fast path, not only the same meaning


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize(
    ("code", "usual", "name"), [(310, SEND, "i"), (310, SEND, "b"), (11, PULL, "subscription"), (37, END, "msgId")]
)
def test_long_headers_are_read_alike(code: int, usual: dict[str, str], name: str, kind: int) -> None:
    for text in ("x" * 98_705, '\x01é"' * 40_000, "\\" * 98_705):
        requests, _ = both_read(encode(Command(code, {**usual, name: text}, kind=kind)), 16 * LIMIT)
        assert requests[0][2].ext[name] == text


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
def test_odd_headers_are_read_alike(header: str) -> None:
    header = header.replace("@", EXT)
    for raw in (header.encode(), header.encode().replace(b"orders", b"\xff\xfe"), header.encode() + b"\0"):
        both_read(frame(raw))
    both_read(frame(header.replace('"g"', '"\xe9"').encode()))


@pytest.mark.parametrize("value", [b"", b"\xff\xfe", b"\xc3", b"\xed\xa0\x80", "é".encode()])
def test_raw_bytes_in_properties_are_read_alike(value: bytes) -> None:
    both_read(frame(b'{"code":310,"extFields":{%s,"i":"%s"}}' % (EXT.encode(), value)))
    fields = b"".join(
        struct.pack(">h", len(name)) + name.encode() + struct.pack(">i", len(raw)) + raw
        for name, raw in [*((name, text.encode()) for name, text in SEND.items()), ("i", value)]
    )
    both_read(frame(struct.pack(">hBhiiii", 310, 0, 407, 9, 0, 0, len(fields)) + fields, kind=1))


@pytest.mark.parametrize("mark", [0x02000004, 0x00FFFFFF, 0x00010001, 0x00000005])
@pytest.mark.parametrize("length", [-1, 0, 3, 4, 20, LIMIT])
def test_frames_that_cannot_be_are_refused_alike(mark: int, length: int) -> None:
    for begin in (b"", encode(Command(310, SEND))):
        for tail in (b"", b"123", bytes(40)):
            both_read(begin + struct.pack(">iI", length, mark) + tail)
            both_read(begin + struct.pack(">i", length) + tail[:3])


@given(st.binary(max_size=60))
@example(b"")
def test_anything_is_read_alike(data: bytes) -> None:
    both_read(data)


@given(st.dictionaries(st.sampled_from([*PULL]), VALUES, max_size=3), st.sampled_from([0, 1]))
def test_pull_headers(changes: dict[str, str], kind: int) -> None:
    data = encode(Command(11, {**PULL, **changes}, kind=kind))
    peer: Any = Peer()
    results = []
    for twin in (plain_requests, compiled):
        result = outcome(lambda twin=twin: twin.read_requests(peer, data, LIMIT))  # type: ignore[misc]
        if isinstance(result[0], list):
            (request,) = result[0]
            result = outcome(lambda twin=twin, request=request: twin.read_pull_header(request))  # type: ignore[misc]
        results.append(result)
    assert results[0] == results[1]


class Produce(SendProcessor):
    """The real send processor over tables that hold three topics, with either twin."""

    def __init__(self, twin: Any) -> None:
        self.twin = twin
        self._broker = type("B", (), {"name": "b"})  # type: ignore[assignment]
        self._topics = self._groups = self  # type: ignore[assignment]
        self._reply_fields = {"MSG_REGION": 'region "é"', "TRACE_ON": "true"}
        self._cluster = b"CLUSTER\x01C"
        self._max_bytes = 150
        self._id_prefix = "7F00000100002A9F"
        self._form = reply_form(self._reply_fields, self._id_prefix)

    def find(self, group: str) -> None:
        return None

    def get(self, topic: str) -> Any:
        kind = {"orders": "SINGLE_TAG", "multi": "MULTI_TAG", "%RETRY%g": "SINGLE_TAG"}.get(topic)
        return (
            None
            if kind is None
            else type("T", (), {"read_queue_nums": 2, "write_queue_nums": 3, "topic_filter_type": kind, "order": False})
        )

    def for_send(self, topic: str, default_topic: str, default_queues: int, unit_mode: bool) -> Any:
        return self.get("orders") if topic == "made" else None

    def refuses_sends(self, topic: str) -> bool:
        return topic == "SCHEDULE_TOPIC_XXXX"

    def run(
        self,
        data: bytes,
        host: bytes = HOSTS[0],
        *,
        changes: Sequence[tuple[str, int, Any]] = (),
        diverted: Sequence[tuple[int, str, dict[bytes, bytes | None]]] = (),
        refused: Sequence[int] = (),
        late: Sequence[int] = (),
        own: Sequence[tuple[int, int]] = (),
        store_host: bytes = HOSTS[0],
        room: int = 10**6,
    ) -> Any:
        """Take all requests, let a plugin change cells and refuse rows, encode, change statuses, answer, dispatch.

        A ``room`` that is too small lets the batch go on in a second file. Returns all that can be seen of it.
        """
        peers: list[Any] = [Peer(host), Peer()]
        batch = self.twin.new_batch(None)
        for peer in peers:
            requests, _ = self.twin.read_requests(peer, data, LIMIT)
            self.twin.add_sends(batch, requests, self._terms, self._cluster, self._max_bytes, Origin, self._take)
        count = len(batch)
        for name, row, value in changes if count else ():
            getattr(batch, name)[row % count] = value
        for row, topic, changed in diverted if count else ():
            batch.divert(row % count, topic, 3, changed, 12)
        told = [
            (batch.queue_of(row), batch.sizes_of(row), batch.place_of(row),
             [batch.property_of(row, name) for name in (b"K", b"TRAN_MSG", b"CLUSTER", b"none", b"")])
            for row in range(count)
        ]  # fmt: skip
        for row in refused if count else ():
            batch.refuse(row % count, 13, "odd")
        for row, queue_offset in own if count else ():
            batch.own_queue_offsets[row % count] = queue_offset
        batch.place(500, 1_700_000_000_000)
        rows, table = batch.live, {("orders", 1): 7}
        layout = Layout(store_host, 140, 1000)
        parts, index, end = self.twin.encode_rows(batch, rows, 0, 500, room, table, layout)
        if index < len(rows):
            more, index, end = self.twin.encode_rows(batch, rows, index, end, 10**6, table, layout)
            parts += more
        batch.end = end
        for row in late if count else ():
            if batch.statuses[row % count] == ResponseCode.SUCCESS:
                batch.statuses[row % count], batch.remarks[row % count] = ResponseCode.FLUSH_DISK_TIMEOUT, "late"
        places = [batch.place_of(row) for row in range(count)]
        sent = self.twin.dispatch_batch([batch])
        rules = {"multi": lambda queue_id, properties, stored: queue_id + len(properties) + stored}
        entries = self.twin.queue_entries(sent, rules)
        self.twin.answer_sends(batch, self._form, self._reply_one)
        answers = [list(cut_frames(b"".join(peer.frames))[0]) for peer in peers]
        seen = (
            columns_of(batch),
            batch.traits,
            batch.remarks,
            batch.attempts_max,
            batch.refused,
            batch.waited_for,
            len(batch),
        )
        origins = [(one.first, one.rows, one.queue_id) if isinstance(one, Origin) else None for one in batch.origins]
        return b"".join(parts), index, end, table, dispatched(sent), entries, answers, seen, origins, told, places


@st.composite
def batch_bodies(draw: st.DrawFn) -> bytes:
    """Bodies of SEND_BATCH_MESSAGE, some of them with a length that does not add up."""
    body = bytearray()
    for own in draw(
        st.lists(
            st.sampled_from(["", "K\x01v", "K\x01v\x02\x02", "DELAY\x011", "TIMER_DELAY_SEC\x011", "TRAN_MSG\x01x"]),
            max_size=4,
        )
    ):
        raw = own.encode()
        content = draw(st.binary(max_size=9))
        sizes = (22 + len(content) + len(raw), draw(st.integers(-3, 3)), len(content))
        body += struct.pack(">iiiii", sizes[0], 0, 0, sizes[1], sizes[2]) + content + struct.pack(">h", len(raw)) + raw
    if body and draw(st.integers(0, 5)) == 0:
        body[draw(st.integers(0, len(body) - 1))] ^= draw(st.sampled_from([1, 128, 255]))
    return bytes(body)


@st.composite
def sends(draw: st.DrawFn) -> Command:
    ext = {
        **SEND,
        "b": draw(st.sampled_from(["orders", "orders", "multi", "made", "none", "%RETRY%g", "SCHEDULE_TOPIC_XXXX"])),
        "e": draw(st.sampled_from(["0", "1", "2", "3"])),
        "f": draw(st.sampled_from(["0", "1", "4", "12", "16", "18", "-1"])),
        "i": draw(st.one_of(st.sampled_from(PROPERTIES), st.dictionaries(
            st.sampled_from(["WAIT", "K", "CLUSTER", "DELAY", "TIMER_DELIVER_MS", "TRAN_MSG", ""]),
            st.sampled_from(["true", "false", "0", ""])
        ).map(encode_properties))),
        **draw(st.sampled_from([{}, {"j": "3", "k": "false", "m": "false"}, {"m": "true"}, {"n": "broker-a"}])),
    }  # fmt: skip
    code = draw(st.sampled_from([310, 310, 310, 320, 10]))
    if code == 10:
        ext = {LONG_NAMES.get(name, name): value for name, value in ext.items()}
    return Command(
        code,
        ext,
        draw(st.one_of(batch_bodies(), batch_bodies(), st.binary(max_size=16), st.just(bytes(151)))),
        opaque=draw(st.integers(-(2**31), 2**31 - 1)),
        flag=draw(st.sampled_from([0, 0, 0, ONEWAY_FLAG])),
        kind=draw(st.sampled_from([0, 1])),
    )


CELLS: list[st.SearchStrategy[tuple[str, int, Any]]] = [
    st.tuples(st.just(name), st.integers(0, 20), values)
    for name, values in {
        "topics": st.sampled_from(["multi", "T", "orders", "", "é", "x" * 128, "a\0b"]),
        "queue_ids": st.sampled_from([0, 1, 5, -1, 2**31 - 1, 2**31, True]),
        "bodies": st.sampled_from([b"", b"other", bytes(141), bytearray(b"odd")]),
        "properties": st.sampled_from([b"", b"TAGS\x01a", "TAGS\x01é".encode(), b"a\0b", bytes(32768), b"x" * 32767]),
        "flags": st.sampled_from([-5, 2**31, 2**70]),
        "sys_flags": st.sampled_from([0, 4, 8, 12, 0x30, 2**31]),
        "born_timestamps": st.sampled_from([0, -(2**63), 2**63]),
        "born_hosts": st.sampled_from([*HOSTS, b"bad"]),
        "reconsume_times": st.sampled_from([3, -(2**31) - 1]),
        "prepared_offsets": st.sampled_from([9, 2**63]),
        "waits": st.booleans(),
    }.items()
]


@given(
    st.lists(sends(), max_size=6), st.sampled_from(HOSTS),
    st.lists(st.one_of(CELLS), max_size=3), st.lists(st.integers(0, 9), max_size=2),
    st.lists(st.integers(0, 9), max_size=2), st.sampled_from(HOSTS), st.sampled_from([10**6, 10**6, 300, 900]),
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from([0, 5, 2**63 - 1])), max_size=3),
    st.lists(st.tuples(
        st.integers(0, 9), st.sampled_from(["orders", "elsewhere"]),
        st.dictionaries(st.sampled_from([b"K", b"TRAN_MSG", b"CLUSTER", b"new", b""]),
                        st.sampled_from([None, b"", b"v", b"longer"]), max_size=3),
    ), max_size=2),
)  # fmt: skip
def test_sends_become_the_same_records_entries_and_answers(
    some: list[Command], host: bytes, changes: list[tuple[str, int, Any]], refused: list[int], late: list[int],
    store_host: bytes, room: int, own: list[tuple[int, int]],
    diverted: list[tuple[int, str, dict[bytes, bytes | None]]],
) -> None:  # fmt: skip
    data = b"".join(map(encode, some))
    results = [
        outcome(
            lambda twin=twin: Produce(twin).run(  # type: ignore[misc]
                data,
                host,
                changes=changes,
                refused=refused,
                late=late,
                store_host=store_host,
                room=room,
                own=own,
                diverted=diverted,
            )
        )
        for twin in (SlowRoad, plain_requests, compiled)
    ]
    assert results[1] == results[0]
    assert results[2] == results[0]


def test_a_queue_that_a_prepared_record_names_first_has_its_place_in_the_order() -> None:
    sends = [("made", 4), ("orders", 0), ("made", 0)]
    data = b"".join(encode(Command(310, {**SEND, "b": topic, "f": str(flag), "i": ""})) for topic, flag in sends)
    results = [
        Produce(twin).run(data, HOSTS[0], changes=[], refused=[], late=[], store_host=HOSTS[0], room=10**6, own=[])
        for twin in (plain_requests, compiled)
    ]
    assert results[0] == results[1]
    assert [entries.topic for entries in results[0][5]] == ["made", "orders"]


@pytest.mark.parametrize("more", [{}, {"recallHandle": "r"}])
def test_who_sent_what_is_prepared_is_told_the_queue_that_was_asked_for(more: dict[str, str]) -> None:
    results: list[Any] = []
    twins: list[Any] = [SlowRoad, plain_requests, compiled]
    for twin in twins:
        peer: Any = Peer()
        send = {**SEND, "i": "TRAN_MSG\x01true\x02PGROUP\x01g"}
        requests, _ = twin.read_requests(peer, encode(Command(310, send, opaque=4)) * 2, LIMIT)
        made = Produce(twin)
        batch = twin.new_batch(None)
        twin.add_sends(batch, requests, made._terms, made._cluster, 100, Origin, made._take)
        assert batch.traits == Trait.PREPARED
        for row in range(2):
            batch.divert(row, "elsewhere", 0, {b"REAL_QID": b"1"}, 12)
        if more:
            batch.answers[1] = more
        batch.place(500, 1_700_000_000_000)
        twin.encode_rows(batch, batch.live, 0, 500, 10**6, {}, Layout(HOSTS[0], 140, 1000))
        twin.answer_sends(batch, made._form, made._reply_one)
        results.append([decode(one).ext for one in cut_frames(b"".join(peer.frames))[0]])
    assert results[0] == results[1] == results[2]
    assert [(ext["queueId"], ext["queueOffset"]) for ext in results[0]] == [("1", "0"), ("1", "1")]
    assert ("recallHandle" in results[0][1]) == bool(more)


@pytest.mark.parametrize("twin", [plain_requests, compiled])
def test_a_row_that_follows_falls_with_the_one_before(twin: Any) -> None:
    batch = twin.new_batch(None)
    for number in range(4):
        batch.add("orders", number, b"", b"")
        if number < 2:
            batch.follow(number)
    batch.refuse(0, 13, "odd")
    batch.refuse(3, 14, "other")
    assert (batch.statuses, batch.live) == ([13, 13, 13, 14], [])
    assert batch.remarks == {0: "odd", 1: "odd", 2: "odd", 3: "other"}


RECORD_PARTS = [name.name for name in attrs.fields(Record)] + ["message_id", "body_size", "properties_size"]


def parts_of(record: Any) -> Any:
    """What can be seen of a record, if it is one."""
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
def test_one_record_is_read_alike(
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
        for twin in (plain_requests, compiled)
        for form in (raw, memoryview(raw))
    ]
    assert results[1:] == results[:1] * 3
    if not damage and cut >= 0 and not elsewhere:
        assert results[0][0][0][0] == topic
        assert results[0][1:] == [None, None, results[0][0], None]


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("large", [2**31 - 1, 2**31])
@pytest.mark.parametrize("others", [False, True])
def test_a_stored_message_becomes_a_row_again(host: bytes, large: int, others: bool) -> None:
    stored = encode_record(
        Record("orders", 1, b"body", b"K\x01v", -5, 4, 3, 500, 1_700_000_000_000, host, 9, HOSTS[1], 2)
    )
    seen = []
    twins: list[Any] = [plain_requests, compiled]
    for twin in twins:
        (record,) = twin.read_records(stored, 500, [500])
        batch = twin.new_batch(None)
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


@pytest.mark.parametrize("code", [310, 10])
def test_a_send_of_either_name_becomes_fields(code: int) -> None:
    names = LONG_NAMES if code == 10 else {}
    ext = {names.get(name, name): value for name, value in {**SEND, "i": "K\x01v"}.items()}
    peer: Any = Peer(HOSTS[1])
    requests, _ = compiled.read_requests(peer, encode(Command(code, ext, b"x")), LIMIT)
    batch, others = compiled.new_batch(None), []
    compiled.add_sends(batch, requests, lambda topic: (4, 0), b"C\x01c", 100, Origin, lambda *row: others.append(row))
    assert (batch.born_hosts, batch.sys_flags, others) == ([HOSTS[1]], [0x10], [])


def test_a_send_that_waits_keeps_no_more_alive_than_its_frame() -> None:
    peer: Any = Peer()
    small = encode(Command(310, {**SEND, "i": "K\x01v"}, b"body"))
    data = encode(Command(999, {}, bytes(30_000))) + small
    requests, _ = compiled.read_requests(peer, data, LIMIT)
    batch = compiled.new_batch(None)
    compiled.add_sends(batch, requests[1:], lambda topic: (4, 0), b"C\x01c", 100, Origin, None)
    del requests
    assert sys.getrefcount(data) == 2
    assert (batch.bodies, batch.properties) == ([b"body"], [b"K\x01v\x02C\x01c"])
    assert batch.origins[0].command.body == b"body"


@pytest.mark.parametrize(("more", "traits"), [("", 0), ("\x02TRAN_MSG\x01true", Trait.PREPARED)])
@pytest.mark.parametrize("twin", [plain_requests, compiled])
def test_a_usual_send_never_becomes_a_command(twin: Any, more: str, traits: int) -> None:
    peer: Any = Peer()
    send = {**SEND, "i": f"K\x01v\x02WAIT\x01true{more}"}
    requests, _ = twin.read_requests(peer, encode(Command(310, send, b"x")), LIMIT)
    batch = twin.new_batch(None)
    others: list[Any] = []
    twin.add_sends(batch, requests, lambda topic: (4, 0), b"C\x01c", 100, Origin, lambda *row: others.append(row))
    stored = f"{send['i']}\x02C\x01c" if traits else "K\x01v\x02C\x01c"
    assert (batch.properties, batch.traits, others) == ([stored.encode()], traits, [])


@given(st.dictionaries(st.sampled_from([*END]), VALUES, max_size=3), st.sampled_from([0, 1]))
def test_typed_headers(changes: dict[str, str], kind: int) -> None:
    both_read(encode(Command(37, {**END, **changes}, kind=kind)))


@pytest.mark.parametrize("ext", ["", ',"extFields":{}', ',"extFields":null', ',"extFields":{"producerGroup":"g"}'])
def test_typed_headers_that_miss_fields(ext: str) -> None:
    both_read(frame(b'{"code":37%s}' % ext.encode()))


@pytest.mark.parametrize("code", [0, 1, 17, ResponseCode.SUCCESS, ResponseCode.SLAVE_NOT_AVAILABLE, -3])
@pytest.mark.parametrize("opaque", [0, 7, -(2**31), 2**31 - 1])
@pytest.mark.parametrize("kind", [0, 1])
def test_answers_of_a_code_alone_are_what_the_encoder_writes(code: int, opaque: int, kind: int) -> None:
    data = encode(Command(37, END, opaque=opaque, kind=kind))
    for twin in (plain_requests, compiled):
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
def test_rows_are_answered_alike(
    rows: list[tuple[int, int, int]], outcomes: list[tuple[int, int]], looked_at: str | None, placed: bool
) -> None:
    results = []
    twins: list[Any] = [plain_requests, compiled]
    for reader, writer in itertools.product(twins, twins):
        peers: list[Any] = [Peer(), Peer()]
        batch = writer.new_batch(None)
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
def test_an_answer_and_a_forgotten_request(code: int, ext: dict[str, str]) -> None:
    peer: Any = Peer()
    data = encode(Command(code, ext, opaque=8)) + encode(Command(code, ext, opaque=9, flag=ONEWAY_FLAG))
    for twin in (plain_requests, compiled):
        requests, _ = twin.read_requests(peer, data, LIMIT)
        for request in requests:
            request.forget()
            assert (request.command.ext, request.command.body, request.code) == (None, b"", code)
            request.answer(19, "nothing")
            request.answer(19, "nothing")
    frames, _ = cut_frames(b"".join(peer.frames))
    assert [(decode(one).code, decode(one).opaque, decode(one).remark) for one in frames] == [(19, 8, "nothing")] * 2


@given(
    st.lists(st.tuples(st.binary(max_size=30), st.booleans()), min_size=1, max_size=8),
    st.sampled_from([b"\x7f\0\0\x01\0\0\x2a\x9f", bytes(range(20))]),
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from([0, 0, 0, 0, 1, -1, 7]), st.integers(0, 3)), max_size=12),
    st.lists(st.tuples(st.integers(0, 1500), st.integers(1, 255)), max_size=2),
    st.builds(
        plain_requests.PullLimits,
        st.integers(1, 8),
        st.integers(0, 1500),
        st.integers(1, 8),
        st.integers(0, 1500),
        st.integers(0, 1500),
    ),
    st.integers(0, 400),
    st.sampled_from([None, {1, 2}, set()]),
    st.sampled_from([0, 0, 5, 300, 5000]),
    st.one_of(st.none(), st.integers(0, 1000)),
    st.one_of(
        st.none(),
        st.builds(
            plain_requests.QueuePart,
            st.sampled_from([b"orders", b"orders", b"order", b"others", b""]),
            st.sampled_from([1, 1, 1, 2]),
            st.sampled_from([0, 0, 1, -1, 2**62]),
            st.booleans(),
        ),
    ),
)
def test_gather(
    bodies: list[tuple[bytes, bool]], store_host: bytes, asked: list[tuple[int, int, int]],
    damage: list[tuple[int, int]], limits: plain_requests.PullLimits, oldest: int, wanted: set[int] | None, ahead: int,
    hole: int | None, part: plain_requests.QueuePart | None,
) -> None:  # fmt: skip
    rows = AppendBatch()
    for body, six in bodies:
        rows.add("orders", 1, body, b"K\x01v", born_host=bytes(20) if six else bytes(8))
    rows.offsets, rows.sizes, rows.queue_offsets = ([0] * len(bodies) for _ in range(3))
    start = 100
    parts, _, _ = encode_rows(rows, rows.live, 0, start, 10**6, {}, Layout(store_host, 4096, 8192))
    log = bytearray(b"".join(parts))
    for at, flip in damage:
        log[at % len(log)] ^= flip
    entries = b""
    for number, more, code in asked:
        row = number % len(bodies)
        entries += struct.pack(">qiq", rows.offsets[row], rows.sizes[row] + more if number < 9 else 0x7FFFFFFF, code)
    results = []
    for twin in (plain_requests, compiled):
        told: list[int] = []

        def window(number: int, offset: int, size: int, told: list[int] = told) -> memoryview | None:
            behind = offset - start + size
            if behind > len(log) or (hole is not None and offset <= hole < offset + size):
                return None
            return memoryview(log)[offset - start : behind + (ahead if hole is None and not told else 0)]

        matches = None if wanted is None else wanted.__contains__
        found, *counts = twin.gather(entries, limits, oldest, matches, window, told.append, part)
        results.append((b"".join(found), counts, told))
    assert results[0] == results[1]


@pytest.mark.parametrize("at", [2**63 - 1, 2**63 - 50, -(2**63), -1])
@pytest.mark.parametrize("size", [120, 2**31 - 2, -(2**31), 0])
def test_an_entry_that_points_beyond_64_bits_is_left_out(at: int, size: int) -> None:
    rows = AppendBatch()
    for body in (b"one", b"two"):
        rows.add("orders", 1, body, b"")
    rows.offsets, rows.sizes, rows.queue_offsets = ([0] * 2 for _ in range(3))
    parts, _, _ = encode_rows(rows, rows.live, 0, 0, 10**6, {}, Layout(HOSTS[0], 4096, 8192))
    log = b"".join(parts)
    asked = [(0, rows.sizes[0]), (at, size), (rows.offsets[1], rows.sizes[1])]
    entries = b"".join(struct.pack(">qiq", *one, 0) for one in asked)
    limits = plain_requests.PullLimits(8, 1 << 40, 8, 1 << 40, 0)
    for twin in (plain_requests, compiled):
        told: list[int] = []
        found, scanned, removed, messages = twin.gather(
            entries,
            limits,
            0,
            None,
            lambda number, offset, size: log[offset:] if offset >= 0 and offset + size <= len(log) else None,
            told.append,
            None,
        )
        assert (b"".join(found), scanned, removed, messages) == (log, 3, False, 2)
        assert told == ([1] if at < 0 else [])


@pytest.mark.parametrize("offsets", [[2**63 - 1, 3], [2**63 - 2, 2**63 - 1], [2**63 - 1, -(2**63)], [-(2**63)], [5, 7]])
def test_queue_offsets_at_the_end_of_64_bits_make_entries_alike(offsets: list[int]) -> None:
    parts = []
    for number, queue_offset in enumerate(offsets):
        record = Record("orders", 1, b"x", offset=91 * number, queue_offset=queue_offset)
        parts.append(encode_record(record))
    data = b"".join(parts)
    assert {len(part) for part in parts} == {len(data) // len(offsets)}
    start = 0
    results = []
    for twin in (plain_requests, compiled):
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
def test_records_are_not_looked_for_beyond_64_bits(offsets: list[int]) -> None:
    for start in (0, 2**63 - 1, -(2**63)):
        for twin in (plain_requests, compiled):
            assert twin.read_records(bytes(200), start, offsets) == [None] * len(offsets)

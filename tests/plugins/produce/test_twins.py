"""Both twins of the loops of sends store and respond as the slow path does."""

from __future__ import annotations

import itertools
import json
import struct
import sys
from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from gantrymq.kernel.batch import Source, Trait, finish_settled
from gantrymq.kernel.fast import Layout, plain_requests
from gantrymq.plugins.produce import plain as plain_sends
from gantrymq.plugins.produce.plain import reply_form
from gantrymq.plugins.produce.send import Origin, SendProcessor
from gantrymq.remoting.codes import ONEWAY_FLAG, ResponseCode
from gantrymq.remoting.command import Command, decode, encode
from gantrymq.remoting.frame import cut_frames
from gantrymq.remoting.properties import encode_properties
from support.columns import columns_of, dispatched
from support.loops import HOSTS, LONG_NAMES, PROPERTIES, SEND, Loops, Peer, SlowPath, frame, outcome

pytestmark = pytest.mark.once  # it runs both twins

compiled = Loops(
    pytest.importorskip("gantrymq.kernel.fast._requests", reason="the extension is not built"),
    pytest.importorskip("gantrymq.plugins.produce._fast", reason="the extension is not built"),
)
plain = Loops(plain_requests, plain_sends)

LIMIT = 64 * 1024


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
        settled: Sequence[tuple[int, int | None]] = (),
        late: Sequence[int] = (),
        own: Sequence[tuple[int, int]] = (),
        store_host: bytes = HOSTS[0],
        room: int = 10**6,
    ) -> Any:
        """Take all requests, let a plugin change cells, refuse and settle rows (with the message at an offset, or with
        the row before), encode, change statuses, answer, dispatch.

        A ``room`` that is too small lets the batch go on in a second file. Returns all that can be seen of it.
        """
        peers: list[Any] = [Peer(host), Peer()]
        batch = self.twin.new_batch(None, Source.CLIENT)
        for peer in peers:
            requests, _ = self.twin.read_requests(peer, data, LIMIT)
            self.twin.add_sends(batch, requests, self._terms, self._cluster, self._max_bytes, Origin, self._take)
        count = len(batch)
        for name, row, value in changes if count else ():
            getattr(batch, name)[row % count] = value
        for row, topic, changed in diverted if count else ():
            batch.divert(row % count, topic, 3, changed, 12)
        seen_rows = [
            (batch.queue_of(row), batch.sizes_of(row), batch.place_of(row),
             [batch.property_of(row, name) for name in (b"K", b"TRAN_MSG", b"CLUSTER", b"none", b"")])
            for row in range(count)
        ]  # fmt: skip
        for row in refused if count else ():
            batch.refuse(row % count, 13, "odd")
        batch.start = 500
        for row, place in settled if count else ():
            wanted = row % count
            if batch.statuses[wanted] != ResponseCode.SUCCESS:
                continue
            if place is not None:
                batch.settle(wanted, offset=place, queue_id=5, queue_offset=6)
            elif wanted and (wanted - 1 in batch.settled or batch.statuses[wanted - 1] == ResponseCode.SUCCESS):
                batch.settle_as(wanted, wanted - 1)
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
        finish_settled(batch)
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
            batch.settled,
            batch.waited_for,
            len(batch),
        )
        origins = [(one.first, one.rows, one.queue_id) if isinstance(one, Origin) else None for one in batch.origins]
        return b"".join(parts), index, end, table, dispatched(sent), entries, answers, seen, origins, seen_rows, places


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
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from([None, 0, 499])), max_size=3),
    st.lists(st.integers(0, 9), max_size=2), st.sampled_from(HOSTS), st.sampled_from([10**6, 10**6, 300, 900]),
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from([0, 5, 2**63 - 1])), max_size=3),
    st.lists(st.tuples(
        st.integers(0, 9), st.sampled_from(["orders", "elsewhere"]),
        st.dictionaries(st.sampled_from([b"K", b"TRAN_MSG", b"CLUSTER", b"new", b""]),
                        st.sampled_from([None, b"", b"v", b"longer"]), max_size=3),
    ), max_size=2),
)  # fmt: skip
def test_sends_become_the_same_records_entries_and_answers(
    some: list[Command], host: bytes, changes: list[tuple[str, int, Any]], refused: list[int],
    settled: list[tuple[int, int | None]], late: list[int], store_host: bytes, room: int, own: list[tuple[int, int]],
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
                settled=settled,
                late=late,
                store_host=store_host,
                room=room,
                own=own,
                diverted=diverted,
            )
        )
        for twin in (SlowPath, plain, compiled)
    ]
    assert results[1] == results[0]
    assert results[2] == results[0]


def test_a_queue_that_a_prepared_record_names_first_has_its_place_in_the_order() -> None:
    sends = [("made", 4), ("orders", 0), ("made", 0)]
    data = b"".join(encode(Command(310, {**SEND, "b": topic, "f": str(flag), "i": ""})) for topic, flag in sends)
    results = [
        Produce(twin).run(data, HOSTS[0], changes=[], refused=[], late=[], store_host=HOSTS[0], room=10**6, own=[])
        for twin in (plain, compiled)
    ]
    assert results[0] == results[1]
    assert [entries.topic for entries in results[0][5]] == ["made", "orders"]


@pytest.mark.parametrize("more", [{}, {"recallHandle": "r"}])
def test_senders_of_prepared_messages_get_the_requested_queue(more: dict[str, str]) -> None:
    results: list[Any] = []
    twins: list[Any] = [SlowPath, plain, compiled]
    for twin in twins:
        peer: Any = Peer()
        send = {**SEND, "i": "TRAN_MSG\x01true\x02PGROUP\x01g"}
        requests, _ = twin.read_requests(peer, encode(Command(310, send, opaque=4)) * 2, LIMIT)
        made = Produce(twin)
        batch = twin.new_batch(None, Source.CLIENT)
        twin.add_sends(batch, requests, made._terms, made._cluster, 100, Origin, made._take)
        assert batch.traits == Trait.PREPARED
        for row in range(2):
            batch.divert(row, "elsewhere", 0, {b"REAL_QID": b"1"}, 12)
        if more:
            batch.response_fields[1] = more
        batch.place(500, 1_700_000_000_000)
        twin.encode_rows(batch, batch.live, 0, 500, 10**6, {}, Layout(HOSTS[0], 140, 1000))
        twin.answer_sends(batch, made._form, made._reply_one)
        results.append([decode(one).ext for one in cut_frames(b"".join(peer.frames))[0]])
    assert results[0] == results[1] == results[2]
    assert [(ext["queueId"], ext["queueOffset"]) for ext in results[0]] == [("1", "0"), ("1", "1")]
    assert ("recallHandle" in results[0][1]) == bool(more)


def test_an_ordinary_sender_gets_the_fields_that_a_plugin_adds_to_its_response() -> None:
    data = b"".join(encode(Command(310, {**SEND, "i": ""}, opaque=opaque)) for opaque in range(3))
    results: list[Any] = []
    twins: list[Any] = [SlowPath, plain, compiled]
    for twin in twins:
        peer: Any = Peer()
        requests, _ = twin.read_requests(peer, data, LIMIT)
        made = Produce(twin)
        batch = twin.new_batch(None, Source.CLIENT)
        twin.add_sends(batch, requests, made._terms, made._cluster, 100, Origin, made._take)
        batch.response_fields[1] = {"traceId": "t"}
        batch.place(500, 1_700_000_000_000)
        twin.encode_rows(batch, batch.live, 0, 500, 10**6, {}, Layout(HOSTS[0], 140, 1000))
        twin.answer_sends(batch, made._form, made._reply_one)
        results.append([decode(one).ext for one in cut_frames(b"".join(peer.frames))[0]])
    assert results[0] == results[1] == results[2]
    assert [ext.get("traceId") for ext in results[0]] == [None, "t", None]


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
        runs = [Produce(twin).run(data) for twin in (plain, compiled) for data in (text, numbers)]
        assert runs[1:] == runs[:1] * 3
        (request,), _ = compiled.read_requests(Peer(), numbers, LIMIT)
        assert type(request) is compiled.SendRequest  # the fast path, not only the same meaning


@pytest.mark.parametrize("code", [310, 10])
def test_a_send_of_either_name_becomes_fields(code: int) -> None:
    names = LONG_NAMES if code == 10 else {}
    ext = {names.get(name, name): value for name, value in {**SEND, "i": "K\x01v"}.items()}
    peer: Any = Peer(HOSTS[1])
    requests, _ = compiled.read_requests(peer, encode(Command(code, ext, b"x")), LIMIT)
    batch, others = compiled.new_batch(None, Source.CLIENT), []
    compiled.add_sends(batch, requests, lambda topic: (4, 0), b"C\x01c", 100, Origin, lambda *row: others.append(row))
    assert (batch.born_hosts, batch.sys_flags, others) == ([HOSTS[1]], [0x10], [])


def test_a_send_that_waits_keeps_no_more_alive_than_its_frame() -> None:
    peer: Any = Peer()
    small = encode(Command(310, {**SEND, "i": "K\x01v"}, b"body"))
    data = encode(Command(999, {}, bytes(30_000))) + small
    requests, _ = compiled.read_requests(peer, data, LIMIT)
    batch = compiled.new_batch(None, Source.CLIENT)
    compiled.add_sends(batch, requests[1:], lambda topic: (4, 0), b"C\x01c", 100, Origin, None)
    del requests
    assert sys.getrefcount(data) == 2
    assert (batch.bodies, batch.properties) == ([b"body"], [b"K\x01v\x02C\x01c"])
    assert batch.origins[0].command.body == b"body"


def test_a_request_that_is_no_send_keeps_no_send_alive() -> None:
    data = encode(Command(310, SEND, bytes(30_000))) + encode(Command(999, {"a": "b"}))
    requests, _ = compiled.read_requests(Peer(), data, LIMIT)
    del requests[0]
    assert sys.getrefcount(data) == 2
    assert requests[0].ext == {"a": "b"}


def test_a_send_that_waits_for_its_turn_keeps_no_other_send_alive() -> None:
    data = encode(Command(310, SEND, bytes(30_000))) + encode(Command(310, SEND, b"own"))
    requests, _ = compiled.read_requests(Peer(), data, LIMIT)
    requests[1].own_frame()
    del requests[0]
    assert sys.getrefcount(data) == 2
    assert (requests[0].ext, requests[0].command.body) == (SEND, b"own")


@pytest.mark.parametrize(("more", "traits"), [("", 0), ("\x02TRAN_MSG\x01true", Trait.PREPARED)])
@pytest.mark.parametrize("twin", [plain, compiled])
def test_a_usual_send_never_becomes_a_command(twin: Any, more: str, traits: int) -> None:
    peer: Any = Peer()
    send = {**SEND, "i": f"K\x01v\x02WAIT\x01true{more}"}
    requests, _ = twin.read_requests(peer, encode(Command(310, send, b"x")), LIMIT)
    batch = twin.new_batch(None, Source.CLIENT)
    others: list[Any] = []
    twin.add_sends(batch, requests, lambda topic: (4, 0), b"C\x01c", 100, Origin, lambda *row: others.append(row))
    stored = f"{send['i']}\x02C\x01c" if traits else "K\x01v\x02C\x01c"
    assert (batch.properties, batch.traits, others) == ([stored.encode()], traits, [])


USUAL_HEADER = json.dumps(
    {
        "code": 310,
        "extFields": {**SEND, "i": "K\x01é", "n": "b"},
        "flag": 0,
        "language": "JAVA",
        "opaque": 9,
        "version": 407,
    },
    separators=(",", ":"),
    ensure_ascii=False,
).encode()
EDITS = [
    b"", b"0", b"7", b"-", b"12345", b'"', b'""', b"\\", b'\\"', b"\\u0001", b"x", b"long text" * 3, "é€".encode(),
    b"\xff", b"\x1f", b",", b":", b"{", b"}", b'"x":"y",', b'","x":"y', b'"a":"2",', b"true", b"null", b" ",
]  # fmt: skip


@pytest.mark.parametrize("removed", [0, 1, 3])
def test_a_header_that_differs_anywhere_from_the_previous_one_is_decoded_correctly(removed: int) -> None:
    for at in range(len(USUAL_HEADER)):
        for added in EDITS[at % 3 :: 3]:  # all of them at each value, and each third at each place
            changed = USUAL_HEADER[:at] + added + USUAL_HEADER[at + removed :]
            data = frame(USUAL_HEADER) + frame(changed) + frame(USUAL_HEADER)
            slow, fast = (
                outcome(lambda twin=twin, data=data: Produce(twin).run(data)) for twin in (SlowPath, compiled)
            )  # type: ignore[misc]
            assert fast == slow, changed


def test_values_of_headers_may_change_their_length() -> None:
    texts = ["", "1", "K\x0112345678", "K\x01" + "x" * 8 + '"', "K\x01" + "x" * 900, "\\n" * 5, "K\x01" + "é" * 9]
    for one, other in itertools.product(texts, texts):
        data = b"".join(
            encode(Command(310, {**SEND, "i": text, "e": str(len(text) % 3)}, b"body", opaque=len(text)))
            for text in (one, other, one)
        )
        slow, fast = (Produce(twin).run(data) for twin in (SlowPath, compiled))
        assert fast == slow

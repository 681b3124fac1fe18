"""Both twins of the inner loops decode, match and end transactions the same, on plain and compiled rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from gantrymq.kernel import fast as kernel_fast
from gantrymq.kernel.batch import AppendBatch, Source
from gantrymq.kernel.fast import plain_requests
from gantrymq.kernel.layouts import ENTRY
from gantrymq.kernel.processors import Request
from gantrymq.kernel.store.log.record import Record
from gantrymq.kernel.store.log.record import encode as encode_record
from gantrymq.plugins.transaction import fast as loops
from gantrymq.plugins.transaction import plain
from gantrymq.plugins.transaction.half.rows import STATE_BITS, half_message_changes
from gantrymq.plugins.transaction.half.strategy import HalfStrategy
from gantrymq.remoting.codes import ONEWAY_FLAG
from gantrymq.remoting.command import Command, decode, encode
from gantrymq.remoting.frame import cut_frames
from gantrymq.remoting.names import TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC
from gantrymq.testing.memory_env import MemoryEnv
from gantrymq.testing.tinystore import TINY
from gantrymq.testing.transacted import COMMIT, GROUP, ROLLBACK, Half, Producer, TransactedStore, received
from support.columns import GIVEN
from support.loops import select_twin

pytestmark = pytest.mark.once  # it runs both twins

compiled = pytest.importorskip("gantrymq.plugins.transaction._fast", reason="the extension is not built")
compiled_kernel = pytest.importorskip("gantrymq.kernel.fast._requests", reason="the extension is not built")

KERNELS: list[Any] = [plain_requests, compiled_kernel]
TWINS: list[Any] = [plain, compiled]
END = {
    "producerGroup": "g", "tranStateTableOffset": "3", "commitLogOffset": "700", "commitOrRollback": "8",
    "fromTransactionCheck": "true", "msgId": "A0",
}  # fmt: skip
VALUES = st.sampled_from(
    ["", "0", "-1", "3", "03", "+3", " 3", "8", "12", "4", "1e3", "9" * 18, "9" * 19, "2147483648", "true", "false",
     "TRUE", "null", "g", "né", 'a"b']
)  # fmt: skip


@st.composite
def ends(draw: st.DrawFn) -> Command:
    ext = {**END, "commitOrRollback": draw(st.sampled_from(["8", "12", "0", "4"]))}
    for name in draw(st.lists(st.sampled_from([*END, "transactionId", "topic", "bname", "other"]), max_size=2)):
        ext[name] = draw(VALUES)
    if draw(st.integers(0, 5)) == 0:
        ext.pop(draw(st.sampled_from(sorted(ext))))
    flag = draw(st.sampled_from([0, 0, ONEWAY_FLAG]))
    return Command(37, ext, opaque=draw(st.integers(0, 9)), flag=flag, kind=draw(st.sampled_from([0, 0, 1])))


class Refused:
    """Keeps what is refused."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, str]] = []

    def __call__(self, request: Request, fault: Any) -> None:
        self.seen.append((request.command.opaque, fault.code, fault.remark))


def fields_of(endings: Any) -> list[Any]:
    return [
        (one.request.command.opaque, one.group, one.table_offset, one.commit_log_offset, one.is_commit, one.row)
        for one in endings
    ]


@given(st.lists(ends(), max_size=5))
def test_both_twins_decode_ends_the_same(some: list[Command]) -> None:
    peer: Any = Producer()
    slow: list[Request] = [Request(peer, decode(frame)) for frame in cut_frames(b"".join(map(encode, some)))[0]]
    results = []
    for twin in TWINS:
        for requests in (
            slow,
            *(kernel.read_requests(peer, b"".join(map(encode, some)), 4096)[0] for kernel in KERNELS),
        ):
            refuse = Refused()
            results.append((fields_of(twin.read_endings(requests, refuse)), refuse.seen))
    assert results[1:] == results[:1] * 5


PROPERTIES = [
    b"", b"PGROUP\x01g", b"K\x01v\x02PGROUP\x01g\x02", b"PGROUP\x01\x02PGROUP\x01g", b"XPGROUP\x01g", b"PGROUP\x01gg",
    b"PGROUP\x01G", b"PGROUP\x01g\x02PGROUP\x01x", b"PGROUP",
]  # fmt: skip


@given(
    st.sampled_from(["g", "gg", "", "né"]),
    st.integers(2, 4),
    st.lists(
        st.tuples(st.sampled_from(PROPERTIES), st.integers(2, 4), st.sampled_from(["orders", "other", None])),
        max_size=4,
    ),
)
def test_both_twins_match_ends_with_their_records_the_same(
    group: str, named: int, given: list[tuple[bytes, int, str | None]]
) -> None:
    peer: Any = Producer()
    end = Command(37, {**END, "producerGroup": group, "tranStateTableOffset": str(named)})
    data = b"".join(encode(Command(37, end.ext, opaque=number)) for number in range(len(given)))
    results = []
    for twin in TWINS:
        for kernel in KERNELS:
            requests, _ = kernel.read_requests(peer, data, 4096)
            records = []
            for properties, number, topic in given:
                record = Record(topic or "", 0, b"body", properties, number, offset=500, store_timestamp=1)
                found = None if topic is None else kernel.read_records(encode_record(record), 500, [500])[0]
                records.append(found)
            refuse = Refused()
            endings = twin.read_endings(requests, refuse)
            matching = twin.match_records(endings, records, lambda record: record.topic == "orders", refuse)
            results.append((fields_of(matching), [one.record.properties for one in matching], refuse.seen))
    assert results[1:] == results[:1] * 3


@given(
    st.lists(
        st.tuples(
            st.sampled_from([-(2**63), -1, 0, 1, 2, 3, 4, 5, 2**62, 2**63 - 1]), st.sampled_from([0, 700, 800, 900, -1])
        ),
        max_size=6,
    ),
    st.lists(
        st.sampled_from([ENTRY.pack(700, 91, 5), ENTRY.pack(800, 91, -1), ENTRY.pack(0, 0x7FFFFFFF, 0)]), max_size=4
    ),
    st.sampled_from([0, 1, 3, 2**62]),
    st.binary(max_size=19),
)
@example([(2**63 - 1, 700)], [ENTRY.pack(700, 91, 5)] * 4, 2**62, b"")
@example([(0, 0), (1, 700), (1, 700)], [ENTRY.pack(0, 0x7FFFFFFF, 0), ENTRY.pack(700, 91, 5)], 0, b"")
def test_both_twins_find_the_ends_in_the_op_queue_the_same(
    named: list[tuple[int, int]], entries: list[bytes], first: int, rest: bytes
) -> None:
    peer: Any = Producer()
    data = b"".join(
        encode(Command(37, {**END, "tranStateTableOffset": str(number), "commitLogOffset": str(offset)}))
        for number, offset in named
    )
    results = []
    for twin in TWINS:
        for kernel in KERNELS:
            for reader in TWINS:
                endings = reader.read_endings(kernel.read_requests(peer, data, 1 << 20)[0], Refused())
                both = twin.split_named(endings, b"".join(entries) + rest, first)
                results.append([fields_of(some) for some in both])
    assert results[1:] == results[:1] * 7
    expected = [
        0 <= number - first < len(entries) and entries[number - first][:12] == ENTRY.pack(offset, 91, 0)[:12]
        for number, offset in named
    ]
    assert len(results[0][0]) == sum(expected)


HALVES = [
    b"TRAN_MSG\x01true\x02PGROUP\x01g", b"PGROUP\x01g\x02TRAN_MSG\x01true\x02K\x01v", b"TRAN_MSG\x01true",
    b"TRAN_MSG\x01TRUE\x02PGROUP\x01g", b"TRAN_MSG\x01false\x02PGROUP\x01g", b"TRAN_MSG\x01trues\x02PGROUP\x01g", b"",
    b"K\x01v", b"TRAN_MSG\x01true\x02PGROUP\x01g\x02DELAY\x010", b"TRAN_MSG\x01true\x02PGROUP\x01g\x02DELAY\x013",
    b"TRAN_MSG\x01true\x02PGROUP\x01\x02K\x01v", b"TRAN_MSG\x01true\x02PGROUP\x01g\x02DELAY\x01",
    b"TRAN_MSG\x01true\x02PGROUP\x01g\x02REAL_TOPIC\x01x\x02TRAN_PREPARED_QUEUE_OFFSET\x014",
]  # fmt: skip


@given(
    st.lists(
        st.tuples(st.sampled_from(["orders", "other", "né"]), st.integers(0, 2), st.sampled_from(HALVES), st.binary(
            max_size=40), st.sampled_from([0, 0, 3])),
        max_size=6,
    ),
    st.lists(st.integers(0, 5), max_size=1),
    st.lists(st.sampled_from([*GIVEN, "statuses"]), max_size=1),
)  # fmt: skip
@example([("orders", 0, HALVES[0], b"x" * 40, 0)], [], [])
def test_both_twins_find_and_divert_half_messages_the_same(
    rows: list[tuple[str, int, bytes, bytes, int]], refused: list[int], looked_at: list[str]
) -> None:
    results = []
    for twin in TWINS:
        for kernel in KERNELS:
            batch = kernel.new_batch(None, Source.CLIENT)
            for topic, queue_id, properties, body, times in rows:
                batch.add(topic, queue_id, body, properties, sys_flag=5, reconsume_times=times)
            for name in looked_at:
                assert len(getattr(batch, name)) == len(rows)
            for row in refused:
                if row < len(rows):
                    batch.refuse(row, 13, "odd")
            found = twin.half_rows(batch)
            large = twin.divert_rows(batch, found, TRANS_HALF_TOPIC, half_message_changes, STATE_BITS, 100)
            columns = [list(getattr(batch, name)) for name in (*GIVEN, "statuses")]
            results.append((found, large, columns, batch.remarks))
    assert results[1:] == results[:1] * 3


# ---------------------------------------------------------------------------------------------------- a whole strategy


Step = Callable[[TransactedStore, list[Half]], Any]
MORE = [
    b"", b"", b"", b"\x02TRAN_PREPARED_QUEUE_OFFSET\x011", b"\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x011",
    b"\x02K\x01" + b"v" * 60, b"\x02K\x01" + b"v" * 3400,
]  # fmt: skip


def send(more: list[bytes], topic: str, queue_id: int) -> Step:
    def step(world: TransactedStore, halves: list[Half]) -> Any:
        for text in more:
            half = world.half(b"%d" % len(halves), topic=topic, queue_id=queue_id, more=text)
            halves.append(half)

    return step


def strange(properties: bytes) -> Step:
    """A half message as no producer of this broker can bring it."""

    def step(world: TransactedStore, halves: list[Half]) -> Any:
        batch = AppendBatch()
        text = b"PGROUP\x01%s\x02TRAN_MSG\x01true\x02%s" % (GROUP.encode(), properties)
        born = world.env.wall_ms()
        batch.add(TRANS_HALF_TOPIC, 0, b"%d" % len(halves), text, born_timestamp=born)
        world.append(batch)
        world.commit()  # its queue entry alone names it
        halves.append(Half(batch.bodies[0], batch.offsets[0], batch.queue_offsets[0]))

    return step


def end(which: list[tuple[int, bool, bool, bool]]) -> Step:
    """Ends of one turn: of which message, whether commit, whether oneway, whether in a form that is not usual."""

    def step(world: TransactedStore, halves: list[Half]) -> Any:
        requests, peers = [], []
        for number, is_commit, oneway, odd in which if halves else ():
            named = halves[number % len(halves)]
            ext = {
                **END, "producerGroup": named.group, "tranStateTableOffset": f"{named.queue_offset:0{3 if odd else 1}}",
                "commitLogOffset": str(named.offset), "commitOrRollback": str(int(COMMIT if is_commit else ROLLBACK)),
            }  # fmt: skip
            peers.append(Producer())
            requests += received(peers[-1], 37, ext, ONEWAY_FLAG if oneway else 0)
        world.ends.handle(requests)
        before = [[(answer.code, answer.remark) for answer in peer.sent] for peer in peers]
        waits = len(world.log_waits)
        world.commit()
        return before, waits, [[(answer.code, answer.remark) for answer in peer.sent] for peer in peers]

    return step


def walk(world: TransactedStore, halves: list[Half]) -> Any:
    world.commit()
    world.pass_time(7)
    world.scan()
    return [check_back.header.commit_log_offset for check_back in world.producers.groups[GROUP][0].take_check_backs()]


def no_room(world: TransactedStore, halves: list[Half]) -> Any:
    """Make another plugin refuse the third row of each batch."""

    def refuse(batch: AppendBatch) -> None:
        if len(batch) > 2:
            batch.refuse(2, 13, "no room")

    world.refuse = refuse


PLACES = [
    b"REAL_TOPIC\x01T\x02REAL_QID\x0101", b"REAL_QID\x010", b"REAL_TOPIC\x01RMQ_SYS_TRANS_HALF_TOPIC\x02REAL_QID\x010",
    b"REAL_TOPIC\x01T\x02REAL_QID\x01-1", b"REAL_TOPIC\x01T\x02REAL_QID\x014294967296",
    b"REAL_TOPIC\x01\xff\x02REAL_QID\x010", b"REAL_TOPIC\x01T", b"REAL_TOPIC\x01\x02REAL_QID\x010",
    b"REAL_TOPIC\x01T\x02REAL_QID\x010", b"REAL_TOPIC\x01T\x02REAL_QID\x010\x02TRAN_PREPARED_QUEUE_OFFSET\x010",
    b"REAL_TOPIC\x01T\x02REAL_QID\x010\x02K\x01" + b"v" * 3760,
]  # fmt: skip
STEPS = st.one_of(
    st.builds(
        send,
        st.lists(st.sampled_from(MORE), min_size=1, max_size=4),
        st.sampled_from(["T", "U", "né"]),
        st.integers(0, 1),
    ),
    st.builds(strange, st.sampled_from(PLACES)),
    st.builds(
        end,
        st.lists(
            st.tuples(
                st.integers(0, 5),
                st.sampled_from([True, True, False]),
                st.sampled_from([False, False, True]),
                st.sampled_from([False, False, False, True]),
            ),
            min_size=1,
            max_size=5,
        ),
    ),
    st.just(walk),
    st.just(no_room),
)
HOSTS = [TINY.store_host, bytes(15) + b"\1\0\0\x2a\x9f"]


def lived(steps: list[Step], host: bytes, twin: Any, kernel: Any) -> Any:
    """The visible state of a strategy after these steps, in a broker at ``host``."""
    with pytest.MonkeyPatch.context() as patch:
        select_twin(patch, loops, twin)
        select_twin(patch, kernel_fast, kernel)
        world = TransactedStore(MemoryEnv(), config=attrs.evolve(TINY, store_host=host), check_max=3)
        world.producers.join()
        halves: list[Half] = []
        seen = [step(world, halves) for step in steps]
        world.refuse = lambda batch: None
        world.commit()
        places = [("T", 0), ("T", 1), ("U", 0), ("U", 1), ("né", 0), ("né", 1)]
        places += [(name, 0) for name in (TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC)]
        stored = [world.messages(*place) for place in places]
        strategy = world.plugin.strategy
        assert isinstance(strategy, HalfStrategy)
        table = strategy._table
        counts = (strategy.open_count, strategy.floor(), table.base, table.ops_done(), table.moved, table.discarded)
        world.close()
        return seen, stored, counts


LIVES = [
    [send([b""] * 3, "T", 0), end([(0, True, False, False), (1, False, False, False), (0, True, False, True)])],
    [send([b""] * 3, "T", 0), end([(2, True, False, False), (0, False, False, False)])],
    [send([b""], "T", 0), end([(0, True, True, False)])],
    [send([b""], "T", 0), strange(PLACES[-2]), end([(1, True, False, False)])],
    [strange(PLACES[-1]), send([b""], "T", 0), end([(0, True, False, False), (1, True, False, False)])],
    [send([b""], "T", 0), walk, end([(0, True, False, False)]), walk, end([(0, True, True, False)])],
    [strange(PLACES[1]), send([b""], "T", 0), strange(PLACES[-2]), walk, end([(0, False, False, False)])],
    [send([b""] * 2, "T", 1), no_room, end([(0, True, False, False), (1, True, False, False)]), walk],
]


@pytest.mark.parametrize("steps", LIVES)
@pytest.mark.parametrize("host", HOSTS, ids=["ipv4", "ipv6"])
def test_known_lives_are_the_same_with_either_twin(steps: list[Step], host: bytes) -> None:
    same_lives(steps, host)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, min_size=2, max_size=10), st.sampled_from(HOSTS))
def test_a_strategy_lives_the_same_life_with_either_twin(steps: list[Step], host: bytes) -> None:
    same_lives(steps, host)


def same_lives(steps: list[Step], host: bytes) -> None:
    first = lived(steps, host, plain, plain_requests)
    for twin, kernel in ((plain, compiled_kernel), (compiled, plain_requests), (compiled, compiled_kernel)):
        assert lived(steps, host, twin, kernel) == first


@pytest.mark.skipif(kernel_fast.KIND == "plain", reason="usual requests have no fast path")
def test_usual_ends_are_ended_by_the_compiled_twin_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def end_one(*_: object) -> None:
        raise AssertionError("the slow path was called")

    monkeypatch.setattr(HalfStrategy, "_end_one", end_one)
    world, halves = TransactedStore(MemoryEnv()), list[Half]()
    send([b""] * 4, "T", 1)(world, halves)
    oneway, usual = (3, False, True, False), [(0, True, False, False), (1, False, False, False), (2, True, True, False)]
    _, _, answers = end([*usual, oneway])(world, halves)
    assert answers == [[(0, None)], [(0, None)], [], []]
    assert world.bodies("T", 1) == [b"0", b"2"]

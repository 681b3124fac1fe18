"""The compiled twin answers pulls as the slow path does: the same frames, commits and held pulls."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import hypothesis.strategies as st
import pytest
from hypothesis import given

from gantrymq.kernel import hookimpl, hookspecs
from gantrymq.kernel.batch import AppendBatch, PullBatch
from gantrymq.kernel.config.declarations import LimitsSection
from gantrymq.kernel.delivery import DeliverBatch, Deliveries
from gantrymq.kernel.env.system import SystemEnv
from gantrymq.kernel.fast import plain_requests, tag_code
from gantrymq.kernel.manager import PluginManager
from gantrymq.kernel.store.queues.consume_queue import ConsumeQueue
from gantrymq.kernel.store.store import Store, StoreConfig
from gantrymq.plugins.consume import plain as plain_pulls
from gantrymq.plugins.consume import pull as pull_module
from gantrymq.plugins.consume.config import ConsumeConfig
from gantrymq.plugins.consume.limits import TransferLimits
from gantrymq.plugins.consume.suggest import Suggestions
from gantrymq.plugins.filter.tags import compile_tags
from gantrymq.remoting.bodies.clients import SubscriptionData
from gantrymq.remoting.codes import ONEWAY_FLAG, PERM_READ, PERM_WRITE
from gantrymq.remoting.command import Command, decode, encode
from gantrymq.remoting.frame import cut_frames
from gantrymq.remoting.records import decode_records
from gantrymq.testing.tinystore import commit
from support.loops import Loops

pytestmark = pytest.mark.once  # it runs both twins

compiled = Loops(
    pytest.importorskip("gantrymq.kernel.fast._requests", reason="the extension is not built"),
    pytest.importorskip("gantrymq.plugins.consume._fast", reason="the extension is not built"),
)
plain = Loops(plain_requests, plain_pulls)

TINY = StoreConfig(commit_log_file_bytes=8192, queue_file_units=20, max_message_bytes=2048, queue_tail_bytes=300)
ADDRESSES = (-(2**63), -(2**31) - 1, -(2**31), 7)
"""The tag codes of the four entries of queue 2 of ``T``: the first two are addresses of an extension file."""
DAMAGED = 17
"""The entry of queue 0 of ``T`` whose record has a flipped bit."""


class Peer:
    """A connection that keeps what is sent to it."""

    def __init__(self, congested: bool) -> None:
        self.host = b"\x7f\0\0\x01\0\0\x2a\x9f"
        self.frames: list[bytes] = []
        self.congested = congested
        self.closed = False

    def is_congested(self) -> bool:
        return self.congested

    def send(self, command: Command) -> None:
        self.send_bytes(encode(command))

    def send_bytes(self, data: bytes) -> None:
        assert type(data) is bytes
        start = 0
        for frame in cut_frames(data)[0]:
            end = start + 8 + len(frame.header) + len(frame.body)
            self.frames.append(data[start:end])
            start = end
        assert start == len(data)


class Tables:
    """All objects that the processor asks for."""

    broker_perm = PERM_READ | PERM_WRITE

    def __init__(self) -> None:
        self.commits: list[tuple[str, str, int, int]] = []
        self.counted: list[tuple[str, str, int, int, int, int]] = []

    def find(self, group: str) -> Any:
        enabled = {"g": True, "off": False, "heard": True, "gone": True}.get(group)
        return enabled if enabled is None else SimpleNamespace(
            consume_enable=enabled, consume_broadcast_enable=False, broker_id=3, which_broker_when_consume_slowly=70_000
        )  # fmt: skip

    def get(self, topic: str) -> Any:
        perm = {"T": PERM_READ | PERM_WRITE, "secret": PERM_WRITE}.get(topic)
        return perm if perm is None else SimpleNamespace(perm=perm, read_queue_nums=4)

    def message_model(self, group: str) -> str | None:
        return "CLUSTERING" if group == "heard" else None

    def subscription(self, group: str, topic: str) -> SubscriptionData:
        return SubscriptionData.for_tags(topic, "B", 5)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        self.commits.append((group, topic, queue_id, offset))

    def pulled(self, group: str, topic: str, queue_id: int, messages: int, size: int, next_offset: int) -> None:
        self.counted.append((group, topic, queue_id, messages, size, next_offset))


class Run:
    """The real processor with either twin over a store."""

    def __init__(
        self, store: Store, twin: Any, answers: Any, max_bytes: int, suggests: bool = False, broker_id: int = 0,
        deliveries: Deliveries | None = None,
    ) -> None:  # fmt: skip
        self.twin, self.tables, self.held = twin, Tables(), []  # type: ignore[var-annotated]
        registry = SimpleNamespace(
            get=lambda kind: self.tables, find=lambda kind: deliveries if kind is Deliveries else self.tables
        )
        hook = SimpleNamespace(hold_pulls=self.hold)
        broker: Any = SimpleNamespace(
            registry=registry, manager=SimpleNamespace(hook=hook), queues=store.queues, log=store.log,
            filters={"TAG": compile_tags}, env=SimpleNamespace(monotonic=lambda: 5.0, memory_bytes=lambda: 8000),
            broker_id=broker_id, config=SimpleNamespace(limits=LimitsSection()),
        )  # fmt: skip
        suggestions = Suggestions(broker, suggests, 50)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pull_module, "PullResponses", answers)
            config = ConsumeConfig(
                memory_messages=12, memory_bytes=max_bytes, disk_messages=4, disk_bytes=min(max_bytes, 1200),
                max_messages=16, max_bytes=5000, scan_entries=32,
            )  # fmt: skip
            limits = TransferLimits(config, suggestions)
            patch.setattr(pull_module, "PullContext", self.keep_context)
            self.processor = pull_module.PullProcessor(broker, config, limits, suggestions)

    def keep_context(self, **fields: Any) -> plain_pulls.PullContext:
        self.context = plain_pulls.PullContext(**fields)
        return self.context

    def hold(self, batch: PullBatch) -> bool:
        self.held += [
            (one.group, one.topic, one.queue_id, one.offset, one.limit, one.deadline, one.request.command.opaque)
            for one in batch.rows
        ]
        batch.resume(batch.rows)
        return True

    def outcome(self, data: bytes) -> Any:
        peers: list[Any] = [Peer(False), Peer(True), Peer(False)]
        requests = []
        for peer in peers:
            requests += self.twin.read_requests(peer, data, 1 << 20)[0]
        self.processor.handle(requests)
        tables = self.tables
        answered = [one.answered for one in requests]
        return [peer.frames for peer in peers], tables.commits, tables.counted, self.held, answered


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Queue 0: many messages in several files, the first ones deleted; 1: large ones; 2: in memory only; 3: none."""
    store = Store(SystemEnv(), str(tmp_path_factory.mktemp("answers") / "store"), TINY)
    store.open()
    store.recover(lambda batch: None)
    for number in range(60):
        batch = AppendBatch()
        batch.add("T", 0, b"a" * (number * 7 % 300), b"TAGS\x01A" if number % 3 else b"TAGS\x01B")
        batch.add("T", 0, b"b" * number, b"K\x01v", born_host=bytes(20))
        if number % 4 == 0:
            batch.add("T", 1, b"c" * 1500, b"TAGS\x01C")
        store.append(batch)
    commit(store)
    store.flush_queues()
    addresses = iter(ADDRESSES)
    store.queues.tag_code_rules["T"] = lambda queue_id, properties, stored: (
        next(addresses) if queue_id == 2 else tag_code(properties)
    )
    last = AppendBatch()
    for number in range(4):
        last.add("T", 2, b"d" * number, b"")
        last.add("T", 0, b"e" * number, b"TAGS\x01B")
    store.append(last)
    commit(store)
    store.log.segments.delete_before(10_000)
    store.queues.correct_min(store.log.min_offset)
    queue = store.queues.get("T", 0)
    assert queue is not None
    entry = queue.entries(queue.min_offset + DAMAGED, 1)
    at = int.from_bytes(entry[:8], "big") + 90
    store.log.segments.write(at, bytes([store.log.view(at, 1)[0] ^ 4]))
    yield store
    store.close()


PULL = {
    "consumerGroup": "g", "topic": "T", "queueId": "0", "queueOffset": "7", "maxMsgNums": "32", "sysFlag": "4",
    "commitOffset": "5", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "1", "expressionType": "TAG",
}  # fmt: skip

LARGE = {"gantrymqMaxBytes": "5000"}
"""16 messages at once, from memory or from the disk."""


@st.composite
def pulls(draw: st.DrawFn) -> Command:
    usual = {**PULL, "queueId": str(draw(st.integers(0, 2))), "queueOffset": str(draw(st.integers(0, 130)))}
    odd = draw(
        st.dictionaries(
            st.sampled_from([*PULL, "gantrymqMaxBytes"]),
            st.sampled_from(
                ["0", "-1", "1", "3", "4", "5", "2", "14", "99", "x", "B", "A || C", "", "Z", "SQL92", "T"]
            ),
            max_size=2,
        )
    )
    named = draw(
        st.sampled_from(
            [{}, {}, {"consumerGroup": "off"}, {"consumerGroup": "none"}, {"topic": "secret"}, {"topic": "none"},
             {"consumerGroup": "heard", "sysFlag": "0"}, {"consumerGroup": "heard", "sysFlag": "1", "subVersion": "6"},
             {"consumerGroup": "gone", "sysFlag": "0"}, {"sysFlag": "5", "commitOffset": "3"}, {"subscription": "B"},
             {"sysFlag": "6", "suspendTimeoutMillis": "1000", "queueOffset": "128"}, {"subscription": "B||C"},
             {"gantrymqMaxBytes": "100000"}, {"gantrymqMaxBytes": "700", "maxMsgNums": "7"}, {"gantrymqMaxBytes": "-3"},
             {"sysFlag": "6", "suspendTimeoutMillis": "1000", "queueOffset": "128", "gantrymqMaxBytes": "4000"}]
        )
    )  # fmt: skip
    return Command(
        draw(st.sampled_from([11, 361])),
        {**usual, **odd, **named},
        opaque=draw(st.integers(-(2**31), 2**31 - 1)),
        flag=draw(st.sampled_from([0, 0, 0, 0, ONEWAY_FLAG])),
        kind=draw(st.sampled_from([0, 1])),
    )


class Deliverer:
    """A plugin that changes, withholds, or fails at some messages, by their queue offsets."""

    name = "deliverer"

    def __init__(self, what: str) -> None:
        self.what = what

    @hookimpl
    def before_deliver(self, batch: DeliverBatch) -> None:
        assert (batch.purpose, batch.group is None, batch.connection is None) == ("pull", False, False)
        for row in batch.live:
            number = batch.queue_offsets[row]
            if self.what == "change" and number % 3 == 0:
                batch.bodies[row] += b"more" * (number % 50)
            elif self.what == "withhold" and number % 100 < 60:
                batch.withhold(row)
            elif self.what == "fail" and number % 7 == 3:
                raise ValueError(number)


def deliveries_of(what: str) -> Deliveries | None:
    return Deliveries(PluginManager([("d", Deliverer(what))], hookspecs), lambda: 0.0) if what else None


@given(
    some=st.lists(pulls(), max_size=6),
    max_bytes=st.sampled_from([1 << 20, 2000, 10]),
    suggests=st.booleans(),
    broker_id=st.sampled_from([0, 0, 1]),
    what=st.sampled_from(["", "", "look", "change", "withhold", "fail"]),
)
@pytest.mark.slow
def test_both_twins_answer_pulls_the_same(
    store: Store, some: list[Command], max_bytes: int, suggests: bool, broker_id: int, what: str
) -> None:
    data = b"".join(map(encode, some))
    store.log.quarantine = []
    expected = Run(store, plain, plain.PullResponses, max_bytes, suggests, broker_id, deliveries_of(what)).outcome(data)
    store.log.quarantine = []
    found = Run(store, compiled, compiled.PullResponses, max_bytes, suggests, broker_id, deliveries_of(what))
    assert found.outcome(data) == expected


@pytest.mark.parametrize("what", ["look", "change", "withhold"])
def test_the_compiled_path_calls_plugins_with_delivered_messages(store: Store, what: str) -> None:
    run, peer = Run(store, compiled, compiled.PullResponses, 1 << 20, deliveries=deliveries_of(what)), Peer(False)
    (request,), _ = compiled.read_requests(peer, encode(Command(11, {**PULL, "queueOffset": "55"})), 1 << 20)
    assert run.processor._responses.answer([request], 0, 1 << 40, pytest.fail) == 1
    (frame,) = cut_frames(b"".join(peer.frames))[0]
    answer = decode(frame)
    records = decode_records(answer.body)
    assert answer.code == (20 if what == "withhold" else 0)
    assert len(records) == (0 if what == "withhold" else 4)
    assert any(record.body.endswith(b"moremore") for record in records) == (what == "change")


def test_a_plugin_that_fails_at_a_message_sends_the_pull_to_the_fallback(store: Store) -> None:
    run, peer = Run(store, compiled, compiled.PullResponses, 1 << 20, deliveries=deliveries_of("fail")), Peer(False)
    (request,), _ = compiled.read_requests(peer, encode(Command(11, PULL)), 1 << 20)
    passed_on: list[Any] = []
    run.processor._responses.answer([request], 0, 1 << 40, lambda given: passed_on.append(given) or 0)
    assert passed_on == [request]
    assert peer.frames == []


def test_the_compiled_path_redirects_lagging_consumers(store: Store) -> None:
    run, peer = Run(store, compiled, compiled.PullResponses, 1 << 20, suggests=True), Peer(False)
    for kind in (0, 1):
        for offset, tags in ((80, "*"), (122, "*"), (122, "Z")):
            ext = {**PULL, "queueOffset": str(offset), "maxMsgNums": "1", "subscription": tags}
            (request,), _ = compiled.read_requests(peer, encode(Command(11, ext, kind=kind)), 1 << 20)
            assert run.processor._responses.answer([request], 0, 1 << 40, pytest.fail) == 1
    found = [(decode(frame).ext or {})["suggestWhichBrokerId"] for frame in cut_frames(b"".join(peer.frames))[0]]
    assert found == ["70000", "3", "3"] * 2


def test_damage_found_between_two_pulls_is_not_read_through_a_block_kept_from_the_first(store: Store) -> None:
    store.log.quarantine = []
    run, peer = Run(store, compiled, compiled.PullResponses, 1 << 20), Peer(False)
    others: list[Any] = []

    def other(request: Any) -> int:
        others.append(request)
        return 0

    def answer() -> int:
        (request,), _ = compiled.read_requests(peer, encode(Command(11, {**PULL, "queueOffset": "80"})), 1 << 20)
        run.processor._responses.answer([request], 0, 1 << 40, other)
        return len(others)

    assert answer() == 0
    queue = store.queues.get(PULL["topic"], int(PULL["queueId"]))
    assert queue is not None
    offset, size, _ = queue.entry(80)
    store.log.quarantine_range(offset, offset + size)
    try:
        assert answer() == 1
    finally:
        store.log.quarantine = []


def test_a_usual_pull_never_leaves_the_compiled_path(store: Store) -> None:
    run = Run(store, compiled, compiled.PullResponses, 1 << 20)
    peers: list[Any] = [Peer(False), Peer(False)]
    others: list[Any] = []

    def other(request: Any) -> int:
        others.append(request)
        return 0

    wanted = ["*", "B", "||".join(f"t{number}" for number in range(40)) + "||A", "Z"]
    for kind in (0, 1):
        requests = []
        for peer in peers:
            for tags in wanted:
                ext = {**PULL, "queueOffset": "80", "subscription": tags}
                requests += compiled.read_requests(peer, encode(Command(11, ext, kind=kind)), 1 << 20)[0]
        done = run.processor._responses.answer(requests, 0, 1 << 40, other)
        assert (done, others) == (len(requests), [])
    for peer in peers:
        found = [decode(frame) for frame in cut_frames(b"".join(peer.frames))[0]]
        assert [bool(one.body) for one in found] == [True, True, True, False] * 2
        assert [one.kind for one in found] == [0] * 4 + [1] * 4


def test_no_more_pulls_are_answered_than_the_limit_allows(store: Store) -> None:
    for twin, answers in ((plain, plain.PullResponses), (compiled, compiled.PullResponses)):
        run = Run(store, twin, answers, 1 << 20)
        peer: Any = Peer(False)
        requests = twin.read_requests(peer, encode(Command(11, {**PULL, **LARGE, "queueOffset": "80"})) * 5, 1 << 20)[0]
        taken: list[Any] = []
        assert (
            run.processor._responses.answer(requests, 1, 3000, partial(run.processor._take, taken, run.processor._run))
            == 3
        )
        assert len(peer.frames) == 2


@pytest.mark.parametrize("tags", ["B", "||".join(f"t{number}" for number in range(40))])
def test_an_address_of_an_extension_file_passes_whatever_tags_are_wanted(store: Store, tags: str) -> None:
    pull = encode(Command(11, {**PULL, "queueId": "2", "queueOffset": "0", "subscription": tags}))
    for twin, answers in ((plain, plain.PullResponses), (compiled, compiled.PullResponses)):
        run = Run(store, twin, answers, 1 << 20)
        run.outcome(pull)
        given = [messages for _, _, _, messages, _, _ in run.tables.counted]
        assert given == [2, 0, 2], "the second of the three peers is congested"


def test_entries_that_are_kept_are_those_of_the_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(SystemEnv(), str(tmp_path / "store"), TINY)
    store.open()
    store.recover(lambda batch: None)
    run, peer = Run(store, compiled, compiled.PullResponses, 1 << 20), Peer(False)
    reads: list[int] = []
    peek = ConsumeQueue.peek

    def counted(queue: ConsumeQueue, offset: int, count: int) -> bytes | None:
        reads.append(offset)
        return peek(queue, offset, count)

    monkeypatch.setattr(ConsumeQueue, "peek", counted)

    def put(text: bytes) -> None:
        batch = AppendBatch()
        for number in range(50):
            batch.add("T", 3, text + str(number).encode(), b"")
        store.append(batch)
        commit(store)

    def pulled(offset: int) -> list[bytes]:
        ext = {**PULL, "queueId": "3", "queueOffset": str(offset), "maxMsgNums": "2"}
        requests = compiled.read_requests(peer, encode(Command(11, ext)), 1 << 20)[0]
        run.processor.handle(requests)
        return [record.body for record in decode_records(decode(cut_frames(peer.frames.pop())[0][0]).body)]

    put(b"a")
    assert [pulled(offset) for offset in (0, 2, 4)] == [[b"a0", b"a1"], [b"a2", b"a3"], [b"a4", b"a5"]]
    assert reads == [0]
    put(b"b")
    assert pulled(48) == [b"a48", b"a49"]
    assert pulled(49) == [b"a49", b"b0"]
    # the topic was deleted, and made again
    store.queues.next_offsets["T", 3] = 0
    put(b"c")
    assert [pulled(offset) for offset in (0, 2)] == [[b"c0", b"c1"], [b"c2", b"c3"]]
    store.close()


class FleetingWindows:
    """The parts of a log, each in memory of its own that is overwritten as soon as nobody holds it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._given: list[bytearray] = []
        self.min_offset = store.log.min_offset

    def span(self, offset: int, size: int, goes_on: bool) -> tuple[int, bytearray] | None:
        for part in self._given:
            try:
                part.append(0)
            except BufferError:
                continue
            part[:] = b"\xee" * len(part)
        if offset + size > self._store.log.end:
            return None
        self._given.append(bytearray(self._store.log.view(offset, size)))
        return offset, self._given[-1]


def test_data_of_a_response_is_referenced_until_it_is_encoded(tmp_path: Path) -> None:
    store = Store(SystemEnv(), str(tmp_path / "store"), StoreConfig(commit_log_file_bytes=1 << 20))
    store.open()
    store.recover(lambda batch: None)
    batch = AppendBatch()
    for number in range(3 * 300):
        batch.add("T", number % 2, b"%03d" % number, b"")
    store.append(batch)
    commit(store)
    run = Run(store, compiled, compiled.PullResponses, 1 << 20)
    context = attrs.evolve(run.context, windows=FleetingWindows(store), max_messages=1000, max_bytes=1 << 20)
    answers, peer = compiled.PullResponses(context), Peer(False)
    left: list[Any] = []
    for messages in (5, 30, 64, 65, 300):
        ext = {**PULL, "queueOffset": "0", "maxMsgNums": str(messages), "gantrymqMaxBytes": "1000000"}
        (request,), _ = compiled.read_requests(peer, encode(Command(11, ext)), 1 << 20)
        answers.answer([request], 0, 1 << 40, lambda other: left.append(other) or 0)
        if peer.frames:
            found = [record.body for record in decode_records(decode(cut_frames(peer.frames.pop())[0][0]).body)]
            assert found == [b"%03d" % (2 * number) for number in range(messages)]
    assert len(left) == 1, "what lies in more parts is for the slow path"
    # More parts are used than are kept: each pull is answered from what it reads, not from a part that was closed.
    for offset in [random.randrange(290) for _ in range(60)]:
        ext = {**PULL, "queueOffset": str(offset), "maxMsgNums": "10", "gantrymqMaxBytes": "1000000"}
        requests, _ = compiled.read_requests(peer, 3 * encode(Command(11, ext)), 1 << 20)
        answers.answer(requests, 0, 1 << 40, lambda other: left.append(other) or 0)
        for frame in peer.frames:
            found = [record.body for record in decode_records(decode(cut_frames(frame)[0][0]).body)]
            assert found == [b"%03d" % (2 * number) for number in range(offset, offset + 10)]
        assert len(peer.frames) == 3
        peer.frames.clear()
    assert len(left) == 1
    store.close()


@pytest.mark.parametrize("at", [2**63 - 1, 2**63 - 100, 2**62])
def test_an_entry_that_points_beyond_64_bits_costs_its_message_and_no_other(tmp_path: Path, at: int) -> None:
    store = Store(SystemEnv(), str(tmp_path / "store"), TINY)
    store.open()
    store.recover(lambda batch: None)
    batch = AppendBatch()
    for number in range(3):
        batch.add("T", 0, b"%d" % number, b"")
    store.append(batch)
    commit(store)
    queue = store.queues.get("T", 0)
    assert queue is not None
    entries = bytearray(queue.entries(0, 3))
    entries[20:28] = at.to_bytes(8, "big")
    queue._tail[:] = entries
    for twin, answers in ((plain, plain.PullResponses), (compiled, compiled.PullResponses)):
        run, peer = Run(store, twin, answers, 1 << 20), Peer(False)
        for offset in (0, 0, 1, 2):
            data = encode(Command(11, {**PULL, "queueOffset": str(offset)}))
            run.processor.handle(twin.read_requests(peer, data, 1 << 20)[0])
        found = [
            [record.body for record in decode_records(decode(frame).body)]
            for frame in cut_frames(b"".join(peer.frames))[0]
        ]
        assert found == [[b"0", b"2"], [b"0", b"2"], [b"2"], [b"2"]]
    store.close()


def test_a_queue_whose_entries_cannot_be_read_fails_its_own_pulls_only(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    peek = ConsumeQueue.peek

    def failing(queue: ConsumeQueue, offset: int, count: int) -> bytes | None:
        if queue.queue_id == 1:
            raise OSError(24, "Too many open files")
        return peek(queue, offset, count)

    monkeypatch.setattr(ConsumeQueue, "peek", failing)
    for twin, answers in ((plain, plain.PullResponses), (compiled, compiled.PullResponses)):
        run, peer = Run(store, twin, answers, 1 << 20), Peer(False)
        data = b"".join(
            encode(Command(11, {**PULL, "queueId": str(queue_id), "queueOffset": offset}, opaque=opaque))
            for opaque, (queue_id, offset) in enumerate([(0, "80"), (1, "7"), (0, "90"), (1, "8"), (0, "100")])
        )
        run.processor.handle(twin.read_requests(peer, data, 1 << 20)[0])
        found = {one.opaque: one for one in map(decode, cut_frames(b"".join(peer.frames))[0])}
        assert [found[opaque].code for opaque in range(5)] == [0, 1, 0, 1, 0]
        assert {found[opaque].remark for opaque in (1, 3)} == {"the queue cannot be read: Too many open files"}

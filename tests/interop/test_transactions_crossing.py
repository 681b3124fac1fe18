"""Stores with open half messages and pending delayed messages move between RocketMQ 4.9.7 and ours.

Both directions run side by side: each broker fills a store, then each goes on with the other's.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import attrs
import pytest

from gantrymq.kernel.store.log.record import Record
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.transactions import EndTransactionHeader, TransactionState
from gantrymq.remoting.names import TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC
from gantrymq.remoting.properties import decode_properties, encode_properties
from gantrymq.testing.requests import send
from support.clients import ForeignClient, Received, Sent
from support.content import content
from support.foreign import Java, ask, is_routed, start_broker
from support.processes import Child, free_ports, gantrymq_child, wait_for
from support.stores import log_records
from support.transactions import Checked, SentHalf, Transactor

pytestmark = [pytest.mark.interop, pytest.mark.slow]

Homes = Callable[[str], Path]

TOPIC, GROUP = "CrossingHalves", "crossing-producers"
DELAY_MS = {1: 1_000, 2: 15_000}
"""Level 1 is due while no broker runs; level 2 when the other one does, unless the machine is slow."""
LEVELS = "1s 15s " + " ".join(["1s"] * 16)
PROMPT_MS = 5_000
"""The longest delay of the earliest delayed message."""
LATE_MS = 20_000
"""The longest delay of any delayed message on a busy machine."""
INTERVAL_MS = 3_000
"""The time between two check scans, and so the time after the start to end transactions without a check-back."""
RECORDED_TOPIC, RECORDS = "RecordedHalves", 5
NEVER_MS = 600_000
"""The first broker does not ask: RocketMQ's would store each open half message again."""

COMMITTED, ROLLED_BACK, ENDED_LATER, CHECKED, DENIED = range(5)
ORDERS = {
    COMMITTED: "commit",
    ROLLED_BACK: "rollback",
    ENDED_LATER: "unknown",
    CHECKED: "unknown",
    DENIED: "unknown",
}
VISIBLE_HALVES = {COMMITTED, ENDED_LATER, CHECKED}
DELAYED = {level: range(10 * level, 10 * level + 3) for level in DELAY_MS}
VISIBLE = VISIBLE_HALVES | {index for indexes in DELAYED.values() for index in indexes}


@attrs.frozen
class Running:
    """A broker on a store, and the nameserver where it is found."""

    child: Child
    address: str
    nameserver: str
    ready: float
    """When it could receive a check-back, in ms since 1970."""


@contextmanager
def ours(homes: Homes, store: Path, nameserver: str, name: str, interval: int = INTERVAL_MS) -> Iterator[Running]:
    """GantryMQ at RocketMQ's nameserver."""
    (port,) = free_ports()
    address = f"127.0.0.1:{port}"
    settings = (
        f"plugin.delay.levels={LEVELS}", "plugin.transaction.timeout=1s", f"broker.name={name}",
        f"plugin.transaction.check_interval={interval}ms",
    )  # fmt: skip
    serve = ["broker", "--data", str(store), "--listen", address, "--nameserver", nameserver]
    for setting in settings:
        serve += ["--set", setting]
    with gantrymq_child(serve, homes("ours") / "serve.err") as child:
        child.wait_line(lambda line: line.startswith("ready"))
        yield Running(child, address, nameserver, time.time() * 1000)


@contextmanager
def theirs(
    java: Java, homes: Homes, store: Path, nameserver: str, name: str, interval: int = INTERVAL_MS
) -> Iterator[Running]:
    """RocketMQ 4.9.7."""
    server = start_broker(
        java, homes("theirs"), nameserver, name=name, store=store, messageDelayLevel=LEVELS,
        flushDelayOffsetInterval="1000", transactionTimeOut="1000", transactionCheckInterval=str(interval),
    )  # fmt: skip
    with server.child as child:
        yield Running(child, server.address, nameserver, time.time() * 1000)
        child.process.kill()  # tests that need a clean stop have stopped it before


def stop(running: Running) -> None:
    assert running.child.terminate(40) in (0, 143)  # 143: how Java says that it heeded SIGTERM


@attrs.frozen
class Crossed:
    """Messages to the first broker; responses, check-backs and deliveries of the second one; and the whole log."""

    topic: str
    halves: dict[int, SentHalf]
    delayed: list[Sent]
    ready: float
    answered: list[int]
    checks: list[Checked]
    messages: list[Received]
    recorded: list[Record]
    records: list[Record]


def record(running: Running) -> None:
    """The same requests to each: two half messages, the commit of one, the rollback of the other."""
    properties = encode_properties({
        "KEYS": "k1", "UNIQ_KEY": "7F00000100002A9F0000000000000000", "TRAN_MSG": "true", "PGROUP": GROUP, "TAGS": "a",
        "WAIT": "true",
    })  # fmt: skip
    answers = []
    for body in (b"first", b"second"):
        half = send(RECORDED_TOPIC, body, properties=properties)
        answers.append(ask(running.address, half))
    assert [answer.code for answer in answers] == [0, 0]
    for answer, state in zip(answers, (TransactionState.COMMIT, TransactionState.ROLLBACK), strict=True):
        ext = answer.ext or {}
        header = EndTransactionHeader(
            producer_group=GROUP, tran_state_table_offset=int(ext["queueOffset"]),
            commit_log_offset=int(ext["msgId"][-16:], 16), commit_or_rollback=state, msg_id="any",
        )  # fmt: skip
        assert ask(running.address, Command(RequestCode.END_TRANSACTION, header.to_ext())).code == 0


def fill(client: ForeignClient, running: Running, topic: str) -> tuple[dict[int, SentHalf], list[Sent]]:
    """Transactions, ended and open, and messages at each level, behind what is recorded."""
    record(running)
    ext = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": "2", "writeQueueNums": "2", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    }  # fmt: skip
    assert ask(running.address, Command(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)).code == 0
    wait_for(lambda: is_routed(running.nameserver, topic))
    with Transactor.start(client, running.nameserver, topic, GROUP) as transactor:
        halves = {index: transactor.send(index, local) for index, local in ORDERS.items()}
    delayed: list[Sent] = []
    for level, indexes in DELAYED.items():
        options = {"first": indexes[0], "delay": level}
        delayed += client.produce(running.nameserver, topic, len(indexes), **options)
    return halves, delayed


def end(running: Running, half: Record, **changes: object) -> int:
    """The code of the answer to END_TRANSACTION with a commit."""
    header = EndTransactionHeader(
        producer_group=GROUP, tran_state_table_offset=half.queue_offset, commit_log_offset=half.offset,
        commit_or_rollback=TransactionState.COMMIT, msg_id="any",
    )  # fmt: skip
    for name, value in changes.items():
        setattr(header, name, value)
    return ask(running.address, Command(RequestCode.END_TRANSACTION, header.to_ext())).code


def end_what_is_open(running: Running, half: Record) -> list[int]:
    """The codes of the answers: strangers and ends that are no ends come first, then the end of ``half``."""
    return [
        end(running, half, producer_group="strangers"),
        end(running, half, tran_state_table_offset=half.queue_offset + 1),
        end(running, half, commit_log_offset=half.offset + 1),
        end(running, half),
    ]


def half_of(store: Path, sent: SentHalf) -> Record:
    """The half message as it lies in the log."""
    (found,) = (
        record
        for record, _ in log_records(store)
        if record.topic == TRANS_HALF_TOPIC and record.queue_offset == sent.queue_offset
    )
    return found


@pytest.fixture(scope="module")
def all_crossed(java: Java, own_nameserver: str, homes: Homes, java4_client: ForeignClient) -> dict[str, Crossed]:
    """The results by the first writer of the store."""
    stores = {writer: homes(f"store-{writer}") for writer in ("gantrymq", "java")}
    topics = {writer: f"{TOPIC}-{writer}" for writer in stores}
    with (
        ours(homes, stores["gantrymq"], own_nameserver, "crossing-a", NEVER_MS) as first_ours,
        theirs(java, homes, stores["java"], own_nameserver, "crossing-b", NEVER_MS) as first_theirs,
    ):
        writers = {"gantrymq": first_ours, "java": first_theirs}
        sent = {writer: fill(java4_client, running, topics[writer]) for writer, running in writers.items()}
        for running in writers.values():
            stop(running)
    open_halves = {writer: half_of(stores[writer], halves[ENDED_LATER]) for writer, (halves, _) in sent.items()}
    crossed: dict[str, Crossed] = {}
    with ExitStack() as stack:
        readers = {
            "gantrymq": stack.enter_context(theirs(java, homes, stores["gantrymq"], own_nameserver, "crossing-a")),
            "java": stack.enter_context(ours(homes, stores["java"], own_nameserver, "crossing-b")),
        }
        answered = {writer: end_what_is_open(running, open_halves[writer]) for writer, running in readers.items()}
        known = {CHECKED: "commit", DENIED: "rollback"}
        asked = stack.enter_context(Transactor.start(java4_client, own_nameserver, TOPIC, GROUP, known=known))
        consumers = {
            writer: stack.enter_context(java4_client.consumer(own_nameserver, topic, f"c-{topic}"))
            for writer, topic in topics.items()
        }
        for writer, consumer in consumers.items():
            try:
                consumer.wait(len(VISIBLE), 120)
            except AssertionError as error:
                error.add_note(f"the store of {writer} holds {ends_of(readers[writer], topics[writer])}")
                raise
        wanted = {(topic, index) for topic in topics.values() for index in known}

        def asked_about() -> set[tuple[str, int]]:
            asked.poll(0.05)
            return {(check.message.topic, check.message.index) for check in asked.checks if check.message is not None}

        wait_for(lambda: wanted <= asked_about())
        asked.listen(2 * INTERVAL_MS / 1000)  # what comes too often would come now
        for writer, running in readers.items():
            consumers[writer].poll(0)
            stop(running)
            records = [found for found, _ in log_records(stores[writer])]
            checks = [
                check for check in asked.checks if check.message is not None and check.message.topic == topics[writer]
            ]
            crossed[writer] = Crossed(
                topics[writer],
                *sent[writer],
                running.ready,
                answered[writer],
                checks,
                consumers[writer].messages,
                records[:RECORDS],
                records[RECORDS:],
            )
    return crossed


@pytest.fixture(params=["gantrymq", "java"])
def crossed(request: pytest.FixtureRequest, all_crossed: dict[str, Crossed]) -> Crossed:
    return all_crossed[request.param]


def test_the_other_broker_delivers_each_committed_message_once(crossed: Crossed):
    assert Counter(message.index for message in crossed.messages) == Counter(VISIBLE)
    for message in crossed.messages:
        assert message.sha256 == content(1, message.index).sha256
        assert message.topic == crossed.topic


def test_open_transactions_end_by_request_or_check_back_at_the_other_broker(crossed: Crossed):
    assert crossed.answered == [1, 1, 1, 0]
    asked = Counter((check.message.index, check.answer) for check in crossed.checks if check.message is not None)
    if crossed.topic == f"{TOPIC}-gantrymq":
        # RocketMQ, which reads that store, may have decided to ask when the end came in
        asked.pop((ENDED_LATER, "unknown"), None)
    assert asked == {(CHECKED, "commit"): 1, (DENIED, "rollback"): 1}
    keys = {message.index: message.properties["UNIQ_KEY"] for message in crossed.messages}
    assert {index: keys[index] for index in VISIBLE_HALVES} == {
        index: crossed.halves[index].msg_id for index in VISIBLE_HALVES
    }


def test_the_other_broker_delivers_delayed_messages_when_due(crossed: Crossed):
    levels = {index: level for level, indexes in DELAYED.items() for index in indexes}
    late = []
    for message in crossed.messages:
        if message.index in levels:
            due = message.born + DELAY_MS[levels[message.index]]
            assert due <= message.stored
            late.append(message.stored - max(due, crossed.ready))
    assert min(late) <= PROMPT_MS
    assert max(late) <= LATE_MS


def test_each_ended_transaction_has_an_op_message_in_the_log(crossed: Crossed):
    ended = {int(record.body) for record in crossed.records if record.topic == TRANS_OP_HALF_TOPIC}
    places: dict[str, set[int]] = {half.msg_id: set() for half in crossed.halves.values()}
    for record in crossed.records:
        if record.topic == TRANS_HALF_TOPIC:
            places[decode_properties(record.properties.decode())["UNIQ_KEY"]].add(record.queue_offset)
    assert ended <= set().union(*places.values())
    # a half message that a check stored again may have its end at either place
    assert [key for key, offsets in places.items() if not offsets & ended] == []


def test_the_same_requests_store_equal_records_except_times_and_hosts(all_crossed: dict[str, Crossed]):
    ours, theirs = (all_crossed[writer].recorded for writer in ("gantrymq", "java"))
    assert [found.topic for found in ours] == [
        TRANS_HALF_TOPIC, TRANS_HALF_TOPIC, RECORDED_TOPIC, TRANS_OP_HALF_TOPIC, TRANS_OP_HALF_TOPIC,
    ]  # fmt: skip
    for mine, other in zip(ours, theirs, strict=True):
        same = {"store_timestamp": 0, "store_host": b"", "born_host": b"", "properties": b""}
        if mine.topic == TRANS_OP_HALF_TOPIC:
            same |= {"born_timestamp": 0}
            assert mine.properties == other.properties
        assert attrs.evolve(mine, **same) == attrs.evolve(other, **same)
        properties = decode_properties(other.properties.decode())
        assert properties["WAIT"] == "true", "which RocketMQ leaves out of messages that go straight to their topic"
        assert decode_properties(mine.properties.decode()) == properties


def ends_of(running: Running, topic: str) -> dict[str, int]:
    """The ends of the queues where visible, half and delayed messages of ``topic`` lie."""
    queues = [(topic, 0), (topic, 1), (TRANS_HALF_TOPIC, 0), (TRANS_OP_HALF_TOPIC, 0)]
    queues += [("SCHEDULE_TOPIC_XXXX", level - 1) for level in DELAYED]
    ends = {}
    for name, queue in queues:
        answer = ask(running.address, Command(RequestCode.GET_MAX_OFFSET, {"topic": name, "queueId": str(queue)}))
        ends[f"{name}/{queue}"] = int((answer.ext or {})["offset"])
    return ends


def half_offsets(running: Running) -> int:
    """The number of half messages that the broker has written, including copies."""
    answer = ask(running.address, Command(RequestCode.GET_MAX_OFFSET, {"topic": TRANS_HALF_TOPIC, "queueId": "0"}))
    return int((answer.ext or {})["offset"])


def test_an_end_that_names_the_offset_before_the_message_was_rewritten_is_accepted(
    java: Java, homes: Homes, own_nameserver: str
):
    """RocketMQ looks at nothing but the place in the log, so a producer may be as late as it likes."""
    store, topic = homes("put-back"), "PutBack"
    properties = {"TRAN_MSG": "true", "PGROUP": GROUP, "WAIT": "true"}
    with theirs(java, homes, store, own_nameserver, "put-back", 500) as running:
        answers = []
        for body, key in ((b"ended there", "A1"), (b"ended here", "A2")):
            half = send(topic, body, properties=encode_properties({**properties, "UNIQ_KEY": key}))
            half.ext = {**(half.ext or {}), "g": str(int(time.time() * 1000))}  # what is born long ago is put aside
            answers.append(ask(running.address, half))
        deadline = time.monotonic() + 30
        while half_offsets(running) < 6:
            assert time.monotonic() < deadline, "no half message was put back"
            time.sleep(0.1)
        ends = [end_of(answer) for answer in answers]
        assert ask(running.address, ends[0]).code == 0
        stop(running)
    with ours(homes, store, own_nameserver, "put-back") as running:
        assert [ask(running.address, request).code for request in (ends[1], ends[1], ends[0])] == [0, 0, 0]
        stop(running)
    records = [found for found, _ in log_records(store)]
    committed = [(found.body, found.prepared_offset) for found in records if found.topic == topic]
    places = [int((answer.ext or {})["msgId"][-16:], 16) for answer in answers]
    # RocketMQ leaves the copy of what it has committed open, and commits it again with each request.
    assert committed[:2] == [(b"ended there", places[0]), (b"ended here", places[1])]
    assert [body for body, _ in committed].count(b"ended here") == 1


def end_of(answer: Command) -> Command:
    """The commit of the half message that ``answer`` tells of."""
    ext = answer.ext or {}
    header = EndTransactionHeader(
        producer_group=GROUP, tran_state_table_offset=int(ext["queueOffset"]),
        commit_log_offset=int(ext["msgId"][-16:], 16), commit_or_rollback=TransactionState.COMMIT, msg_id="any",
    )  # fmt: skip
    return Command(RequestCode.END_TRANSACTION, header.to_ext())

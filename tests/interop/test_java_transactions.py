"""RocketMQ's TransactionMQProducer, 4.9.7 and 5.3.3, on both brokers: check-backs and delivered messages.

Each broker is started once, with a short check interval, and gets the same transactions from both clients. The tests
check the results, and whether both brokers had the same ones.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path

import attrs
import pytest

import gantrymq.sync
from gantrymq.message import DeliveredRecord
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.transactions import ResumeCheckHeader
from support.clients import Consumer, ForeignClient, Received, wait_until
from support.content import content
from support.foreign import JAVA_VERSIONS, Java, ask, start_broker, start_nameserver
from support.processes import free_ports, gantrymq_child
from support.transactions import Checked, SentHalf, Transactor

pytestmark = [pytest.mark.interop, pytest.mark.slow]

Homes = Callable[[str], Path]

INTERVAL_MS = 500
TIMEOUT_MS = 1_000
IMMUNITY_SECONDS = 2
CHECK_MAX = 8
"""RocketMQ counts the rounds of a message that is immune as checks: there must be more than its immunity has."""
OURS = (
    f"plugin.transaction.check_interval={INTERVAL_MS}ms",
    f"plugin.transaction.timeout={TIMEOUT_MS}ms",
    f"plugin.transaction.check_max={CHECK_MAX}",
    "plugin.flush.mode=async",  # a late disk would have transactions checked whose producer has not got its answer
)
THEIRS = {
    "transactionCheckInterval": str(INTERVAL_MS),
    "transactionTimeOut": str(TIMEOUT_MS),
    "transactionCheckMax": str(CHECK_MAX),
}


@attrs.frozen
class Order:
    """A transaction: the outcome of its branch, those of its checks, and how its message is sent."""

    local: str
    checks: str
    delay: int = 0
    immunity: int = 0


COMMITTED, ROLLED_BACK, CHECKED, DENIED, NOTHING, RAISED, TWICE, DELAYED, IMMUNE, FORGOTTEN, CHECK_RAISED = range(11)
ORDERS = {
    COMMITTED: Order("commit", "commit"),
    ROLLED_BACK: Order("rollback", "rollback"),
    CHECKED: Order("unknown", "commit"),
    DENIED: Order("unknown", "rollback"),
    NOTHING: Order("null", "commit"),
    RAISED: Order("raise", "commit"),
    TWICE: Order("unknown", "unknown,commit"),
    DELAYED: Order("commit", "commit", delay=3),
    IMMUNE: Order("unknown", "commit", immunity=IMMUNITY_SECONDS),
    FORGOTTEN: Order("unknown", "unknown"),
    CHECK_RAISED: Order("unknown", "raise,commit"),
}
RESUME_SECONDS = {"gantrymq": 60.0, "java": 5.0}
"""The wait for a check-back of a resumed transaction; RocketMQ never sends one."""
VISIBLE = {COMMITTED, CHECKED, NOTHING, RAISED, TWICE, DELAYED, IMMUNE, CHECK_RAISED}
ASKED = {CHECKED: 1, DENIED: 1, NOTHING: 1, RAISED: 1, TWICE: 2, IMMUNE: 1, FORGOTTEN: CHECK_MAX, CHECK_RAISED: 2}
"""Check-backs of each transaction. A broker repeats one whose answer takes longer than the interval."""


@attrs.frozen
class Story:
    """The results of one client at one broker."""

    broker: str
    topic: str
    group: str
    sent: dict[int, SentHalf]
    checks: list[Checked]
    messages: list[Received]

    @property
    def asked(self) -> Counter[int]:
        """How often the broker checked each transaction."""
        return asked_in(self.checks)

    @property
    def is_on_time(self) -> bool:
        """Whether the check-backs of FORGOTTEN came at their pace. If so, no answer took long enough for another."""
        asked = [check.message for check in self.checks if check.message and check.message.index == FORGOTTEN]
        first_ms = asked[0].received - asked[0].born - TIMEOUT_MS
        pace_ms = INTERVAL_MS if self.broker == "java" else TIMEOUT_MS + INTERVAL_MS
        late_ms = max(first_ms - INTERVAL_MS, *(two.received - one.received - pace_ms for one, two in pairwise(asked)))
        return late_ms < 0.8 * INTERVAL_MS


@attrs.frozen
class Observed:
    """The results of both clients, the discarded half messages, and the responses to resume requests."""

    stories: dict[str, Story]
    discarded: list[DeliveredRecord]
    resumed: list[tuple[int, str | None]]
    checked_again: dict[str, set[int]]
    """The messages of the questions that came of it, by topic."""


@contextmanager
def ours(homes: Homes) -> Iterator[str]:
    """The nameserver of GantryMQ."""
    home = homes("ours")
    broker, nameserver = (f"127.0.0.1:{port}" for port in free_ports(2))
    serve = ["serve", "--data", str(home / "store"), "--listen", broker, "--nameserver-listen", nameserver]
    for setting in OURS:
        serve += ["--set", setting]
    with gantrymq_child(serve, home / "serve.err") as child:
        child.wait_line(lambda line: line.startswith("ready"))
        yield nameserver


@contextmanager
def theirs(java: Java, homes: Homes) -> Iterator[str]:
    """The nameserver of RocketMQ 4.9.7."""
    nameserver = start_nameserver(java, homes("java-nameserver"))
    try:
        server = start_broker(java, homes("java-broker"), nameserver.address, **THEIRS)
        try:
            yield nameserver.address
        finally:
            server.discard()
    finally:
        nameserver.discard()


def make_topic(nameserver: str, topic: str) -> None:
    with gantrymq.sync.connect(nameserver) as client:
        client.admin.create_topic(topic, queues=2)


def read_discarded(nameserver: str, count: int) -> list[DeliveredRecord]:
    """The messages in TRANS_CHECK_MAX_TIME_TOPIC, once they are ``count``."""
    deadline = time.monotonic() + 30
    last = "no such message"
    with gantrymq.sync.connect(nameserver) as client:
        while True:
            try:
                (queue,) = client.admin.queues("TRANS_CHECK_MAX_TIME_TOPIC")
                records = [client.admin.message_at(queue, offset) for offset in range(count)]
                if all(records):
                    return [record for record in records if record is not None]
            except gantrymq.GantryError as error:  # there is no such topic before the first of them
                last = str(error)
            if time.monotonic() > deadline:
                raise AssertionError(f"nothing was discarded: {last}")
            time.sleep(0.1)


def asked_in(checks: list[Checked]) -> Counter[int]:
    """The check-backs of each transaction."""
    return Counter(check.message.index for check in checks if check.message is not None)


def wait_asked(transactor: Transactor) -> None:
    """Wait until each transaction has had its check-backs."""
    deadline = time.monotonic() + 60
    while not asked_in(transactor.checks) >= Counter(ASKED):
        assert time.monotonic() < deadline, asked_in(transactor.checks)
        transactor.poll(0.05)


def run(broker: str, nameserver: str, clients: dict[str, ForeignClient]) -> Observed:
    with ExitStack() as stack:
        running: dict[str, tuple[Transactor, Consumer, dict[int, SentHalf]]] = {}
        for version, client in clients.items():
            topic = f"Transactions-{version.replace('.', '-')}"
            make_topic(nameserver, topic)
            transactor = stack.enter_context(Transactor.start(client, nameserver, topic, f"p-{topic}"))
            consumer = stack.enter_context(client.consumer(nameserver, topic, f"c-{topic}"))
            running[topic] = transactor, consumer, {}
        for index, order in ORDERS.items():
            for transactor, _, sent in running.values():
                sent[index] = transactor.send(index, order.local, order.checks, order.delay, order.immunity)
        for transactor, consumer, _ in running.values():
            wait_until(lambda consumer=consumer: len(consumer.messages) >= len(VISIBLE), [consumer])
            wait_asked(transactor)
        discarded = read_discarded(nameserver, len(clients))
        stories = {}
        for topic, (transactor, consumer, sent) in running.items():
            transactor.poll(2 * INTERVAL_MS / 1000)  # what comes too often would come now
            consumer.poll(0)
            group = f"p-{topic}"
            stories[topic] = Story(broker, topic, group, sent, list(transactor.checks), consumer.messages)
        resumed = resume(nameserver, discarded)
        checked_again: dict[str, set[int]] = {}
        deadline = time.monotonic() + RESUME_SECONDS[broker]
        while len(checked_again) < len(running) and time.monotonic() < deadline:
            for topic, (transactor, _, _) in running.items():
                transactor.poll(0.05)
                for check in transactor.checks[len(stories[topic].checks) :]:
                    if check.message is not None:
                        checked_again.setdefault(topic, set()).add(check.message.index)
        return Observed(stories, discarded, resumed, checked_again)


def resume(nameserver: str, discarded: list[DeliveredRecord]) -> list[tuple[int, str | None]]:
    """RESUME_CHECK_HALF_MESSAGE for each message, and for two that there are not."""
    with gantrymq.sync.connect(nameserver) as client:
        (data,) = client.admin.route("TRANS_CHECK_MAX_TIME_TOPIC").broker_datas
    host = discarded[0].offset_message_id[:16]
    answers = []
    for name in (*(record.offset_message_id for record in discarded), f"{host}{2**40:016X}", "nonsense"):
        header = ResumeCheckHeader(msg_id=name)
        answer = ask(data.broker_addrs[0], Command(RequestCode.RESUME_CHECK_HALF_MESSAGE, header.to_ext()))
        answers.append((answer.code, answer.remark))
    return answers


@pytest.fixture(scope="module")
def clients(java4_client: ForeignClient, java5_client: ForeignClient) -> dict[str, ForeignClient]:
    return dict(zip(JAVA_VERSIONS, (java4_client, java5_client), strict=True))


@pytest.fixture(scope="module")
def observed_by_both(java: Java, homes: Homes, clients: dict[str, ForeignClient]) -> dict[str, Observed]:
    """The results by broker. Both run at the same time, because most of it is waiting for check-backs."""

    def play(broker: str, system: AbstractContextManager[str]) -> Observed:
        with system as nameserver:
            return run(broker, nameserver, clients)

    brokers = ("gantrymq", "java")
    with ThreadPoolExecutor(2) as threads:
        return dict(zip(brokers, threads.map(play, brokers, (ours(homes), theirs(java, homes))), strict=True))


@pytest.fixture(scope="module")
def observed_by_gantrymq(observed_by_both: dict[str, Observed]) -> Observed:
    return observed_by_both["gantrymq"]


@pytest.fixture(scope="module")
def observed_by_java(observed_by_both: dict[str, Observed]) -> Observed:
    return observed_by_both["java"]


@pytest.fixture(params=["gantrymq", "java"])
def observed(request: pytest.FixtureRequest, observed_by_both: dict[str, Observed]) -> Observed:
    return observed_by_both[request.param]


@pytest.fixture(params=JAVA_VERSIONS)
def story(request: pytest.FixtureRequest, observed: Observed) -> Story:
    return observed.stories[f"Transactions-{request.param.replace('.', '-')}"]


def added(message: Received) -> dict[str, str]:
    """The properties that neither the producer's user nor the ordinary road put there."""
    given = content(1, message.index).all_properties
    assert {name: message.properties[name] for name in given} == given
    ordinary = {
        *given,
        "UNIQ_KEY",
        "CLUSTER",
        "MIN_OFFSET",
        "MAX_OFFSET",
        "CONSUME_START_TIME",
        "MSG_REGION",
        "TRACE_ON",
    }
    return {name: text for name, text in message.properties.items() if name not in ordinary}


def test_consumers_get_each_committed_message_once_and_no_other(story: Story):
    times = Counter(message.index for message in story.messages)
    assert set(times) == VISIBLE
    for index in VISIBLE:
        # RocketMQ commits once for each answer (EndTransactionProcessor), and some check-backs are repeated
        repeated = story.asked[index] - ASKED.get(index, 0) if story.broker == "java" else 0
        assert 1 <= times[index] <= 1 + repeated
    for message in story.messages:
        assert message.sha256 == content(1, message.index).sha256
        assert message.properties["UNIQ_KEY"] == story.sent[message.index].msg_id == message.msg_id
        assert message.topic == story.topic


def test_a_committed_message_has_the_properties_of_its_half_message(story: Story):
    for message in story.messages:
        properties = added(message)
        assert properties.pop("REAL_QID") == str(message.queue_id) == str(story.sent[message.index].queue_id)
        assert properties.pop("REAL_TOPIC") == story.topic
        assert properties.pop("PGROUP") == story.group
        checks = int(properties.pop("TRANSACTION_CHECK_TIMES", "0"))
        assert message.index == IMMUNE or ASKED.get(message.index, 0) <= checks <= story.asked[message.index]
        assert "DELAY" not in properties


def test_the_broker_repeats_check_backs_while_the_outcome_is_unknown(story: Story):
    asked = story.asked
    assert set(asked) == set(ASKED), "none whose branch has committed or rolled back"
    assert asked == Counter(ASKED) or (asked >= Counter(ASKED) and not story.is_on_time)
    assert asked[FORGOTTEN] == CHECK_MAX
    for check in story.checks:
        message = check.message
        assert message is not None
        assert check.transaction_id == story.sent[message.index].msg_id
        assert (message.topic, message.sha256) == (story.topic, content(1, message.index).sha256)
        wait_ms = IMMUNITY_SECONDS * 1000 if message.index == IMMUNE else TIMEOUT_MS
        assert message.received - message.born >= wait_ms


def test_a_transaction_of_unknown_outcome_is_discarded_after_the_configured_checks(observed: Observed):
    assert sorted(record.properties["PGROUP"] for record in observed.discarded) == sorted(
        story.group for story in observed.stories.values()
    )
    for record in observed.discarded:
        assert record.properties["index"] == str(FORGOTTEN)
        assert record.body == content(1, FORGOTTEN).body


def test_a_resumed_transaction_is_checked_back_again(observed_by_gantrymq: Observed, observed_by_java: Observed):
    refused = (1, "Exception was thrown when putting message back to RMQ_SYS_TRANS_HALF_TOPIC.")
    assert observed_by_gantrymq.resumed == [(0, None)] * len(observed_by_gantrymq.discarded) + [refused] * 2
    assert observed_by_java.resumed == observed_by_gantrymq.resumed
    assert observed_by_gantrymq.checked_again == {topic: {FORGOTTEN} for topic in observed_by_gantrymq.stories}
    assert observed_by_java.checked_again == {}, (
        "RocketMQ puts back the body of a compressed message as none can read it"
    )


def looks(story: Story) -> dict[str, object]:
    """The results of clients without ids and times."""
    # RocketMQ names the first half message of a transaction only in copies of immune ones, our broker in all copies
    own = {
        "UNIQ_KEY", "MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME", "REAL_QID", "TRAN_PREPARED_QUEUE_OFFSET",
    }  # fmt: skip
    # RocketMQ counts the rounds of the immunity as well, and its copies of immune ones say WAIT=false
    rounds = {"TRANSACTION_CHECK_TIMES"}

    facts: dict[str, object] = {}

    def add(name: str, message: Received, varying: Collection[str]) -> None:
        facts[name] = message.topic, message.reconsume_times, message.size, message.sha256
        varying = {*varying, *rounds, "WAIT"} if message.index == IMMUNE else varying
        facts.update({f"{name} {key}": text for key, text in message.properties.items() if key not in varying})

    for message in story.messages:
        add(f"consumed {message.index}", message, own | rounds)  # the rounds depend on when the answer came
    turns: Counter[int] = Counter()
    for check in story.checks:
        if check.message is not None and turns[check.message.index] < ASKED[check.message.index]:
            turns[check.message.index] += 1
            add(f"asked {check.message.index} {turns[check.message.index]}: {check.answer}", check.message, own)
    for index, sent in story.sent.items():
        facts[f"sent {index}"] = (sent.status, sent.state, sent.transaction_id == sent.msg_id)
    return facts


def test_both_brokers_had_the_same_results(observed_by_gantrymq: Observed, observed_by_java: Observed):
    for topic, story in observed_by_gantrymq.stories.items():
        ours, theirs = looks(story), looks(observed_by_java.stories[topic])
        assert {
            name: (ours.get(name), theirs.get(name)) for name in ours | theirs if ours.get(name) != theirs.get(name)
        } == {}
    assert discarded_of(observed_by_gantrymq) == discarded_of(observed_by_java)


def discarded_of(observed: Observed) -> list[tuple[object, ...]]:
    own = {"UNIQ_KEY", "REAL_QID", "TRAN_PREPARED_QUEUE_OFFSET"}
    return sorted(
        (
            record.topic,
            record.queue_id,
            record.sys_flag,
            sorted(item for item in record.properties.items() if item[0] not in own),
        )
        for record in observed.discarded
    )

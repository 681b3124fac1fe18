"""kill -9 of a real broker, again and again on one store, while delayed and transactional messages are sent.

A message's fate stands in its body: to come a second later, by a delay level or at a time of its own; committed or
rolled back at once; left open by its producer, which answers "commit" or "rollback" to the check-back. At the end a
producer answers whatever is still asked, then the book must balance. ``GANTRYMQ_MIXED_ROUNDS`` sets how often the
broker is killed. Rows 54, 55, 62 and 64.
"""

from __future__ import annotations

import os
import random
import uuid
import zlib
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest
import trio

import gantrymq
from gantrymq import Message, Outcome, SendStatus
from gantrymq.message import DeliveredRecord
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.records import decode_records
from gantrymq.testing.requests import send
from support.foreign import ask, runtime_info
from support.processes import free_ports, gantrymq_child

ROUNDS = int(os.environ.get("GANTRYMQ_MIXED_ROUNDS", "4"))
TOPIC = "MixedTopic"
GROUP = "mixed"
QUEUES = 2
DELAYED_TASKS, TRANSACTION_TASKS = 4, 6
PATIENCE_S = 60
FATES = {"c": Outcome.COMMIT, "r": Outcome.ROLLBACK, "u": Outcome.UNKNOWN, "v": Outcome.UNKNOWN}
"""The first outcome by fate; check-backs of ``u`` and ``v`` answer commit and rollback."""
DELAYS = {"d": "DELAY\x011", "t": "TIMER_DELAY_MS\x01{ms}"}
"""Delayed by a level, and by a time of the message's own, which may lie behind the next kill."""
TIMES_MS = (1, 2000)
SEEN = "cu" + "".join(DELAYS)
"""Fates with which a message is to be seen."""

pytestmark = [pytest.mark.crash, pytest.mark.slow]


@attrs.define
class Book:
    """Sent messages, acknowledged ones, and those that are there at the end."""

    run: str
    numbers: Counter[str] = attrs.field(factory=Counter)
    promised: set[str] = attrs.field(factory=set)
    asked: set[str] = attrs.field(factory=set)

    def body(self, fate: str) -> bytes:
        name = f"{self.run} {fate} {self.numbers[fate]}"
        self.numbers[fate] += 1
        rest = b"." * random.randrange(600)
        return f"{name} {zlib.crc32(name.encode() + rest):08x} ".encode() + rest

    def name(self, body: bytes) -> str:
        """The number of this message, which must be intact and one that was sent."""
        run, fate, number, crc, rest = body.split(b" ", 4)
        name = b" ".join((run, fate, number))
        assert run.decode() == self.run, f"{body[:60]!r} was never sent"
        assert int(number) < self.numbers[fate.decode()], f"{name!r} was never sent"
        assert int(crc, 16) == zlib.crc32(name + rest), f"{name!r} is damaged"
        return name.decode()

    def missing(self, bodies: list[bytes]) -> list[str]:
        """Acknowledged messages that should be visible and are missing."""
        seen = {self.name(body) for body in bodies}
        return [name for name in self.promised if name.split()[1] in SEEN and name not in seen]

    def check(self, bodies: list[bytes], kills: int) -> Counter[str]:
        """Balance the book. Returns how many messages are there more than once, by their fates."""
        seen = Counter(self.name(body) for body in bodies)
        for name, count in seen.items():
            assert name.split()[1] in SEEN, f"{name!r} was rolled back and can be read"
            assert count <= 1 + kills, f"{name!r} is there {count} times"
        lost = self.missing(bodies)
        assert not lost, f"{len(lost)} messages are lost, the first of them {sorted(lost)[:5]}"
        return Counter(name.split()[1] for name, count in seen.items() if count > 1)


class Broker:
    """Our broker with small files, quick delays and quick questions."""

    def __init__(self, folder: Path, strategy: str) -> None:
        self.folder = folder
        self.strategy = strategy
        self.address, self.nameserver = (f"127.0.0.1:{port}" for port in free_ports(2))

    @contextmanager
    def running(self):
        settings = {
            "store.commit_log_file_bytes": "256 KiB", "store.queue_file_units": "100",
            "store.max_message_bytes": "64 KiB", "broker.persist_interval": "300ms", "plugin.delay.levels": "1s 2s",
            "plugin.transaction.strategy": self.strategy, "plugin.transaction.check_interval": "200ms",
            "plugin.transaction.timeout": "200ms", "plugin.transaction.check_max": "100000",
        }  # fmt: skip
        serve = ["serve", "--data", str(self.folder / "data")]
        serve += ["--listen", self.address, "--nameserver-listen", self.nameserver]
        for key, value in settings.items():
            serve += ["--set", f"{key}={value}"]
        with gantrymq_child(serve, self.folder / "broker.err") as child:
            child.wait_line(lambda line: line.startswith("ready"))
            yield child

    def is_settled(self) -> bool:
        """Whether no transaction is open and no message waits for its delay level."""
        table = runtime_info(self.address)
        done, end = table.get("scheduleMessageOffset_1", "0,0").split(",")
        return table["openTransactions"] == "0" and done == end

    def read_all(self) -> list[bytes]:
        return [body for queue_id in range(QUEUES) for body in self._read(queue_id)]

    def _read(self, queue_id: int) -> list[bytes]:
        bodies: list[bytes] = []
        while True:
            fields = {
                "topic": TOPIC, "queueId": queue_id, "consumerGroup": "ledger", "queueOffset": len(bodies),
                "maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*",
                "subVersion": 0,
            }  # fmt: skip
            ext = {name: str(value) for name, value in fields.items()}
            answer = ask(self.address, Command(RequestCode.PULL_MESSAGE, ext))
            if answer.code == ResponseCode.PULL_NOT_FOUND:
                return bodies
            assert answer.code == ResponseCode.SUCCESS, f"queue {queue_id}: {answer.code} {answer.remark}"
            bodies += [record.body for record in decode_records(answer.body)]


class Load:
    """Producers against one life of the broker; all of them end when it dies."""

    def __init__(self, broker: Broker, book: Book) -> None:
        self._broker = broker
        self._book = book
        self.dead = False

    async def run(self, kill: Callable[[], None], seconds: float) -> None:
        async with gantrymq.connect(self._broker.nameserver) as client:
            async with (
                client.transactional_producer(GROUP, check=self._check, topics=[TOPIC], retries=0) as producer,
                open_channel(self._broker.address) as channel,
                trio.open_nursery() as nursery,
            ):
                for _ in range(DELAYED_TASKS):
                    nursery.start_soon(self._until_dead, self._send_delayed, channel)
                for _ in range(TRANSACTION_TASKS):
                    nursery.start_soon(self._until_dead, self._transact, producer)
                await trio.sleep(seconds)
                kill()
                self.dead = True
                nursery.cancel_scope.deadline = trio.current_time() + 0.3

    async def settle(self) -> None:
        """Answer the broker until nothing is left open, and everything is due that has a time of its own."""
        async with gantrymq.connect(self._broker.nameserver) as client:
            async with client.transactional_producer(GROUP, check=self._check, topics=[TOPIC]):
                with trio.fail_after(PATIENCE_S):
                    # another process: there is nothing to wait for but its answers
                    while not await trio.to_thread.run_sync(self._broker.is_settled):  # noqa: ASYNC110
                        await trio.sleep(0.2)
        await trio.sleep(TIMES_MS[1] / 1000)
        with trio.move_on_after(PATIENCE_S):
            while self._book.missing(await trio.to_thread.run_sync(self._broker.read_all)):  # noqa: ASYNC110
                await trio.sleep(0.2)

    def _check(self, record: DeliveredRecord) -> Outcome:
        name = self._book.name(record.body)
        self._book.asked.add(name)
        return Outcome.COMMIT if name.split()[1] in SEEN else Outcome.ROLLBACK

    async def _until_dead(self, step, *arguments) -> None:
        while True:
            try:
                await step(*arguments)
            except gantrymq.GantryError:
                # Until the kill is carried out everything must work; after it every failure is one.
                if not self.dead:
                    raise
                return

    async def _send_delayed(self, channel: Channel) -> None:
        fate = random.choice(list(DELAYS))
        body = self._book.body(fate)
        properties = DELAYS[fate].format(ms=random.randint(*TIMES_MS))
        queue_id = random.randrange(QUEUES)
        answer = await channel.call(send(TOPIC, body, queue_id=queue_id, queues=QUEUES, properties=properties))
        if answer.code == ResponseCode.SUCCESS:
            self._book.promised.add(self._book.name(body))

    async def _transact(self, producer) -> None:
        fate = random.choice("ccccrruv")
        body = self._book.body(fate)

        def local(_message: Message, _transaction: str) -> Outcome:
            return FATES[fate]

        result = await producer.send(TOPIC, body, local=local)
        if result.sent.status is SendStatus.OK:
            self._book.promised.add(self._book.name(body))


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("strategy", ["half", "state_table"])
def test_no_delayed_or_transactional_message_is_lost_by_kill_9(tmp_path: Path, strategy: str):
    seed = int(os.environ.get("GANTRYMQ_KILL_SEED", random.SystemRandom().randrange(2**32)))
    print(f"GANTRYMQ_KILL_SEED={seed}")
    chance = random.Random(seed)
    book = Book(uuid.uuid4().hex)
    broker = Broker(tmp_path, strategy)
    for number in range(ROUNDS):
        with broker.running() as child:
            if not number:
                trio.run(_create_topic, broker.nameserver)
            trio.run(Load(broker, book).run, child.kill, chance.uniform(0.1, 1.5))
    with broker.running() as child:
        trio.run(Load(broker, book).settle)
        bodies = broker.read_all()
        doubled = book.check(bodies, ROUNDS)
        assert child.terminate() == 0
    sent = sum(book.numbers.values())
    print(f"{strategy}: {ROUNDS} kills, {sent} sent, {len(book.promised)} promised, {len(bodies)} there, "
          f"{len(book.asked)} asked about, more than once: {dict(doubled)}")  # fmt: skip
    assert len(book.promised) > 20 * ROUNDS
    assert book.asked


async def _create_topic(nameserver: str) -> None:
    async with gantrymq.connect(nameserver) as client:
        await client.admin.create_topic(TOPIC, queues=QUEUES)

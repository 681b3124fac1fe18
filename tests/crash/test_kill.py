"""kill -9 of a real broker under load, again and again on one store: no acknowledged message is lost or altered.

Each round starts the broker on the store of the round before, reads what is new, loads it from our own client (single
messages, batches, and a consumer that reads along) and kills it at a random instant. ``GANTRYMQ_KILL_ROUNDS`` sets how
often: 20 times in CI, 100 times, half of them on each of two stores, with ``make soak``. The index follows, and old
files are deleted meanwhile: what goes by age was read before.
"""

from __future__ import annotations

import os
import random
import time
import uuid
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

import gantrymq
from gantrymq import Message, SendStatus
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.records import decode_records
from gantrymq.testing.ledger import Ledger
from support.foreign import ask
from support.processes import free_ports, gantrymq_child
from support.slices import is_whole

ROUNDS = int(os.environ.get("GANTRYMQ_KILL_ROUNDS", 100 if is_whole() else 20 if os.environ.get("CI") == "true" else 8))
STORES = [ROUNDS] if ROUNDS < 40 else [ROUNDS - ROUNDS // 2, ROUNDS // 2]
"""The rounds on each store. Old files go only from a store that lives long enough."""
TOPIC = "LedgerTopic"
QUEUES = 4
SINGLES, BATCHES, BATCH = 12, 2, 8
"""Tasks that send messages one by one, tasks that send batches, and how many messages a batch has."""
AGAIN = 40
"""The number of older offsets that each round reads again."""
KEEP_S = 20
"""The retention time. Each message is read in the round after it was sent, at an age of some seconds."""

pytestmark = [pytest.mark.crash, pytest.mark.slow]


class Broker:
    """Our broker with small files, so that kills fall on their ends as well."""

    def __init__(self, folder: Path, flush: str = "sync") -> None:
        self.folder = folder
        self.flush = flush
        self.address, self.nameserver = (f"127.0.0.1:{port}" for port in free_ports(2))

    @contextmanager
    def running(self):
        sizes = {"commit_log_file_bytes": "256 KiB", "queue_file_units": "100", "max_message_bytes": "64 KiB"}
        serve = ["serve", "--data", str(self.folder / "data")]
        serve += ["--listen", self.address, "--nameserver-listen", self.nameserver]
        serve += ["--set", f"plugin.flush.mode={self.flush}"]
        for key, value in sizes.items():
            serve += ["--set", f"store.{key}={value}"]
        retention = {"keep": f"{KEEP_S}s", "at": ";".join(map(str, range(24))), "check_interval": "100ms"}
        for key, value in retention.items():
            serve += ["--set", f"plugin.retention.{key}={value}"]
        with gantrymq_child(serve, self.folder / "broker.err") as child:
            child.wait_line(lambda line: line.startswith("ready"))
            yield child


class Reader:
    """Reads the queues with plain pulls, and knows how far it came."""

    def __init__(self, address: str, ledger: Ledger) -> None:
        self._address = address
        self._ledger = ledger
        self.ends = dict.fromkeys(range(QUEUES), 0)

    def read_new(self, again: int = AGAIN) -> None:
        for queue_id, known in self.ends.items():
            end = int(self._ask(RequestCode.GET_MAX_OFFSET, queue_id).ext["offset"])
            assert end >= known, f"queue {queue_id} ended at {known} and ends at {end} after a kill"
            offset = max(known - again, self._start(queue_id))
            while offset < end:
                offset = self._pull(queue_id, offset)
            self.ends[queue_id] = offset  # the queue may have grown meanwhile

    def _start(self, queue_id: int) -> int:
        return int(self._ask(RequestCode.GET_MIN_OFFSET, queue_id).ext["offset"])

    def _pull(self, queue_id: int, offset: int) -> int:
        answer = self._ask(
            RequestCode.PULL_MESSAGE, queue_id, queueOffset=offset, maxMsgNums=32, sysFlag=4, commitOffset=0,
            suspendTimeoutMillis=0, subscription="*", subVersion=0,
        )  # fmt: skip
        if answer.code != ResponseCode.SUCCESS and (start := self._start(queue_id)) > offset:
            return start  # deleted between two requests
        assert answer.code == ResponseCode.SUCCESS, f"queue {queue_id} at {offset}: {answer.code} {answer.remark}"
        records = decode_records(answer.body)
        assert [record.queue_offset for record in records] == list(range(offset, offset + len(records)))
        assert records
        for record in records:
            self._ledger.observe(record.body, record.queue_id, record.queue_offset)
        return offset + len(records)

    def _ask(self, code: RequestCode, queue_id: int, **fields: object) -> Command:
        ext = {"topic": TOPIC, "queueId": queue_id, "consumerGroup": "ledger", **fields}
        return ask(self._address, Command(code, {name: str(value) for name, value in ext.items()}))


class Load:
    """Our client's tasks against one life of the broker; all of them end when it dies."""

    def __init__(self, nameserver: str, ledger: Ledger) -> None:
        self._nameserver = nameserver
        self._ledger = ledger
        self.dead = False

    async def run(self, kill: Callable[[], None], seconds: float) -> None:
        async with gantrymq.connect(self._nameserver) as client:
            group = f"along-{uuid.uuid4().hex}"
            async with (
                client.producer("ledger", retries=0) as producer,
                client.consumer(TOPIC, group, start="last") as consumer,
                trio.open_nursery() as nursery,
            ):
                for number in range(SINGLES):
                    nursery.start_soon(self._until_dead, self._send_one, producer, number)
                for number in range(SINGLES, SINGLES + BATCHES):
                    nursery.start_soon(self._until_dead, self._send_batch, producer, number)
                nursery.start_soon(self._until_dead, self._read_one, consumer)
                await trio.sleep(seconds)
                kill()
                self.dead = True
                nursery.cancel_scope.deadline = trio.current_time() + 0.3  # for answers under way; then the consumer

    async def _until_dead(self, step, *arguments) -> None:
        while True:
            try:
                await step(*arguments)
            except gantrymq.GantryError:
                # Until the kill is carried out everything must work; after it every failure is one.
                if not self.dead:
                    raise
                return

    async def _send_one(self, producer, number: int) -> None:
        body = self._ledger.next_body(number)
        self._note(body, await producer.send(TOPIC, body))

    async def _send_batch(self, producer, number: int) -> None:
        bodies = [self._ledger.next_body(number) for _ in range(BATCH)]
        results = await producer.send_batch([Message(TOPIC, body) for body in bodies])
        for body, result in zip(bodies, results, strict=True):
            self._note(body, result)

    def _note(self, body: bytes, result) -> None:
        if result.status is SendStatus.OK:
            self._ledger.acknowledge(body, result.queue.queue_id, result.queue_offset)

    async def _read_one(self, consumer) -> None:
        message = await anext(consumer)
        self._ledger.observe(message.body, message.queue_id, message.queue_offset)
        await message.ack()


@pytest.mark.timeout(600 + 6 * ROUNDS)
@pytest.mark.parametrize(("flush", "rounds"), [*(("sync", rounds) for rounds in STORES), ("buffered", min(ROUNDS, 8))])
def test_no_acknowledged_message_is_lost_or_altered_by_kill_9(tmp_path: Path, flush: str, rounds: int):
    seed = int(os.environ.get("GANTRYMQ_KILL_SEED", random.SystemRandom().randrange(2**32)))
    print(f"GANTRYMQ_KILL_SEED={seed}")
    chance = random.Random(seed)
    ledger = Ledger(uuid.uuid4().hex)
    broker = Broker(tmp_path, flush)
    reader = Reader(broker.address, ledger)
    read_along = 0
    began = time.monotonic()
    for _ in range(rounds):
        with broker.running() as child:
            if not ledger.sent:
                trio.run(_create_topic, broker.nameserver)
            reader.read_new()
            before = ledger.read
            trio.run(Load(broker.nameserver, ledger).run, child.kill, chance.uniform(0.05, 0.8))
            read_along += ledger.read - before
    with broker.running() as child:
        everything = Reader(broker.address, ledger)
        everything.read_new()
        reader.read_new()
        ledger.check(everything.ends)
        assert child.terminate() == 0
    print(f"{rounds} kills, {ledger.sent} sent, {ledger.acknowledged} acknowledged, {read_along} read along")
    assert ledger.acknowledged > 20 * rounds
    assert read_along > 0
    files = sorted(path.name for path in (tmp_path / "data" / "commitlog").iterdir())
    assert len(files) > 1
    # A busy machine makes few rounds long, and the broker lives too shortly in them to look for old files.
    assert int(files[0]) > 0 or rounds < 20 or time.monotonic() - began < 2 * KEEP_S, "old files went"


async def _create_topic(nameserver: str) -> None:
    async with gantrymq.connect(nameserver) as client:
        await client.admin.create_topic(TOPIC, queues=QUEUES)


def test_a_broker_killed_during_recovery_recovers_at_the_next_start(tmp_path: Path):
    ledger = Ledger(uuid.uuid4().hex)
    broker = Broker(tmp_path)
    with broker.running() as child:
        trio.run(_create_topic, broker.nameserver)
        trio.run(Load(broker.nameserver, ledger).run, child.kill, 0.8)
    for number in range(5):
        _kill_while_it_starts(broker, 0.15 + 0.05 * number)
    with broker.running():
        reader = Reader(broker.address, ledger)
        reader.read_new()
        ledger.check(reader.ends)
    assert ledger.acknowledged


def _kill_while_it_starts(broker: Broker, seconds: float) -> None:
    serve = ("serve", "--data", str(broker.folder / "data"), "--listen", broker.address)
    log = broker.folder / "broker.err"
    with gantrymq_child((*serve, "--nameserver-listen", broker.nameserver), log, warm=False) as child:
        child.try_line(seconds)  # the banner comes after recovery
        child.kill()

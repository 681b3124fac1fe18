"""Rounds of faults on a master and its slaves as real processes, with a promotion and the old master's return.

Senders and readers work all the time, and what they saw is checked (``gantrymq.testing.history``). A round: a slave
that lags or flaps, or none; the loss of the master (kill -9, SIGSTOP, SIGTERM, a partition from a random part of the
others, and where this user may mount, a power cut); a promotion, by a watcher and a real etcd or by the code of
``gantrymq cluster promote``; the old master's return at a random moment, as a slave or first as a master. Beside it
etcd is away for a while, one of two nameservers is lost and comes back with nothing, or a second watcher joins. Rounds
are grouped: each group has a new cluster, a pair or a triple, with synchronous or asynchronous flush.

``make ha-test`` runs it for hours: ``GANTRYMQ_HA_ROUNDS`` rounds, ``GANTRYMQ_HA_SECONDS`` at most.
``GANTRYMQ_HA_SEED`` repeats the choices of a run; processes take their own time, so the rest is not the same.
"""

from __future__ import annotations

import json
import math
import os
import random
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from itertools import chain
from pathlib import Path

import pytest
import trio

from gantrymq.failover import promotion
from gantrymq.failover.etcd import EtcdLock, parse_endpoints
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.testing.history import History, Outcome
from support.foreign import ask, cache_folder, create_topic, runtime_info
from support.haclients import GROUP, HaClients
from support.hacluster import CLIENTS, NAME, NAMES, OPERATOR, HaCluster
from support.loopdisk import JOURNALED, LoopDisk, NoLoopDisk, loop_disk
from support.processes import ChildFailed
from support.slices import is_whole, slice_number

ROUNDS = int(os.environ.get("GANTRYMQ_HA_ROUNDS", "4" if is_whole() else "2"))
SECONDS = float(os.environ.get("GANTRYMQ_HA_SECONDS", "0" if "GANTRYMQ_HA_ROUNDS" in os.environ else "60"))
"""The time after which no group begins; 0: no limit."""
SEED = int(os.environ.get("GANTRYMQ_HA_SEED", random.SystemRandom().randrange(2**32)))
PROMOTION = os.environ.get("GANTRYMQ_HA_PROMOTION", "both")
"""``watch``, ``command``, or ``both``: one group in this way, the next in the other."""
CACHE = cache_folder(Path(__file__).parents[1] / "interop" / ".cache")
GROUP_ROUNDS = 10
SHORT_GROUP_ROUNDS = 2
SHAPES = ((3, "sync"), (2, "async"), (2, "sync"), (3, "async"))
"""The number of brokers, and their flush mode."""
FIRST_GROUP = 0 if "GANTRYMQ_HA_ROUNDS" in os.environ else slice_number() % len(SHAPES)
"""A short run has one group, of another shape each day."""
TOPIC, QUEUES, SENDERS = "HaTopic", 4, 3
AGAIN_S = 120.0
"""The time limit for recovery, on a busy machine."""
KEPT_S = 8.0
"""The time without a promotion while slaves still hear the master and only the watcher does not."""
BLOCKS = 32 * 1024
SETTINGS = {
    "plugin.ha.role": "sync_master",  # of slaves as well: they are promoted
    "store.commit_log_file_bytes": "4 MiB",
    "store.queue_file_units": "1000",
    "plugin.ha.full_copy": "true",
    "plugin.ha.heartbeat": "200ms",
    "plugin.ha.housekeeping": "2s",
    "plugin.ha.lease": "3s",
    "plugin.ha.sync_timeout": "500ms",
    "plugin.ha.sync_tables": "300ms",
    "plugin.register.interval": "2s",
    "broker.persist_interval": "200ms",
}
COMPARED_MS = 15_000
"""A slave that could not compare its log says so in so long from its start."""

pytestmark = [
    pytest.mark.crash, pytest.mark.slow, pytest.mark.once, pytest.mark.timeout(300 + 60 * ROUNDS),
]  # fmt: skip


class Figures:
    """The counts and times that a run reports at its end."""

    def __init__(self) -> None:
        self.rounds = 0
        self.faults: Counter[str] = Counter()
        self.outcomes: Counter[Outcome] = Counter()
        self.changed_unacknowledged: Counter[Outcome] = Counter()
        self.reads = 0
        self.excused = 0
        self.from_loss: dict[str, list[float]] = defaultdict(list)
        """Seconds from the last message of the old master to the first of the new one, by kind of loss."""
        self.from_order: list[float] = []
        """Seconds from the start of the promotion; with a watcher, from the loss."""

    def __str__(self) -> str:
        return (
            f"{self.rounds} rounds, {dict(self.faults)}; sends {_by_name(self.outcomes)}, {self.reads} reads; reads "
            f"that changed, unacknowledged: {_by_name(self.changed_unacknowledged)}, {self.excused} slaves excused; "
            f"{len(self.from_order)} measured promotions, unavailable: {_spread([*chain(*self.from_loss.values())])} "
            f"({', '.join(f'{loss} {len(times)}: {_spread(times)}' for loss, times in sorted(self.from_loss.items()))})"
            f"; since the order, or the loss: {_spread(self.from_order)}"
        )

    def times(self) -> str:
        """The times without a master that accepts messages, as JSON, so that runs can be combined."""
        return json.dumps({loss: [round(each, 2) for each in times] for loss, times in self.from_loss.items()})


def _by_name(counts: Counter[Outcome]) -> dict[str, int]:
    return {outcome.name: count for outcome, count in counts.items()}


def _spread(values: list[float]) -> str:
    if not values:
        return "never"
    most = sorted(values)[math.ceil(0.99 * len(values)) - 1]
    return f"p50 {statistics.median(values):.2f} s, p99 {most:.2f} s, max {max(values):.2f} s"


class Group:
    """Rounds on one cluster and one topic."""

    def __init__(self, cluster: HaCluster, seed: int, figures: Figures) -> None:
        self.cluster = cluster
        self.chance = random.Random(seed)
        self.figures = figures
        self.master = 0
        self.history = History(f"group{seed}")
        self.clients = HaClients(
            self.history, TOPIC, QUEUES, cluster.addresses, cluster.nameservers, seed=seed,
            reach=cluster.client_side, pause_s=0.15, patience_s=1.0,
        )  # fmt: skip
        self.story: list[str] = []
        self.etcd_back: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
        """Gives etcd back; while it is away nobody is promoted."""

    @property
    def slaves(self) -> list[int]:
        return [number for number in range(self.cluster.count) if number != self.master]

    async def run(self, rounds: int) -> None:
        """Rounds, and the check."""
        async with self.cluster.run():
            for number in range(self.cluster.count):
                await self.cluster.start(number, master=number == 0)
            if self.cluster.etcd is not None:
                await self.cluster.watch()
            await trio.to_thread.run_sync(create_topic, self.cluster.direct(0), TOPIC)
            await self.until(self.all_have_topic, "the topic is everywhere")
            if self.cluster.etcd is not None:
                await self.members_are_stored(self.cluster.etcd.address)
            try:
                await self.rounds(rounds)
                await self.check()
            except BaseException as error:
                error.add_note("the rounds: " + "; ".join(self.story))
                raise

    async def members_are_stored(self, etcd: str) -> None:
        """Returns once the watcher has stored what it saw: without that, its successor rightly promotes nobody."""
        store = EtcdLock(parse_endpoints(etcd), f"/gantrymq/failover/{NAME}", "the rounds", 5.0, 1.0)
        with trio.fail_after(AGAIN_S):
            while not await store.read():  # noqa: ASYNC110 - another process
                await trio.sleep(0.1)

    async def rounds(self, rounds: int) -> None:
        """All rounds under load."""
        async with trio.open_nursery() as nursery:
            for sender in range(SENDERS):
                nursery.start_soon(self.clients.send_forever, sender)
            nursery.start_soon(self.clients.consume_forever)
            nursery.start_soon(self.clients.read_forever)
            for _ in range(rounds):
                await self.settle()
                await self.more(20)
                await self.round()
                self.figures.rounds += 1
            await self.settle()
            await self.more(20)
            nursery.cancel_scope.cancel()

    def tell(self, text: str) -> None:
        """Record a step for the report of a failure."""
        self.story.append(f"{datetime.now():%H:%M:%S.%f} {text}")

    # ------------------------------------------------------------------------------------------------------ a round

    async def round(self) -> None:
        """See the top of the module."""
        old = self.master
        slave = self.chance.choice(self.slaves)
        before = self.chance.choice(["nothing", "lag", "flap"])
        beside = self.chance.choice(
            ["nothing", "nameserver lost", *(["etcd away", "two watchers"] if self.cluster.etcd else [])]
        )
        losses = ["kill", "pause", "stop", "isolate", *(["cut_power"] if self.cluster.disks else [])]
        loss = self.chance.choice(losses)
        self.figures.faults.update({before, loss, beside})
        self.tell(f"{before} at {slave}, then {loss} at {old}; {beside} beside it")
        await getattr(self, before)(slave)
        give_back = await self.take_away(beside)
        lost = trio.current_time()
        goes_on = await getattr(self, loss)(old)
        try:
            await self.replaced(old, loss, lost, goes_on, beside)
        finally:
            await give_back()

    async def take_away(self, what: str) -> Callable[[], Awaitable[None]]:
        """Something beside the brokers is lost, or comes; what undoes it, which may be called again."""
        etcd = self.cluster.etcd
        if what == "nameserver lost":
            number = self.chance.randrange(len(self.cluster.nameservers))
            await self.cluster.kill_nameserver(number)
            return self._once(partial(self.cluster.start_nameserver, number))
        if what == "etcd away" and etcd is not None:
            if self.chance.random() < 0.5:
                etcd.pause()
                self.etcd_back = self._once(partial(trio.to_thread.run_sync, etcd.resume))
            else:
                await trio.to_thread.run_sync(etcd.kill)
                self.etcd_back = self._once(partial(trio.to_thread.run_sync, etcd.start))
            return self.etcd_back
        if what == "two watchers":
            await self.cluster.watch(1)
        return self._once(trio.lowlevel.checkpoint)

    @staticmethod
    def _once(undo: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        left = [undo]

        async def run() -> None:
            if left:
                await left.pop()()

        return run

    async def replaced(self, old: int, loss: str, lost: float, goes_on: bool, beside: str) -> None:
        """The second half of a round: somebody is promoted, or not, and the old master comes back."""
        if self.cluster.etcd is not None:
            if beside == "etcd away":
                await trio.sleep(self.chance.uniform(0, 5))
                await self.etcd_back()
                self.tell("etcd is back")
            if self.chance.random() < 0.2:
                self.figures.faults["watcher killed"] += 1
                self.tell("a watcher is killed, and comes back")
                await self.cluster.watch(self.chance.choice(sorted(self.cluster.watchers)))
            promoted = await self.see_promotion(old, KEPT_S if loss == "isolate" else AGAIN_S)
            began = lost
        else:
            await trio.sleep(self.chance.choice([0, 0, 0.5, 3]))
            began = await self.promote()
            promoted = True
        if not promoted:
            self.figures.faults["master kept"] += 1
            self.tell(f"{old} stays the master")
            self.cluster.links.heal()
            return
        if not goes_on and self.chance.random() < 0.5:
            await self.back(old)  # at once: the promoted one may not be ready yet
            await self.measure(began, old, loss, counts=beside != "etcd away")
            return
        await self.measure(began, old, loss, counts=beside != "etcd away")
        self.cluster.links.heal()
        if goes_on:
            await trio.sleep(self.chance.uniform(0, 1))
            if loss == "pause":
                self.cluster.resume(old)
            await trio.sleep(self.chance.uniform(0, 2))
            await self.chance.choice([self.cluster.kill, self.cluster.stop])(old)
        await self.back(old)

    async def settle(self) -> None:
        """Returns when there is one master, and the others are slaves; who was fenced or has ended becomes one."""
        states: dict[int, str] = {}
        with trio.move_on_after(AGAIN_S):
            while True:
                states = await trio.to_thread.run_sync(self.states)
                for number, state in states.items():
                    if state in ("fenced", "ended"):
                        self.tell(f"{number} is {state}, and comes back as a slave")
                        await self.cluster.kill(number)
                        await self.cluster.start(number, master=False, ready=False)
                masters = [number for number, state in states.items() if state == "master"]
                if len(masters) == 1 and list(states.values()).count("slave") == self.cluster.count - 1:
                    self.master = masters[0]
                    return
                await trio.sleep(0.2)
        raise AssertionError(f"no master and its slaves in {AGAIN_S:g} s: {states}")

    def states(self) -> dict[int, str]:
        """The state of each broker."""
        found: dict[int, str] = {}
        for number in range(self.cluster.count):
            try:
                info = self.info(number)
            except (OSError, ValueError):
                ended = self.cluster.children[number].process.poll() is not None
                found[number] = "ended" if ended else "silent"
            else:
                is_slave = info.get("brokerRole") == "SLAVE"
                found[number] = "slave" if is_slave else "fenced" if info.get("haFenced") else "master"
        return found

    async def see_promotion(self, old: int, limit: float) -> bool:
        """Whether a watcher promotes a slave within ``limit`` seconds."""
        with trio.move_on_after(limit):
            while True:
                address = await self.clients.find_master()
                if address not in ("", self.cluster.address(old)):
                    self.master = self.cluster.addresses.index(address)
                    self.tell(f"the watcher has promoted {self.master}")
                    return True
                await trio.sleep(0.05)
        if limit < AGAIN_S:
            return False
        raise AssertionError(f"no watcher has promoted a slave in {limit:g} s")

    async def back(self, old: int) -> None:
        """The old master comes back as a slave, sometimes as a master first.

        If it has heard of the promotion and become a slave already, its start as a master would be another promotion.
        """
        self.cluster.links.heal()
        if self.chance.random() < 0.3 and self.cluster.was_master(old):
            self.figures.faults["back as a master"] += 1
            self.tell(f"{old} comes back as a master")
            await self.cluster.start(old, master=True, ready=False)
            await trio.sleep(self.chance.uniform(0.3, 2))
            await self.cluster.kill(old)
        self.tell(f"{old} comes back as a slave")
        await self.cluster.start(old, master=False, ready=False)
        if self.chance.random() < 0.7:
            await self.until(lambda: self.answers(old), f"broker {old} is there")

    async def nothing(self, _slave: int) -> None:
        """Inject no fault besides the loss of the master."""

    async def lag(self, slave: int) -> None:
        """The master goes on while the slave gets nothing of it, or cannot answer."""
        master = self.cluster.label(self.master)
        for link in self.chance.choice([[0], [1], [0, 1]]):
            ends = (master, self.cluster.label(slave))
            self.cluster.links.block(ends[link], ends[1 - link])
        await trio.sleep(self.chance.uniform(0, 2))

    async def flap(self, slave: int) -> None:
        """The slave comes and goes, and is a slave again that answers."""
        for _ in range(self.chance.randrange(1, 3)):
            await self.cluster.kill(slave)
            await self.cluster.start(slave, master=False, ready=False)
            await trio.sleep(self.chance.uniform(0, 1))
        await self.until(lambda: self.answers(slave), f"broker {slave} is there")

    async def kill(self, number: int) -> bool:
        """Whether the process survives this fault."""
        await self.cluster.kill(number)
        return False

    async def stop(self, number: int) -> bool:
        """Stop the broker cleanly: it sends its slaves everything first."""
        await self.cluster.stop(number)
        return False

    async def cut_power(self, number: int) -> bool:
        await self.cluster.cut_power(number, self.chance)
        return False

    async def pause(self, number: int) -> bool:
        self.cluster.pause(number)
        return True

    async def isolate(self, number: int) -> bool:
        """Cut the broker off from the promoting side, and in one or both directions from some of the others."""
        peers = [NAMES, CLIENTS, *(self.cluster.label(slave) for slave in self.slaves)]
        own = self.cluster.label(number)
        for peer in [peer for peer in peers if self.chance.random() < 0.6]:
            for source, target in self.chance.choice([[(peer, own)], [(own, peer)], [(peer, own), (own, peer)]]):
                self.cluster.links.block(source, target)
        self.cluster.links.block(OPERATOR, own)
        self.cluster.links.block(own, OPERATOR)
        return True

    async def promote(self) -> float:
        """Promote by the code of ``gantrymq cluster promote`` until it succeeds; never without a connected slave.

        A promotion without a slave that has confirmed messages may lose those with a single confirmation.
        Return the time at which the successful attempt began.
        """
        refused = ""
        with trio.move_on_after(AGAIN_S):
            while True:
                try:
                    rows = await self.cluster.rows()
                    known = {row["address"] for row in rows if row["id"]}
                    missing = [slave for slave in self.slaves if self.cluster.address(slave) not in known]
                    if missing:
                        raise promotion.PromotionRefused(f"{missing} are not registered")
                    began = trio.current_time()
                    promoted = await promotion.promote(NAME, self.cluster.rows, response_timeout=2.0)
                except Exception as failure:
                    if refused != str(failure):
                        self.tell(f"not promoted: {failure}")
                    refused = str(failure)
                    await trio.sleep(0.1)
                    continue
                self.master = self.cluster.addresses.index(promoted.address)
                self.tell(f"promoted {self.master} to epoch {promoted.epoch}")
                return began
        raise AssertionError(f"not promoted in {AGAIN_S:g} s: {refused}")

    async def measure(self, began: float, old: int, loss: str, *, counts: bool) -> None:
        """Wait for the first message that the new master takes, and note how long none was taken if that ``counts``.

        The promoted slave of a pair has no slave of its own, so it takes messages without confirming them.
        """
        new, before = self.cluster.address(self.master), self.cluster.address(old)
        done = (Outcome.OK, Outcome.STORED)

        def taken(address: str) -> list[float]:
            sends = [send for send in self.history.sends.values() if send.term and send.term.address == address]
            return [send.ended for send in sends if send.ended is not None and send.outcome in done]

        with trio.move_on_after(AGAIN_S):
            while not any(ended > began for ended in taken(new)):  # noqa: ASYNC110 - taken by many
                await trio.sleep(0.02)
        first = min((ended for ended in taken(new) if ended > began), default=None)
        assert first is not None, f"broker {self.master} has taken no message in {AGAIN_S:g} s"
        if not counts:
            return
        last = max(taken(before), default=began)
        self.figures.from_loss[loss].append(max(first - last, 0.0))
        self.figures.from_order.append(first - began)

    # ------------------------------------------------------------------------------------------------------ waiting

    async def more(self, count: int) -> None:
        """Returns when the present master has acknowledged so many more messages."""
        address = self.cluster.address(self.master)
        before = len(self.history.sends)
        start = trio.current_time()

        def acknowledged() -> bool:
            return count <= sum(
                send.term is not None and send.term.address == address and send.began >= start
                for send in list(self.history.sends.values())[before:]
                if send.outcome is Outcome.OK
            )

        with trio.move_on_after(AGAIN_S):
            while not acknowledged():  # noqa: ASYNC110 - counted by many
                await trio.sleep(0.02)
            return
        raise AssertionError(f"broker {self.master} has not acknowledged {count} messages in {AGAIN_S:g} s")

    async def until(self, done: object, what: str) -> None:
        """Returns once ``done`` says so, which asks brokers."""
        assert callable(done)
        with trio.move_on_after(AGAIN_S):
            while not await trio.to_thread.run_sync(_tried, done):  # noqa: ASYNC110 - other processes
                await trio.sleep(0.1)
            return
        raise AssertionError(f"not in {AGAIN_S:g} s: {what}")

    def answers(self, number: int) -> bool:
        """Whether the broker serves."""
        if self.cluster.children[number].process.poll() is not None:
            raise ChildFailed(f"broker {number} has ended: {self.cluster.log(number).read_text()[-3000:]}")
        return ask(self.cluster.direct(number), Command(RequestCode.GET_BROKER_RUNTIME_INFO), 2.0).code == 0

    def all_have_topic(self) -> bool:
        """Whether every broker knows the topic."""
        code = RequestCode.GET_ALL_TOPIC_CONFIG
        return all(
            TOPIC in str(ask(self.cluster.direct(number), Command(code), 2.0).body)
            for number in range(self.cluster.count)
        )

    # ------------------------------------------------------------------------------------------------------ the end

    async def check(self) -> None:
        """All have the same, whichever is asked, and no promise was broken."""
        self.cluster.links.heal()
        for number in range(self.cluster.count):
            await self.until(lambda number=number: self.answers(number), f"broker {number} is there")
        end = int(self.info(self.master)["commitLogMaxOffset"])

        def level() -> bool:
            infos = [self.info(number) for number in range(self.cluster.count)]
            return all(int(info["commitLogMaxOffset"]) >= end for info in infos) and all(
                int(info.get("haLagBytes", 0)) == 0 for info in infos
            )

        await self.until(level, "all logs end at the same byte")
        await self.clients.finish(self.cluster.address(self.master))
        logs = [await self.clients.read_all(address) for address in self.cluster.addresses]
        with trio.move_on_after(AGAIN_S):  # a slave gives readers what its log has, when its queues have it too
            while any(log != logs[self.master] for log in logs):
                await trio.sleep(0.1)
                logs = [await self.clients.read_all(address) for address in self.cluster.addresses]
        self.excuse()
        self.figures.outcomes += Counter(send.outcome for send in self.history.sends.values())
        self.figures.reads += len(self.history.reads)
        self.figures.changed_unacknowledged += self.history.check(logs[self.master])
        undelivered = list(self.history.undelivered(GROUP))
        assert not undelivered, f"{len(undelivered)} violations: {undelivered[:5]}"
        for number, log in enumerate(logs):
            assert log == logs[self.master], f"broker {number} has other messages than {self.master}"

    def info(self, number: int) -> dict[str, str]:
        """The broker's runtime information (code 28)."""
        return runtime_info(self.cluster.direct(number), 5.0)

    def excuse(self) -> None:
        """The slaves that served readers without a comparison, as they say in their logs."""
        terms = {read.term for read in self.history.reads if read.term.slave}
        for number, address in enumerate(self.cluster.addresses):
            for line in self.cluster.events(number, "serving_without_comparison"):
                said_ms = datetime.fromisoformat(line["timestamp"]).timestamp() * 1000
                for term in terms:
                    if term.address == address and 0 <= said_ms - int(term.started) <= COMPARED_MS:
                        self.history.excuse(term)
        self.figures.excused += len(self.history.excused)


def _tried(done: object) -> bool:
    assert callable(done)
    try:
        return bool(done())
    except OSError:
        return False


@pytest.fixture
def etcd(request: pytest.FixtureRequest) -> Path | None:
    """The program, if watchers are to promote."""
    if PROMOTION == "command":
        return None
    program: Path = request.getfixturevalue("etcd_program")
    return program


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[list[LoopDisk]]:
    """Three file systems; none where this user may not mount."""
    with ExitStack() as stack:
        try:
            made = [
                stack.enter_context(loop_disk(tmp_path, f"disk-{number}", features=JOURNALED, blocks=BLOCKS))
                for number in range(3)
            ]
        except NoLoopDisk:
            made = []
        yield made


def test_acknowledged_messages_survive_rounds_of_faults_and_promotions(
    tmp_path: Path, disks: list[LoopDisk], etcd: Path | None
) -> None:
    figures = Figures()
    print(f"GANTRYMQ_HA_SEED={SEED}")
    began = time.monotonic()
    left, group = ROUNDS, FIRST_GROUP
    while left > 0 and not (SECONDS and time.monotonic() - began > SECONDS and group > FIRST_GROUP):
        brokers, flush = SHAPES[group % len(SHAPES)]
        rounds = min(left, GROUP_ROUNDS if ROUNDS > GROUP_ROUNDS else SHORT_GROUP_ROUNDS)
        home = tmp_path / f"group-{group}"
        home.mkdir()
        stores = disks if group % 2 == 0 else []
        by_watcher = PROMOTION == "watch" or (PROMOTION == "both" and group % 2 == 0)
        settings = {**SETTINGS, "plugin.flush.mode": flush}
        cluster = HaCluster(home, brokers, settings, stores, etcd if by_watcher else None)
        for disk in stores:
            for old in disk.folder.glob("data-*"):
                old.rename(disk.folder / f"of-group-{group}-{old.name}")
        seed = SEED + group
        try:
            trio.run(Group(cluster, seed, figures).run, rounds)
        except BaseException as error:
            error.add_note(f"GANTRYMQ_HA_SEED={seed}, {brokers} brokers, flush {flush}; {figures}")
            raise
        left, group = left - rounds, group + 1
        print(f"{time.monotonic() - began:.0f} s: {figures}\nunavailable: {figures.times()}", flush=True)
    assert figures.outcomes[Outcome.OK] >= 20 * figures.rounds

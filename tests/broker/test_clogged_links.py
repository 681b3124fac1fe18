"""Clients work with a broker over links that clog one by one and heal in any order: row 43 of the fault catalogue.

Broken on purpose: with the first message of every fiftieth batch stored twice, the ledger named it.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
import trio

import gantrymq
from gantrymq import SendStatus
from gantrymq.testing.harness import run_cluster
from gantrymq.testing.ledger import Ledger
from support.hapair import read_all
from support.processes import free_ports

PRODUCERS = 4
QUEUES = 2
ROUNDS = 2
STEP_S = 0.05
"""The time between clogging one link and the next."""
SEND_TIMEOUT_S = 0.3


@attrs.define(eq=False)
class Link:
    """One connection through the relay; while it is clogged, it carries nothing in either direction."""

    clear: trio.Event = attrs.field(factory=trio.Event)

    def clog(self) -> None:
        self.clear = trio.Event()

    def heal(self) -> None:
        self.clear.set()


@attrs.define(eq=False)
class Relay:
    """Passes on what comes to ``port``, to ``target``."""

    port: int
    target: str = ""
    links: list[Link] = attrs.field(factory=list)

    async def serve(self, *, task_status: trio.TaskStatus[object]) -> None:
        await trio.serve_tcp(self._pass_on, self.port, host="127.0.0.1", task_status=task_status)

    async def _pass_on(self, near: trio.SocketStream) -> None:
        host, _, port = self.target.rpartition(":")
        link = Link()
        link.heal()
        self.links.append(link)
        try:
            async with await trio.open_tcp_stream(host, int(port)) as far, trio.open_nursery() as nursery:
                nursery.start_soon(self._pump, link, near, far, nursery.cancel_scope)
                nursery.start_soon(self._pump, link, far, near, nursery.cancel_scope)
        finally:
            self.links.remove(link)

    @staticmethod
    async def _pump(link: Link, source: trio.SocketStream, sink: trio.SocketStream, scope: trio.CancelScope) -> None:
        try:
            while data := await source.receive_some():
                await link.clear.wait()
                await sink.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        scope.cancel()


class Sender:
    """A producer with a connection of its own that goes on whatever happens to it."""

    def __init__(self, number: int, ledger: Ledger) -> None:
        self._number = number
        self._ledger = ledger
        self.acknowledged = self.failed = 0

    async def run(self, nameserver: str) -> None:
        async with gantrymq.connect(nameserver) as client:
            async with client.producer(f"p{self._number}", timeout=SEND_TIMEOUT_S, retries=0) as producer:
                while True:
                    body = self._ledger.next_body(self._number)
                    try:
                        result = await producer.send("T", body)
                    except gantrymq.GantryError:
                        self.failed += 1
                        continue
                    if result.status is SendStatus.OK:
                        self._ledger.acknowledge(body, result.queue.queue_id, result.queue_offset)
                        self.acknowledged += 1
                    await trio.sleep(0.005)


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(round(60 / STEP_S)):
        if holds():
            return
        await trio.sleep(STEP_S)
    pytest.fail("not within a minute")


@pytest.mark.trio
async def test_row_43_links_that_stall_and_recover_in_any_order_lose_nothing(tmp_path: Path) -> None:
    chance = random.Random(43)
    ledger = Ledger(uuid.uuid4().hex)
    (port,) = free_ports()
    relay = Relay(port)
    settings = {"broker.advertise": f"127.0.0.1:{port}"}
    async with run_cluster(tmp_path, settings=settings) as cluster, trio.open_nursery() as nursery:
        relay.target = cluster.broker.listening
        await nursery.start(relay.serve)
        async with gantrymq.connect(cluster.nameserver) as client:
            await client.admin.create_topic("T", queues=QUEUES)
        senders = [Sender(number, ledger) for number in range(PRODUCERS)]
        for sender in senders:
            nursery.start_soon(sender.run, cluster.nameserver)
        await until(lambda: min(sender.acknowledged for sender in senders) >= 5)
        for _ in range(ROUNDS):
            clogged = list(relay.links)
            for link in clogged:
                link.clog()
                await trio.sleep(STEP_S)
            failed = {sender: sender.failed for sender in senders}
            await until(lambda failed=failed: all(sender.failed > before for sender, before in failed.items()))
            chance.shuffle(clogged)
            for link in clogged:
                link.heal()
                await trio.sleep(STEP_S)
            goals = {sender: sender.acknowledged + 5 for sender in senders}  # each goes on by itself
            await until(lambda goals=goals: all(sender.acknowledged >= goal for sender, goal in goals.items()))
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True), trio.fail_after(20):
            ledger.check(await trio.to_thread.run_sync(read_all, cluster.broker.listening, "T", QUEUES, ledger))
    assert ledger.acknowledged >= PRODUCERS * (5 + 5 * ROUNDS)

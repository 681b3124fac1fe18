"""Brokers behind bad links: partitions one way and both, delays, connections that end anywhere; a lost nameserver.

Rows 34, 35 and 61 of the fault catalogue, with our own client on real sockets. Broken on purpose: without the
partition, without its end, without the connections' ends, and without the new nameserver the tests failed.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

import gantrymq
from gantrymq import SendStatus
from gantrymq.kernel.broker import Broker
from gantrymq.nameserver.server import NameServer, NameServerConfig
from gantrymq.plugins.interfaces import Registration
from gantrymq.testing.harness import make_broker, run_broker
from gantrymq.testing.ledger import Ledger
from support.hapair import read_all
from support.processes import free_ports
from support.relay import Relay

pytestmark = [pytest.mark.trio, pytest.mark.once, pytest.mark.timeout(300)]

QUEUES = 2
TASKS = 4
SEND_S = 0.3
HEALED_S = 60.0
"""The time limit for recovery without intervention, on a busy machine as well."""


@asynccontextmanager
async def nameserver(port: int) -> AsyncIterator[str]:
    """A nameserver at the port, and its address."""
    async with trio.open_nursery() as nursery:
        server = NameServer(NameServerConfig(port=port))
        await nursery.start(server.serve)
        yield server.address
        nursery.cancel_scope.cancel()


@attrs.frozen
class Linked:
    """A broker that clients reach through ``relay``."""

    broker: Broker
    relay: Relay


@asynccontextmanager
async def linked(home: Path, names: str, name: str) -> AsyncIterator[Linked]:
    """A broker of this name behind a relay, registered, with the topic."""
    (port,) = free_ports()
    settings = {
        "broker.advertise": f"127.0.0.1:{port}", "broker.name": name,
        "plugin.flush.mode": "async",  # the links are to be slow, not the disk
    }  # fmt: skip
    broker = make_broker(home / name, [names], settings=settings)
    async with trio.open_nursery() as nursery, run_broker(broker):
        relay = Relay(port, broker.listening, seed=35)
        await nursery.start(relay.serve)
        assert await broker.registry.get(Registration).wait_first(10)
        yield Linked(broker, relay)
        nursery.cancel_scope.cancel()


async def until(true: Callable[[], bool]) -> None:
    """Returns as soon as it is so, which must be soon."""
    with trio.fail_after(HEALED_S):
        while not true():  # noqa: ASYNC110 - what is waited for has no event
            await trio.sleep(0.01)


async def create_topic(client: Any) -> None:
    await client.admin.create_topic("T", queues=QUEUES)


class Sender:
    """Tasks that send until the end; ``acknowledged``: broker, queue, offset and body of each message."""

    def __init__(self, client: Any, retries: int) -> None:
        self._client = client
        self._retries = retries
        self.acknowledged: list[tuple[str, int, int, bytes]] = []

    async def run(self) -> None:
        async with (
            self._client.producer("p", timeout=SEND_S, retries=self._retries) as producer,
            trio.open_nursery() as nursery,
        ):
            for _ in range(TASKS):
                nursery.start_soon(self._send, producer)

    async def _send(self, producer: Any) -> None:
        while True:
            await trio.sleep(0.005)
            body = uuid.uuid4().bytes
            try:
                result = await producer.send("T", body)
            except gantrymq.GantryError:
                continue
            if result.status is SendStatus.OK:
                place = (result.queue.broker_name, result.queue.queue_id, result.queue_offset)
                self.acknowledged.append((*place, body))

    def count(self, broker: str) -> int:
        """How many messages this broker has acknowledged."""
        return sum(name == broker for name, *_ in self.acknowledged)

    async def more(self, *brokers: str, count: int = 10) -> None:
        """Returns when each of the brokers has acknowledged so many more."""
        wanted = {name: self.count(name) + count for name in brokers}
        await until(lambda: all(self.count(name) >= number for name, number in wanted.items()))


@pytest.mark.parametrize("directions", [("to",), ("from",), ("to", "from")], ids=["requests", "answers", "both"])
@pytest.mark.slow
async def test_row_34_the_other_broker_takes_messages_during_a_partition_and_none_is_lost(
    tmp_path: Path, directions: tuple[str, ...]
) -> None:
    (port,) = free_ports()
    async with (
        nameserver(port) as names,
        linked(tmp_path, names, "broker-a") as first,
        linked(tmp_path, names, "broker-b") as second,
        gantrymq.connect(names) as client,
        trio.open_nursery() as nursery,
    ):
        await create_topic(client)
        sender = Sender(client, retries=2)
        nursery.start_soon(sender.run)
        await sender.more("broker-a", "broker-b")
        first.relay.block(*directions)
        before = sender.count("broker-a")
        await sender.more("broker-b", count=20)
        assert sender.count("broker-a") <= before + TASKS, "nothing but what was under way"
        first.relay.heal()
        await sender.more("broker-a", "broker-b")
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            for place in (first, second):
                read: dict[tuple[int, int], bytes] = {}
                await trio.to_thread.run_sync(read_all, place.broker.listening, "T", QUEUES, Book(read))
                for name, queue_id, offset, body in sender.acknowledged:
                    assert name != place.broker.name or read[queue_id, offset] == body


class Book:
    """A reader's notes: a message may be there twice when its first answer was lost."""

    def __init__(self, read: dict[tuple[int, int], bytes]) -> None:
        self._read = read

    def observe(self, body: bytes, queue_id: int, offset: int) -> None:
        self._read[queue_id, offset] = body


@pytest.mark.slow
async def test_row_35_network_delays_and_broken_connections_cause_no_wrong_result(tmp_path: Path) -> None:
    """The order of each producer's messages in a queue stays, and no place is given twice."""
    ledger = Ledger(uuid.uuid4().hex)
    senders = 4
    acknowledged = dict.fromkeys(range(senders), 0)

    async def send(names: str, number: int) -> None:
        async with gantrymq.connect(names) as client, client.producer("p", timeout=SEND_S, retries=0) as producer:
            while True:
                await trio.sleep(0.002)
                body = ledger.next_body(number)
                try:
                    result = await producer.send("T", body)
                except gantrymq.GantryError:
                    continue
                if result.status is SendStatus.OK:
                    ledger.acknowledge(body, result.queue.queue_id, result.queue_offset)
                    acknowledged[number] += 1

    async def more(count: int) -> None:
        wanted = {number: before + count for number, before in acknowledged.items()}
        await until(lambda: all(acknowledged[number] >= count for number, count in wanted.items()))

    (port,) = free_ports()
    async with nameserver(port) as names, linked(tmp_path, names, "broker-a") as one, trio.open_nursery() as nursery:
        async with gantrymq.connect(names) as client:
            await create_topic(client)
        for number in range(senders):
            nursery.start_soon(send, names, number)
        await more(10)
        one.relay.delay_s, one.relay.cut = 0.03, 0.05
        await more(20)
        assert one.relay.connections > 2 * senders, "connections have ended"
        one.relay.delay_s = one.relay.cut = 0.0
        await more(20)
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            ledger.check(await trio.to_thread.run_sync(read_all, one.broker.listening, "T", QUEUES, ledger))


async def test_row_61_clients_continue_without_a_nameserver_and_a_new_one_learns_all_routes(
    tmp_path: Path,
) -> None:
    (port,) = free_ports()
    async with trio.open_nursery() as nursery:
        server = NameServer(NameServerConfig(port=port))
        scope = await nursery.start(run_nameserver, server)
        async with linked(tmp_path, server.address, "broker-a"), gantrymq.connect(server.address) as client:
            await create_topic(client)
            sender, read = Sender(client, retries=0), set()
            async with client.consumer("T", "g", start="first") as consumer:

                async def consume() -> None:
                    async for message in consumer:
                        read.add(bytes(message.body))
                        await message.ack()

                nursery.start_soon(consume)
                nursery.start_soon(sender.run)
                await sender.more("broker-a")
                scope.cancel()
                await sender.more("broker-a", count=50)
                await until(lambda: {body for *_, body in sender.acknowledged[:60]} <= read)
                await nursery.start(run_nameserver, NameServer(NameServerConfig(port=port)))
                async with gantrymq.connect(server.address) as late:
                    newcomer = Sender(late, retries=0)
                    nursery.start_soon(newcomer.run)
                    await newcomer.more("broker-a")
                    await sender.more("broker-a")
                    nursery.cancel_scope.cancel()


async def run_nameserver(
    server: NameServer, *, task_status: trio.TaskStatus[trio.CancelScope] = trio.TASK_STATUS_IGNORED
) -> None:
    """Run the nameserver until the scope, which is reported once it listens, is cancelled."""
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            await nursery.start(server.serve)
            task_status.started(scope)

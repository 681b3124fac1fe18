"""Producers on machines of their own that go on whatever happens to them, and note what they were promised."""

from __future__ import annotations

import copy
import random

import trio

import gantrymq
from gantrymq import SendStatus
from gantrymq.testing.ledger import Ledger
from gantrymq.testing.simulated.cluster import Cluster, read_all

TOPIC = "T"
"""The topic that the producers send to."""
QUEUES = 2
"""Queues of that topic."""
_SEND_S = 2.0
PAUSE_S = 0.4
"""The longest pause of a producer between two messages, in simulated seconds."""


class Load:
    """One producer at each of ``hosts``, for the topic :data:`TOPIC` of one broker name; ``ledger`` is their book.

    None of them sends again what was not acknowledged, and each waits for an answer before it goes on.
    """

    def __init__(self, cluster: Cluster, hosts: list[str]) -> None:
        self.ledger = Ledger(f"seed{cluster.seed}")
        self.acknowledged = dict.fromkeys(hosts, 0)
        self.promised: set[bytes] = set()
        """The bodies of what was acknowledged."""
        self.statuses: dict[str, int] = {}
        """How often each answer came; ``failed`` for none, or an error."""
        self.pause_s = PAUSE_S
        """How long each waits at most before it sends its next message."""
        self._cluster = cluster

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            for number, host in enumerate(self.acknowledged):
                nursery.start_soon(self._send, number, host)

    async def _send(self, number: int, host: str) -> None:
        chance = random.Random(f"{self._cluster.seed} {host} load")  # noqa: S311 - chance that can be repeated
        async with self._cluster.client(host) as client, client.producer("p", timeout=_SEND_S, retries=0) as producer:
            while True:
                await trio.sleep(chance.uniform(0, self.pause_s))
                body = self.ledger.next_body(number)
                try:
                    result = await producer.send(TOPIC, body)
                except gantrymq.GantryError:
                    self._count("failed")
                    continue
                self._count(result.status.name)
                if result.status is SendStatus.OK:
                    self.ledger.acknowledge(body, result.queue.queue_id, result.queue_offset)
                    self.promised.add(body)
                    self.acknowledged[host] += 1

    def _count(self, status: str) -> None:
        self.statuses[status] = self.statuses.get(status, 0) + 1

    async def more(self, count: int, seconds: float = 120.0) -> None:
        """Returns when everybody has been promised so many more; AssertionError after so many simulated seconds."""
        wanted = {host: before + count for host, before in self.acknowledged.items()}
        await self._cluster.until(
            lambda: all(self.acknowledged[host] >= number for host, number in wanted.items()),
            seconds,
            f"{count} more messages of each producer",
        )

    async def check(self, address: str) -> dict[int, int]:
        """Read everything from the broker there. ``LedgerViolation`` for the first promise that it breaks.

        How far its queues go. Each call is a look of its own: what another broker has shown does not count.
        """
        ledger = copy.deepcopy(self.ledger)
        ends = await read_all(address, TOPIC, QUEUES, ledger)
        ledger.check(ends)
        return ends

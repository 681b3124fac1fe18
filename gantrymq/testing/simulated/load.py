"""Producers on separate machines that continue after any error, and record what was acknowledged."""

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
"""The number of queues of that topic."""
_SEND_S = 2.0
PAUSE_S = 0.4
"""The longest pause of a producer between two messages, in simulated seconds."""


class Load:
    """One producer at each of ``hosts``, for the topic :data:`TOPIC` of one broker name; ``ledger`` records their
    messages.

    A producer does not send unacknowledged messages again, and waits for each response before the next message.
    """

    def __init__(self, cluster: Cluster, hosts: list[str]) -> None:
        self.ledger = Ledger(f"seed{cluster.seed}")
        self.acknowledged = dict.fromkeys(hosts, 0)
        self.guaranteed: set[bytes] = set()
        """The bodies of acknowledged messages."""
        self.statuses: dict[str, int] = {}
        """The number of responses by status; ``failed`` for an error or no response."""
        self.pause_s = PAUSE_S
        """The longest pause before the next message, in seconds."""
        self._cluster = cluster

    async def run(self) -> None:
        """Send until cancelled."""
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
                    self.guaranteed.add(body)
                    self.acknowledged[host] += 1

    def _count(self, status: str) -> None:
        self.statuses[status] = self.statuses.get(status, 0) + 1

    async def more(self, count: int, seconds: float = 120.0) -> None:
        """Return when each producer has this many more acknowledged messages; AssertionError after the given simulated
        seconds."""
        wanted = {host: before + count for host, before in self.acknowledged.items()}
        await self._cluster.until(
            lambda: all(self.acknowledged[host] >= number for host, number in wanted.items()),
            seconds,
            f"{count} more messages of each producer",
        )

    async def check(self, address: str) -> dict[int, int]:
        """Read all messages of the broker there and check them; ``LedgerViolation`` for the first violation.

        Returns the ends of its queues. Each call is independent of messages that other brokers returned.
        """
        ledger = copy.deepcopy(self.ledger)
        ends = await read_all(address, TOPIC, QUEUES, ledger)
        ledger.check(ends)
        return ends

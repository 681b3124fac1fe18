"""Senders and a reader at work on a pair of brokers during a fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import trio

import gantrymq
from gantrymq import SendStatus
from gantrymq.testing.ledger import Ledger

SENDERS: Final = 8
"""The number of messages in flight."""


class Load:
    """Senders that continue after any response; ``statuses`` counts them, failures as None. ``timeout``: the seconds
    of a send."""

    def __init__(self, nameserver: str, topic: str, ledger: Ledger, *, timeout: float = 2.0) -> None:
        self._nameserver = nameserver
        self._topic = topic
        self._ledger = ledger
        self._timeout = timeout
        self.statuses: Counter[SendStatus | None] = Counter()
        self.gap_s = 0.0
        """The longest time between two that were acknowledged one after the other; set it to 0 to begin anew."""
        self._acknowledged_at = 0.0

    async def during(self, script: Callable[[], Any]) -> None:
        """Send while ``script`` runs."""
        async with (
            gantrymq.connect(self._nameserver) as client,
            client.producer("ledger", retries=0, timeout=self._timeout) as producer,
            trio.open_nursery() as nursery,
        ):
            for number in range(SENDERS):
                nursery.start_soon(self._send, producer, number)
            await script()
            nursery.cancel_scope.cancel()

    async def _send(self, producer: Any, number: int) -> None:
        while True:
            body = self._ledger.next_body(number)
            try:
                result = await producer.send(self._topic, body)
            except gantrymq.GantryError:
                self.statuses[None] += 1
                await trio.sleep(0.02)
                continue
            self.statuses[result.status] += 1
            if result.status is SendStatus.OK:
                now = trio.current_time()
                if self._acknowledged_at:
                    self.gap_s = max(self.gap_s, now - self._acknowledged_at)
                self._acknowledged_at = now
                self._ledger.acknowledge(body, result.queue.queue_id, result.queue_offset)

    async def until(self, status: SendStatus, more: int = 20, timeout: float = 20.0) -> None:
        """Returns when so many more were answered so."""
        wanted = self.statuses[status] + more
        with trio.move_on_after(timeout):
            while self.statuses[status] < wanted:  # noqa: ASYNC110 - counted by many
                await trio.sleep(0.01)
        assert self.statuses[status] >= wanted, f"not {wanted} times {status}: {self.statuses}"


class Follower:
    """A consumer in a group of its own on a client that others use as well."""

    def __init__(self, client: Any, topic: str, group: str, ledger: Ledger) -> None:
        self._client = client
        self._topic = topic
        self._group = group
        self._ledger = ledger
        self.places: set[tuple[int, int]] = set()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with self._client.consumer(self._topic, self._group, start="first") as consumer:
            task_status.started()
            async for message in consumer:
                self._ledger.observe(message.body, message.queue_id, message.queue_offset)
                self.places.add((message.queue_id, message.queue_offset))
                await message.ack()

    async def until(self, count: int) -> None:
        """Returns when it has read so many places."""
        with trio.move_on_after(30):
            while len(self.places) < count:  # noqa: ASYNC110 - a set has no event
                await trio.sleep(0.005)
        assert len(self.places) >= count, f"{self._group} read {len(self.places)} of {count} in 30 s"

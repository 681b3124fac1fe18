"""The brokers' locks of queues, which see to it that one member at a time consumes a queue of an ordered group.

Source: RocketMQ 4.9.7 ``RebalanceImpl.lock``, ``ProcessQueue``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Set
from typing import Final

import anyio

from gantrymq.client.cluster import Cluster
from gantrymq.client.connections import call
from gantrymq.client.errors import GantryError
from gantrymq.client.requests import reading
from gantrymq.remoting.bodies.queues import LockBatchRequestBody, LockBatchResponseBody, MessageQueue
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command

RENEW_SECONDS: Final = 20.0
HELD_SECONDS: Final = 30.0
"""So long after it was asked for a lock counts as held; brokers keep it for twice as long."""
CALL_SECONDS: Final = 1.0


class QueueLocks:
    """The locks of one member of ``group``."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster = cluster
        self._group = group
        self._asked_at: dict[MessageQueue, float] = {}
        self._asking: set[MessageQueue] = set()
        """Asked for, and no answer has come: the broker may have given the lock all the same."""

    def holds(self, queue: MessageQueue) -> bool:
        """Whether no other member can have ``queue`` now."""
        asked_at = self._asked_at.get(queue)
        return asked_at is not None and anyio.current_time() - asked_at < HELD_SECONDS

    def is_due(self, queue: MessageQueue) -> bool:
        """Whether the lock of ``queue`` is held and wants to be renewed."""
        return self.holds(queue) and anyio.current_time() - self._asked_at[queue] >= RENEW_SECONDS

    async def take(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Ask for the locks of ``queues``, or renew them; returns those that a broker refused.

        What fails for another reason is logged, and the locks stay as they were.
        """
        refused: set[MessageQueue] = set()

        async def ask(broker: str, wanted: set[MessageQueue]) -> None:
            asked_at = anyio.current_time()
            self._asking |= wanted
            try:
                answer = await self._call(RequestCode.LOCK_BATCH_MQ, wanted)
                with reading(broker):
                    locked = LockBatchResponseBody.from_bytes(answer.body).lock_ok_mq_set
            except GantryError as error:
                self._cluster.rare.warning("queue_lock_failed", broker, self._group, broker=broker, reason=str(error))
                return
            self._asking -= wanted
            given = {queue for queue in wanted if self._real(queue) in locked}
            for queue in given:
                self._asked_at[queue] = asked_at
            for queue in wanted - given:
                self._asked_at.pop(queue, None)
                refused.add(queue)

        async with anyio.create_task_group() as asking:
            for broker, wanted in _by_broker(queues).items():
                asking.start_soon(ask, broker, wanted)
        return refused

    async def release(self, queues: Iterable[MessageQueue]) -> None:
        """Release the locks. What fails is logged, and they are among the :meth:`others` again."""
        given = [queue for queue in queues if self._asked_at.pop(queue, None) is not None or queue in self._asking]
        self._asking.difference_update(given)

        async def unlock(broker: str, held: set[MessageQueue]) -> None:
            try:
                await self._call(RequestCode.UNLOCK_BATCH_MQ, held)
            except GantryError as error:
                self._asking |= held
                self._cluster.rare.warning("queue_lock_failed", broker, self._group, broker=broker, reason=str(error))

        async with anyio.create_task_group() as giving:
            for broker, held in _by_broker(given).items():
                giving.start_soon(unlock, broker, held)

    def others(self, needed: Set[MessageQueue]) -> set[MessageQueue]:
        """Locks that are no longer needed: the answer came too late, or a renewal overtook the release."""
        return {*self._asked_at, *self._asking} - needed

    async def release_all(self) -> None:
        """Release all locks, also those that were asked for in vain so far."""
        await self.release(self.others(set()))

    def forget(self, queue: MessageQueue) -> None:
        """Count the lock of ``queue`` as lost."""
        self._asked_at.pop(queue, None)

    def _real(self, queue: MessageQueue) -> MessageQueue:
        """``queue`` as brokers name it."""
        namespace = self._cluster.namespace
        return queue if namespace is None else namespace.queue(queue)

    async def _call(self, code: RequestCode, queues: set[MessageQueue]) -> Command:
        body = LockBatchRequestBody(consumer_group=self._group, client_id=self._cluster.client_id, mq_set=queues)
        channel = await self._cluster.broker(self._cluster.routes.master(next(iter(queues))))
        return await call(channel, Command(code, body=body.to_bytes()), CALL_SECONDS)


def _by_broker(queues: Iterable[MessageQueue]) -> dict[str, set[MessageQueue]]:
    found: dict[str, set[MessageQueue]] = defaultdict(set)
    for queue in queues:
        found[queue.broker_name].add(queue)
    return found

"""Consume a topic as a member of a group: share its queues with the other members, and iterate over what they bring.

Source of the intervals: RocketMQ 4.9.7 ``RebalanceService``, ``ClientConfig``.
"""

from __future__ import annotations

import inspect
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, Generic, Self, TypeVar

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from gantrymq._version import __version__
from gantrymq.client.admin import Admin
from gantrymq.client.allocation import Allocation, FixedQueues, allocate, average
from gantrymq.client.batches import MessageBatch
from gantrymq.client.cluster import LEAVE_SECONDS, Cluster
from gantrymq.client.connections import call
from gantrymq.client.direct import DirectDelivery
from gantrymq.client.errors import (
    AccessDenied,
    AllocationFailed,
    BrokerError,
    ConnectError,
    GantryError,
    InvalidName,
    NoRoute,
    NotANameserver,
)
from gantrymq.client.lanes import KeyLane, Lane
from gantrymq.client.lifetime import Lifetime
from gantrymq.client.local_offsets import LocalOffsets, default_path
from gantrymq.client.locks import QueueLocks
from gantrymq.client.options import ConsumerOptions, QueuesChanged
from gantrymq.client.puller import Puller
from gantrymq.client.requests import reading
from gantrymq.client.routes import addresses_to_read, queues_to_subscribe
from gantrymq.client.statistics import ConsumerStatistics
from gantrymq.message import DeliveredRecord
from gantrymq.remoting.bodies.clients import SQL92, CheckClientConfig, ConsumerData, ConsumerList
from gantrymq.remoting.bodies.queues import MessageQueue
from gantrymq.remoting.bodies.routes import TopicRouteData
from gantrymq.remoting.bodies.running import ConsumerRunningInfo, ConsumeStatus, DirectlyConsumed, ProcessQueueInfo
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import VERSION, Command
from gantrymq.remoting.headers.groups import ConsumerGroupHeader
from gantrymq.remoting.logs import LibraryLog
from gantrymq.remoting.names import is_retry_topic
from gantrymq.remoting.properties import RETRY_TOPIC
from gantrymq.remoting.records import decode_records
from gantrymq.remoting.tasks import foreign_cancellation_as_error, hosted_tasks
from gantrymq.remoting.versions import version_name

REBALANCE_INTERVAL_SECONDS: Final = 20.0
REBALANCE_RETRY_SECONDS: Final = 1.0
RETRY_TOPIC_CHECKS: Final = 30
"""How often a rebalance looks again for the group's retry topic soon, after a message was sent back."""
COMMIT_INTERVAL_SECONDS: Final = 5.0
BATCH_MESSAGES: Final = 32
SUSPEND_SECONDS: Final = 1.0
"""How long an ordered queue pauses after a message was returned."""
EXPIRED_LEVEL: Final = 3
"""The delay level of messages that are returned because of ``consume_timeout``."""
EXPIRY_INTERVAL_SECONDS: Final = 1.0
RELEASE_WARNING_SECONDS: Final = 30.0
LOCK_CHECK_SECONDS: Final = 1.0
"""How often an ordered consumer checks whether a lock needs renewal."""
SAMPLES: Final = 13
"""Counters kept for rates, one each ``COMMIT_INTERVAL_SECONDS``: a minute of them."""

_HOPELESS: Final = (AccessDenied, AllocationFailed, NotANameserver)
"""Errors of a rebalance that a later attempt does not mend by itself."""
_FROM_WHERE: Final = {"first": "CONSUME_FROM_FIRST_OFFSET", "last": "CONSUME_FROM_LAST_OFFSET"}

R = TypeVar("R", bound=DeliveredRecord)
T = TypeVar("T")

log: LibraryLog = LibraryLog()


class Consumer(Lifetime, Generic[R]):
    """An async iterator over the messages of this member's queues.

    A message counts as outstanding until it is acknowledged. With ``prefetch`` messages or 100 MiB of a queue
    outstanding, or 2,000 offsets behind the oldest one (twice ``prefetch`` if that is more), pulling of that queue
    pauses, and after 30 seconds of that the log has a warning. Messages that were not acknowledged are redelivered when
    the group restarts.
    """

    def __init__(self, cluster: Cluster, options: Sequence[ConsumerOptions[R]]) -> None:
        """``options``: one of each topic; they differ in nothing but topic and subscription."""
        super().__init__(f"consumer of group {options[0].group}")
        self.topics: tuple[str, ...] = tuple(each.topic for each in options)
        """The topics that are consumed."""
        self.group: str = options[0].group
        """The consumer group, as brokers know it: with the client's namespace."""
        self._cluster = cluster
        self._options = options[0]
        self._settings = settings = options[0].settings
        self._is_timed = settings.consume_timeout is not None
        self._locks = QueueLocks(cluster, self.group) if settings.ordered and not settings.broadcast else None
        self._local: LocalOffsets | None = None
        self._releasing: dict[MessageQueue, Puller[R]] = {}
        self._uncommitted: set[Puller[R]] = set()
        """Pullers of queues that were given up, whose last commit is in flight."""
        self._assigning: set[MessageQueue] = set()
        """Queues that this member is about to pull: it locks them, or ``on_assigned`` runs."""
        self._upkeep: TaskGroup | None = None
        self._hand_over: Callable[[], None] = _nothing
        """Makes acknowledgments count that another thread has made. Called before queues are given up, and before the
        client looks for messages whose ``consume_timeout`` is over."""
        self._lanes: deque[Lane[R]] = deque()
        self._subscribed = {each.topic: each for each in options}
        retries = options[0].of_retries()
        unwanted = settings.broadcast or retries is None or retries.topic in self._subscribed
        self._retries = None if unwanted else retries
        self._retry_topic_checks = 0
        self._retry_topic_known = False
        self._pulling: TaskGroup | None = None
        self._pullers: dict[MessageQueue, Puller[R]] = {}
        self._resets: dict[MessageQueue, int] = {}
        self._restarts: dict[MessageQueue, int] = {}
        """Where to begin again in queues that were reset, once nothing of them is in work any more."""
        self._fetched = self._acknowledged = self._returned = 0
        self._samples: deque[tuple[float, int, int, int]] = deque(maxlen=SAMPLES)
        self._last_error: tuple[str | None, int] = (None, 0)
        self._joined_at = 0
        self._old_queues: set[MessageQueue] = set()
        """The topics' queues when this member joined; in all others ``"last"`` means the time of joining."""
        self._ready: deque[list[R]] = deque()
        self._current: list[R] = []
        """What is given out next, of one answer of a broker; the next message is the last one."""
        self._arrived = anyio.Event()
        self._unbalanced = anyio.Event()
        self._closed = True
        self._refusal: AccessDenied | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> R:
        """The next message, whenever it comes.

        Raises :class:`ClientClosed` after the consumer's block, and :class:`AccessDenied` once a broker has refused
        the client's credentials, or this group or topic to them; nothing is tried again then.
        """
        while True:
            if self._closed or not self._cluster.usable:
                self._ensure_open()
            current = self._current
            while current:
                message = current.pop()
                delivery = message.delivery
                if delivery is not None and not delivery.dropped:
                    if self._is_timed:
                        self._note_given([message])
                    return message
            await self._more(1)

    def batches(self, max: int = BATCH_MESSAGES) -> Batches[R]:
        """Return an async iterator over batches of 1 to ``max`` messages, each as :meth:`next_batch` returns it.

        ValueError for a ``max`` below 1.
        """
        check_batch_max(max)
        return Batches(self, max)

    async def next_batch(self, max: int = BATCH_MESSAGES, timeout: float | None = None) -> MessageBatch[R]:
        """Return 1 to ``max`` messages, which can be acknowledged all at once (:meth:`MessageBatch.ack`).

        Waits while there is none; the batch is empty after ``timeout`` seconds (None: no limit). With ``ordered`` the
        messages are of one queue. Raises as the iteration does; ValueError for a ``max`` below 1.
        """
        check_batch_max(max)
        if timeout is None:
            return await self._next_batch(max)
        with anyio.move_on_after(timeout):
            return await self._next_batch(max)
        return MessageBatch()

    async def _next_batch(self, max: int) -> MessageBatch[R]:
        while True:
            self._ensure_open()
            batch: MessageBatch[R] = MessageBatch()
            while (room := max - len(batch)) > 0:
                if not self._current and self._ready and not self._settings.ordered:
                    self._take_ready()
                if not self._current:
                    break
                delivery = self._current[-1].delivery
                part = self._current[-room:]
                del self._current[-room:]
                if delivery is None or delivery.dropped:
                    continue
                part.reverse()
                if self._settings.ordered:
                    batch = MessageBatch(part)  # one that is redelivered may have a delivery of its own
                    break
                batch._add(delivery, part)
            if batch:
                self._note_given(batch)
                return batch
            await self._more(max)

    @property
    def ordered(self) -> bool:
        """Whether the messages of a queue, or of an order key, come one after another."""
        return bool(self._settings.ordered)

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues of the topics that are this member's now, in order of broker, topic and id."""
        return sorted(queue for queue in self._pullers if queue.topic in self._subscribed)

    async def commit(self) -> None:
        """Commit the offsets of the group now, and wait for the responses of the brokers.

        Offsets are committed every five seconds anyway. Raises :class:`BrokerError` when a broker refuses
        (:class:`AccessDenied` by its access control), :class:`ConnectError`, :class:`NoRoute`; what other brokers keep
        is committed all the same, and the rest is tried again.
        """
        self._ensure_open()
        errors: list[GantryError] = []

        async def commit(puller: Puller[R]) -> None:
            try:
                await puller.commit(confirmed=True)
            except GantryError as error:
                errors.append(error)

        async with anyio.create_task_group() as committing:  # one that does not answer is waited for once, not by queue
            for puller in self._pullers.values():
                committing.start_soon(commit, puller)
        if self._local is not None:
            await anyio.to_thread.run_sync(self._local.save)
        if errors:
            raise errors[0]

    def statistics(self) -> ConsumerStatistics:
        """Return this member's lag, outstanding messages, rates, and last error."""
        now = anyio.current_time()
        at, fetched, acknowledged, returned = self._samples[0] if self._samples else (now, 0, 0, 0)
        seconds = max(now - at, 0.001)
        return ConsumerStatistics(
            queues={queue: self._pullers[queue].statistics() for queue in sorted(self._pullers)},
            fetched=self._fetched, acknowledged=self._acknowledged, returned=self._returned,
            fetched_per_second=(self._fetched - fetched) / seconds,
            acknowledged_per_second=(self._acknowledged - acknowledged) / seconds,
            returned_per_second=(self._returned - returned) / seconds,
            last_error=self._last_error[0], last_error_at=self._last_error[1],
        )  # fmt: skip

    def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Go on at these offsets in the queues that are this member's; messages fetched from them do not count."""
        self._resets.update(offsets)
        self._unbalanced.set()

    def offsets(self, topic: str) -> dict[MessageQueue, int]:
        """The offsets up to which all is acknowledged."""
        found = {queue: puller.committable for queue, puller in self._pullers.items() if queue.topic == topic}
        return {queue: offset for queue, offset in found.items() if offset is not None}

    def running_info(self) -> ConsumerRunningInfo:
        """The status of this member that administrators ask for (307)."""
        now = self.statistics()
        subscriptions = self.describe().subscription_data_set
        rates = ConsumeStatus(
            pull_tps=now.fetched_per_second, consume_ok_tps=now.acknowledged_per_second,
            consume_failed_tps=now.returned_per_second, consume_failed_msgs=now.returned,
        )  # fmt: skip
        return ConsumerRunningInfo(
            properties={
                "consumerGroup": self.group,
                "messageModel": self.describe().message_model,
                "consumeFromWhere": self.describe().consume_from_where,
                "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
                "PROP_CONSUMEORDERLY": "true" if self._settings.ordered else "false",
                "PROP_CONSUMER_START_TIMESTAMP": str(self._joined_at),
                "PROP_NAMESERVER_ADDR": ";".join(self._cluster.nameservers.addresses),
                "PROP_CLIENT_VERSION": version_name(VERSION),
                "clientLibrary": f"gantrymq {__version__}",
                "lastError": now.last_error or "",
            },
            subscription_set=subscriptions,
            mq_table={
                queue: ProcessQueueInfo(
                    commit_offset=each.committable,
                    cached_msg_min_offset=each.committable if each.outstanding else 0,
                    cached_msg_max_offset=each.position - 1 if each.outstanding else 0,
                    cached_msg_count=each.outstanding,
                    locked=self._locks is not None and self._locks.holds(queue),
                    last_pull_timestamp=each.last_pull,
                    last_consume_timestamp=each.last_acknowledged,
                )
                for queue, each in now.queues.items()
            },
            status_table={subscription.topic: rates for subscription in subscriptions},
        )

    async def consume_directly(self, body: bytes, broker: str) -> DirectlyConsumed:
        """Hand the stored message ``body`` to the application; what it does with it is the result."""
        record = decode_records(body, self._options.make, check_crc=False)[0]
        record.broker_name = broker
        if self._cluster.namespace is not None:
            self._cluster.namespace.restore_consumed([record])
        if is_retry_topic(record.topic) and (origin := record.properties.get(RETRY_TOPIC)):
            record.retry_topic, record.topic = record.topic, origin
        record.delivery = delivery = DirectDelivery()
        self._ready.append([record])
        self._arrived.set()
        return await delivery.verdict()

    def describe(self) -> ConsumerData:
        """This member's part of the heartbeat."""
        return ConsumerData(
            group_name=self.group,
            message_model="BROADCASTING" if self._settings.broadcast else "CLUSTERING",
            consume_from_where=_FROM_WHERE.get(str(self._options.start), "CONSUME_FROM_TIMESTAMP"),
            subscription_data_set=[
                options.subscription for options in (*self._subscribed.values(), self._retries) if options
            ],
        )

    def rebalance_soon(self) -> None:
        """Share the queues out again at once, not at the next interval."""
        self._unbalanced.set()

    async def _join(self, upkeep: TaskGroup) -> None:
        """Join the group and take the first share of the queues; where that fails it is tried again in ``upkeep``.

        Raises :class:`NotANameserver`, :class:`AccessDenied` when a broker refuses the client's credentials,
        :class:`InvalidName` for an Sql expression that a broker refuses, :class:`AllocationFailed` for a strategy that
        raises, :class:`GantryError` for a file of offsets that cannot be read, :class:`ClientClosed` when the client is
        closed meanwhile.
        """
        self._upkeep = upkeep
        self._joined_at = int(time.time() * 1000)
        if self._settings.broadcast:
            local_host = self._cluster.client_id.partition("@")[0]
            file = self._settings.offsets_file or default_path(local_host, self.group, self._cluster.unit_name)
            self._local = LocalOffsets(file, self._cluster.namespace)
            await anyio.to_thread.run_sync(self._local.load)
        for options in self._subscribed.values():
            if options.subscription.expression_type == SQL92:
                await self._check_expression(options)
        if self._locks is not None:
            upkeep.start_soon(self._keep_locked, self._locks)  # on_assigned may take longer than a lock is held
        settled = await self._settle(joining=True)
        self._cluster.ensure_open()  # its tasks would outlive the client
        if self._refusal is not None:
            raise self._refusal
        upkeep.start_soon(self._keep_balanced, settled)
        upkeep.start_soon(self._keep_committing)
        if self._settings.consume_timeout is not None:
            upkeep.start_soon(self._keep_expiring, self._settings.consume_timeout)

    async def _leave(self) -> None:
        """Stop pulling, commit what is done, and leave the group, whether or not brokers answer."""
        pullers = list(self._pullers.values())
        try:
            for puller in pullers:
                puller.stop()
            with anyio.move_on_after(LEAVE_SECONDS / 2, shield=True):
                await self._notify_revoked(self._pullers)
            self._closed = True
            self._arrived.set()
            pullers += (*self._releasing.values(), *self._uncommitted)
            for puller in pullers:
                puller.close()
            await self._commit_last(pullers)
        finally:
            self._closed = True
            self._cluster.forget_consumer(self.group)
            with anyio.move_on_after(LEAVE_SECONDS, shield=True):
                if self._locks is not None:
                    with anyio.move_on_after(LEAVE_SECONDS / 2):  # the rest of the time is for unregistering
                        await self._locks.release_all()
                await self._cluster.unregister_consumer(self.group)

    async def _commit_last(self, pullers: Iterable[Puller[R]]) -> None:
        waiting = set(pullers)

        async def commit(puller: Puller[R]) -> None:
            await self._commit_quietly(puller, confirmed=True)
            waiting.discard(puller)

        with anyio.move_on_after(LEAVE_SECONDS, shield=True) as scope:
            async with anyio.create_task_group() as committing:
                for puller in list(waiting):
                    committing.start_soon(commit, puller)
            await self._save_quietly()
        if scope.cancelled_caught:
            for broker in sorted({puller.queue.broker_name for puller in waiting}):
                self._cluster.rare.warning(
                    "commit_failed", broker, self.group,
                    group=self.group, broker=broker, reason=f"no answer within {LEAVE_SECONDS:g} s",
                )  # fmt: skip

    def _puller_tasks(self) -> TaskGroup:
        assert self._pulling is not None  # it is there before the consumer joins its group
        return self._pulling

    def _ensure_open(self) -> None:
        if self._closed or not self._cluster.usable:
            self._cluster.ensure_open()
            raise self._closed_error()

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[None]:
        """It is a member of its group for the length of the block."""
        self._cluster.ensure_open()
        async with hosted_tasks(self._cluster.fail) as pulling:
            self._pulling = pulling
            self._cluster.join_as_consumer(self.group, self)
            self._closed = False
            try:
                # what shares out and commits has ended before the consumer closes what it works on
                async with hosted_tasks(self._cluster.fail) as upkeep:
                    await self._join(upkeep)
                    yield
            finally:
                await self._leave()

    async def _more(self, most: int) -> None:
        if self._ready or self._lanes:
            # A busy loop over messages must not starve the heartbeat. Shielded, because a timeout of 0 allows no other.
            await anyio.lowlevel.cancel_shielded_checkpoint()
        while not (self._ready or self._lanes or self._current):  # another task may have taken a batch and left some
            if self._refusal is not None:
                raise self._refusal
            if self._arrived.is_set():
                self._arrived = anyio.Event()  # several tasks may wait for the same one
            self._cluster.ensure_open()  # in another event loop it would wait for ever
            await self._arrived.wait()
            self._ensure_open()
        if self._current:
            return  # another task was here first
        if self._ready:
            self._take_ready()
        else:
            self._current = self._lanes.popleft().take(most)[::-1]

    def _take_ready(self) -> None:
        self._current = self._ready.popleft()
        self._current.reverse()

    def _discard_dropped(self) -> None:
        """Free the memory of messages that the application does not get any more, even if it asks for none."""
        self._ready = deque(part for part in self._ready if not _is_dropped(part))
        if _is_dropped(self._current):
            self._current = []

    def _put_back(self, batch: MessageBatch[R]) -> None:
        """Give the messages of ``batch`` out again, as if nobody had got them; if the queue is revoked, let them go."""
        if self._current:
            self._ready.appendleft(self._current[::-1])
            self._current = []
        for delivery, part in reversed(batch._parts):
            if not (isinstance(delivery, Puller) and delivery.put_back(part)):
                self._ready.appendleft(list(part))
        self._arrived.set()

    def _note_given(self, messages: list[R]) -> None:
        if self._is_timed:
            for message in messages:
                if isinstance(message.delivery, Puller):
                    message.delivery.given_out(message)

    def take(self, messages: list[R]) -> None:
        """As :class:`Owner` has it, like the ones that follow."""
        self._fetched += len(messages)
        self._ready.append(messages)
        self._arrived.set()

    def fetched(self, count: int) -> None:
        self._fetched += count

    def suspend(self, resume: Callable[[], None]) -> None:
        async def resume_later() -> None:
            await anyio.sleep(SUSPEND_SECONDS)
            resume()

        self._returned += 1
        self._puller_tasks().start_soon(resume_later)

    def begin_again(self, queue: MessageQueue, offset: int) -> None:
        self._resets.setdefault(queue, offset)  # an administrator's reset that waits is what is wanted
        self._unbalanced.set()

    def _offer(self, lane: Lane[R]) -> None:
        self._lanes.append(lane)
        self._arrived.set()

    def wake(self) -> None:
        """Wake tasks that wait for messages, so that they notice that the client has failed."""
        self._arrived.set()

    def acknowledged(self, count: int) -> None:
        self._acknowledged += count

    def returned(self) -> None:
        self._returned += 1
        if self._retries is not None and not self._retry_topic_known:
            self._retry_topic_checks = RETRY_TOPIC_CHECKS
            self.rebalance_soon()  # the topic exists now, and one of its queues may be this member's

    def failed(self, error: GantryError) -> None:
        self._last_error = (str(error), int(time.time() * 1000))

    def refused(self, error: AccessDenied) -> None:
        self._refusal = error
        self._arrived.set()

    async def _keep_balanced(self, settled: bool) -> None:
        while True:
            with anyio.move_on_after(REBALANCE_INTERVAL_SECONDS if settled else REBALANCE_RETRY_SECONDS):
                await self._unbalanced.wait()
            self._unbalanced = anyio.Event()
            await self._reset()
            settled = await self._settle()

    async def _keep_committing(self) -> None:
        while True:
            self._samples.append((anyio.current_time(), self._fetched, self._acknowledged, self._returned))
            await anyio.sleep(COMMIT_INTERVAL_SECONDS)
            await self._commit_together(self._pullers.values(), confirmed=False)
            await self._save_quietly()

    async def _keep_expiring(self, timeout: float) -> None:
        while True:
            await anyio.sleep(min(EXPIRY_INTERVAL_SECONDS, timeout / 4))
            for puller in list(self._pullers.values()):
                self._hand_over()
                for message in puller.expired():
                    await self._send_back_expired(puller, message, timeout)

    async def _send_back_expired(self, puller: Puller[R], message: R, timeout: float) -> bool:
        """Return a message whose ``consume_timeout`` is over; False where that failed and is tried again."""
        queue = puller.queue
        try:
            await puller.send_back(message, EXPIRED_LEVEL)
        except GantryError as error:
            self.failed(error)
            puller.given_out(message)
            self._cluster.rare.warning("send_back_failed", queue.broker_name, self.group, reason=str(error))
            return False
        self._cluster.rare.warning(
            "consume_timed_out", self.group, queue.topic, group=self.group, topic=queue.topic, queue=queue.queue_id,
            offset=message.queue_offset, timeout_s=timeout,
        )  # fmt: skip
        return True

    async def _keep_locked(self, locks: QueueLocks) -> None:
        while True:
            await anyio.sleep(LOCK_CHECK_SECONDS)
            lapsed = {queue for queue in self._pullers if not locks.holds(queue)}
            refused = await locks.take(queue for queue in self._queues_to_lock() if locks.is_due(queue))
            if locks.others(self._queues_to_lock()):
                self.rebalance_soon()
            lost = [queue for queue in self._pullers if queue in refused or queue in lapsed]
            unannounced = [queue for queue in lost if not self._pullers[queue].dropped]
            for queue in lost:
                # another member may have consumed from this queue: begin again at the group's offset
                log.warning("queue_lock_lost", group=self.group, topic=queue.topic, queue=queue.queue_id)
                locks.forget(queue)
                puller = self._pullers.pop(queue)
                puller.replaced = True
                puller.stop()
                self._release_later(queue, puller)
            if lost:
                assert self._upkeep is not None  # this runs in it
                self._upkeep.start_soon(self._report_lost, unannounced)  # other locks are renewed meanwhile
            for kept in self._pullers.values():
                if kept.lane is not None:
                    kept.lane.offer_again()  # the lock may have lapsed until its renewal was answered

    def _queues_to_lock(self) -> set[MessageQueue]:
        return {*self._pullers, *self._releasing, *self._assigning}

    async def _report_lost(self, queues: list[MessageQueue]) -> None:
        await self._notify_revoked(queues)
        self.rebalance_soon()

    def _release_later(self, queue: MessageQueue, puller: Puller[R]) -> None:
        """Commit and unlock ``queue`` when nothing of it is in work any more; no member has it until then."""
        assert self._upkeep is not None  # set before the first queue is taken
        self._releasing[queue] = puller
        self._upkeep.start_soon(self._release, queue, puller)

    async def _release(self, queue: MessageQueue, puller: Puller[R]) -> None:
        await self._wait_drained(queue, puller.lane)
        await self._commit_quietly(puller, confirmed=True)
        puller.drop()
        if self._locks is not None:
            await self._locks.release([queue])
        del self._releasing[queue]
        self.rebalance_soon()

    async def _wait_drained(self, queue: MessageQueue, lane: Lane[R] | None) -> None:
        """Return when nothing of ``lane``, which is closed, is in work any more."""
        while lane is not None and lane.in_work:
            drained = anyio.Event()
            lane.drained = drained.set
            with anyio.move_on_after(RELEASE_WARNING_SECONDS):
                await drained.wait()
                continue
            self._cluster.rare.warning(
                "queue_release_waits", self.group, queue.topic, group=self.group, topic=queue.topic,
                queue=queue.queue_id, in_work=lane.in_work,
            )  # fmt: skip

    async def _check_expression(self, options: ConsumerOptions[R]) -> None:
        """Ask a broker of the topic whether it takes the expression; where none can be asked, pulls will tell."""
        try:
            route = await self._cluster.routes.get(options.topic)
            address = next(one for data in route.broker_datas for one in addresses_to_read(data))
            channel = await self._cluster.broker(address)
            body = CheckClientConfig(
                client_id=self._cluster.client_id, group=self.group, subscription_data=options.subscription
            )
            await call(channel, Command(RequestCode.CHECK_CLIENT_CONFIG, body=body.to_bytes()))
        except (ConnectError, NoRoute, StopIteration):
            return
        except BrokerError as error:
            if error.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED:
                raise InvalidName(f"the Sql expression of topic {options.topic} is refused: {error}") from None
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise

    async def _notify_revoked(self, queues: Iterable[MessageQueue]) -> None:
        """Call ``on_revoked``; what was acknowledged before and in it counts."""
        try:
            await self._notify_queues_changed(self._settings.on_revoked, queues)
        finally:
            self._hand_over()

    async def _notify_queues_changed(self, changed: QueuesChanged | None, queues: Iterable[MessageQueue]) -> None:
        """Call ``on_assigned`` or ``on_revoked``; an error of it is logged and changes nothing."""
        known = sorted(queue for queue in queues if queue.topic in self._subscribed)
        if changed is None or not known:
            return
        try:
            with foreign_cancellation_as_error():
                result = changed(known)
                if inspect.isawaitable(result):
                    await result
        except Exception:
            log.exception("rebalance_callback_failed", group=self.group, queues=len(known))

    async def _save_quietly(self) -> None:
        if self._local is None:
            return
        try:
            await anyio.to_thread.run_sync(self._local.save)
        except OSError as error:
            self._cluster.rare.warning("commit_failed", "local", self.group, group=self.group, reason=str(error))

    async def _reset(self) -> None:
        resets, self._resets = self._resets, {}
        async with anyio.create_task_group() as starting:
            for queue, offset in resets.items():
                puller = self._pullers.get(queue)
                if puller is None and queue not in self._restarts:
                    continue
                if self._local is not None:
                    self._local.set(queue, offset)
                log.info("queue_offset_reset", topic=queue.topic, queue=queue.queue_id, offset=offset)
                if puller is None or (puller.lane is not None and puller.lane.in_work):
                    self._restarts[queue] = offset
                    starting.start_soon(self._commit_reset, queue, offset)
                    if puller is not None:
                        self._restart_later(queue, puller)
                else:
                    puller.replace()
                    starting.start_soon(self._start_pulling, queue, offset)
            self._discard_dropped()

    async def _commit_reset(self, queue: MessageQueue, offset: int) -> None:
        """Let the group begin at ``offset`` of ``queue`` also if this member leaves before it has begun there."""
        if self._local is not None:
            return
        try:
            await Admin(self._cluster).set_consumer_offset(self.group, queue, offset)
        except GantryError as error:
            self.failed(error)  # the next puller tries again

    def _restart_later(self, queue: MessageQueue, puller: Puller[R]) -> None:
        """Begin again in ``queue`` when nothing of it is in work any more, and keep its lock until then."""
        assert self._upkeep is not None  # set before the first queue is taken
        del self._pullers[queue]
        puller.replaced = True
        puller.stop()
        self._releasing[queue] = puller
        self._upkeep.start_soon(self._restart, queue, puller)

    async def _restart(self, queue: MessageQueue, puller: Puller[R]) -> None:
        await self._wait_drained(queue, puller.lane)
        puller.drop()
        del self._releasing[queue]
        await self._start_pulling(queue, self._restarts.pop(queue))
        self.rebalance_soon()  # the queue may be another member's by now

    async def _settle(self, *, joining: bool = False) -> bool:
        try:
            settled = await self._rebalance(joining=joining)
            self._cluster.rare.over("rebalance_failed", self.group)
            return settled
        except GantryError as error:
            if joining and isinstance(error, _HOPELESS):
                raise
            if isinstance(error, AccessDenied):
                self.refused(error)
            self.failed(error)
            # nameservers learn of a new topic a moment after its first message: the next attempt says what is missing
            if not (joining and isinstance(error, NoRoute)):
                self._cluster.rare.warning(
                    "rebalance_failed", self.group, topics=self.topics, group=self.group, reason=str(error)
                )
            if isinstance(error, ConnectError):
                for topic in self.topics:
                    await self._cluster.routes.renew(topic)  # a slave may be there to ask
            return False

    async def _rebalance(self, *, joining: bool) -> bool:
        """Whether it is settled: False where a queue is another member's still, or the retry topic is not known yet.

        A topic whose route or members cannot be had keeps its queues, and the others are shared out all the same; then
        its error is raised.
        """
        routes, failure = await self._answers(self._cluster.routes.get, self.topics)
        if not self._pullers:
            await self._cluster.heartbeat()
        queues = {topic: queues_to_subscribe(topic, route) for topic, route in routes.items()}
        shares = queues
        members: list[str] = []
        if not self._settings.broadcast:
            found, refusal = await self._answers(lambda topic: self._members(topic, routes[topic]), routes)
            failure = refusal or failure
            members = next(iter(found.values()), [])
            shares = {
                topic: self._share(topic, queues[topic], each, self._settings.allocation)
                for topic, each in found.items()
            }
        if joining:
            self._old_queues = {queue for topic in shares for queue in queues[topic]}
        retries: set[MessageQueue] | None = None
        try:
            retries = await self._retry_queues(members)
        except _HOPELESS:
            raise
        except GantryError as error:
            failure = failure or error
        mine = {queue for share in shares.values() for queue in share} | (retries or set())
        unshared = self._subscribed.keys() - shares.keys()
        mine.update(queue for queue in self._pullers if queue.topic in unshared)
        lost = [queue for queue in self._pullers if queue not in mine]
        await self._give_up(lost)
        wanted = sorted(mine - self._pullers.keys() - self._releasing.keys())
        if self._locks is not None:
            await self._locks.release(self._locks.others(mine | self._queues_to_lock()))
        gained = await self._begin(wanted)
        if lost or gained:
            log.info(
                "queues_rebalanced",
                topics=self.topics,
                group=self.group,
                queues=len(mine),
                lost=len(lost),
                gained=len(gained),
            )
        if failure is not None:
            raise failure
        if retries is None and self._retry_topic_checks:
            # nameservers learn of it a moment after its first message: do not wait for the next interval
            self._retry_topic_checks -= 1
            return False
        return len(gained) == len(wanted)

    async def _answers(
        self, ask: Callable[[str], Awaitable[T]], topics: Iterable[str]
    ) -> tuple[dict[str, T], GantryError | None]:
        """What ``ask`` returns for each topic, and an error of one for which it failed: a ConnectError if there is one.

        All are asked at the same time, so that servers that do not answer are waited for once. Raises an error that
        concerns all topics, and any error if there is no answer.
        """
        answers: dict[str, T] = {}
        errors: list[GantryError] = []

        async def ask_one(topic: str) -> None:
            try:
                answers[topic] = await ask(topic)
            except GantryError as error:
                errors.append(error)

        async with anyio.create_task_group() as asking:
            for topic in topics:
                asking.start_soon(ask_one, topic)
        for error in errors:
            if isinstance(error, _HOPELESS):
                raise error
        failure = next((error for error in errors if isinstance(error, ConnectError)), errors[0] if errors else None)
        if failure is not None and not answers:
            raise failure
        return answers, failure

    async def _begin(self, wanted: list[MessageQueue]) -> list[MessageQueue]:
        """Take these queues; returns those that no other member has locked."""
        gained, locks = wanted, self._locks
        self._assigning = set(wanted)
        try:
            if wanted and locks is not None:
                await locks.take(wanted)
                gained = [queue for queue in wanted if locks.holds(queue)]
                self._assigning = set(gained)
            await self._notify_queues_changed(self._settings.on_assigned, gained)
            async with anyio.create_task_group() as starting:
                for queue in gained:
                    starting.start_soon(self._start_pulling, queue)
        finally:
            self._assigning = set()
        return gained

    async def _give_up(self, lost: list[MessageQueue]) -> None:
        """Let other members have these queues, with what this one has done in them."""
        for queue in lost:
            self._pullers[queue].stop()
        await self._notify_revoked(lost)
        self._discard_dropped()
        dropped: list[Puller[R]] = []
        for queue in lost:
            puller = self._pullers.pop(queue, None)
            if puller is None:
                continue  # its lock was lost meanwhile, so it is being released
            if self._locks is not None:
                self._release_later(queue, puller)
                continue
            puller.drop()
            dropped.append(puller)
        self._uncommitted.update(dropped)
        await self._commit_together(dropped, confirmed=True)
        self._uncommitted.difference_update(dropped)  # not when cancelled: then the end of the block commits them

    async def _retry_queues(self, members: list[str]) -> set[MessageQueue] | None:
        """This member's share of the group's retry topic, which brokers make when they first hear of the group; None if
        the nameservers do not know the topic."""
        if self._retries is None:
            return set()
        try:
            route = await self._cluster.routes.get(self._retries.topic)
        except NoRoute:
            return None
        self._retry_topic_known = True
        queues = queues_to_subscribe(self._retries.topic, route)
        strategy = self._settings.allocation
        if isinstance(strategy, FixedQueues):
            strategy = average  # the option names no queues of this topic
        return set(self._share(self._retries.topic, queues, members, strategy))

    def _share(
        self, topic: str, queues: Sequence[MessageQueue], members: Sequence[str], strategy: Allocation
    ) -> list[MessageQueue]:
        try:
            share = allocate(queues, members, self._cluster.client_id, strategy)
            return [queue for queue in share if queue.topic == topic]
        except Exception as error:
            name = getattr(strategy, "__qualname__", type(strategy).__name__)
            raise AllocationFailed(
                f"the allocation strategy {name} cannot share out topic {topic} among {len(members)} members: {error!r}"
            ) from error

    async def _start_pulling(self, queue: MessageQueue, begin: int | None = None) -> None:
        options = self._subscribed.get(queue.topic) or self._retries
        assert options is not None  # a queue is pulled only for what is subscribed to
        appeared = None if queue in self._old_queues else self._joined_at
        is_held = None if self._locks is None else partial(self._locks.holds, queue)
        lane: Lane[R] | None = None
        if self._settings.ordered:
            lane = (KeyLane if self._settings.ordered == "key" else Lane)(self._offer, is_held or _always)
        puller = Puller(
            self._cluster, options, queue, self, begin=begin, appeared=appeared, lane=lane, is_held=is_held,
            local=self._local,
        )  # fmt: skip
        self._pullers[queue] = puller
        await self._puller_tasks().start(puller.run)

    async def _members(self, topic: str, route: TopicRouteData) -> list[str]:
        failure: GantryError = NoRoute(f"topic {topic} has no broker that could name the members of {self.group}")
        for data in route.broker_datas:
            if not data.broker_addrs:
                continue
            address = data.broker_addrs[min(data.broker_addrs)]  # without a master its slave knows the members as well
            header = ConsumerGroupHeader(consumer_group=self.group)
            try:
                channel = await self._cluster.broker(address)
                answer = await call(channel, Command(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header.to_ext()))
            except (BrokerError, ConnectError) as error:
                failure = error
                continue
            with reading(address):
                return ConsumerList.from_bytes(answer.body).consumer_id_list
        raise failure

    async def _commit_together(self, pullers: Iterable[Puller[R]], *, confirmed: bool) -> None:
        """Commit what each of ``pullers`` has done; a broker that does not answer is waited for once, not by queue."""
        async with anyio.create_task_group() as committing:
            for puller in pullers:
                if puller.owes_commit(confirmed=confirmed):
                    committing.start_soon(partial(self._commit_quietly, puller, confirmed=confirmed))

    async def _commit_quietly(self, puller: Puller[R], *, confirmed: bool) -> None:
        try:
            await puller.commit(confirmed=confirmed)
            self._cluster.rare.over("commit_failed", puller.queue.broker_name, self.group)
        except GantryError as error:
            self.failed(error)
            queue = puller.queue
            self._cluster.rare.warning(
                "commit_failed", queue.broker_name, self.group,
                topic=queue.topic, queue=queue.queue_id, reason=str(error),
            )  # fmt: skip


def check_batch_max(max: int) -> None:
    """ValueError for batches of less than one message."""
    if max < 1:
        raise ValueError(f"max {max}: ask for at least one message")


def _is_dropped(part: Sequence[DeliveredRecord]) -> bool:
    """Whether these messages, which have one delivery, are not to be given out any more."""
    return bool(part) and (part[0].delivery is None or part[0].delivery.dropped)


def _always() -> bool:
    return True


def _nothing() -> None:
    pass


class Batches(Generic[R]):
    """An iterator over batches of messages; unlike a generator it may be left at any time."""

    def __init__(self, consumer: Consumer[R], max: int) -> None:
        self._consumer = consumer
        self._max = max

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> MessageBatch[R]:
        """As :meth:`Consumer.next_batch`."""
        return await self._consumer.next_batch(self._max)

"""Consume a topic as a member of a group: share its queues with the other members, and iterate over what they bring.

Source of the intervals: RocketMQ 4.9.7 ``RebalanceService``, ``ClientConfig``.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, Generic, Self, TypeVar

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from gantrymq._version import __version__
from gantrymq.client.allocation import allocate
from gantrymq.client.cluster import LEAVE_SECONDS, Cluster
from gantrymq.client.connections import call, reading
from gantrymq.client.direct import DirectDelivery
from gantrymq.client.errors import (
    AccessDenied,
    BrokerError,
    ClientClosed,
    ConnectError,
    GantryError,
    NoRoute,
    NotANameserver,
)
from gantrymq.client.options import ConsumerOptions
from gantrymq.client.puller import Puller
from gantrymq.client.routes import queues_to_subscribe
from gantrymq.client.statistics import ConsumerStatistics
from gantrymq.message import DeliveredRecord
from gantrymq.remoting.bodies.clients import ConsumerData, ConsumerList
from gantrymq.remoting.bodies.queues import MessageQueue
from gantrymq.remoting.bodies.routes import TopicRouteData
from gantrymq.remoting.bodies.running import ConsumerRunningInfo, ConsumeStatus, DirectlyConsumed, ProcessQueueInfo
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import VERSION, Command
from gantrymq.remoting.headers.groups import ConsumerGroupHeader
from gantrymq.remoting.logs import LibraryLog
from gantrymq.remoting.names import is_retry_topic
from gantrymq.remoting.properties import RETRY_TOPIC
from gantrymq.remoting.records import decode_records
from gantrymq.remoting.tasks import hosted_tasks
from gantrymq.remoting.versions import version_name

REBALANCE_INTERVAL_SECONDS: Final = 20.0
REBALANCE_RETRY_SECONDS: Final = 1.0
COMMIT_INTERVAL_SECONDS: Final = 5.0
BATCH_MESSAGES: Final = 32
SAMPLES: Final = 13
"""Counters kept for rates, one each ``COMMIT_INTERVAL_SECONDS``: a minute of them."""

_FROM_WHERE: Final = {"first": "CONSUME_FROM_FIRST_OFFSET", "last": "CONSUME_FROM_LAST_OFFSET"}

R = TypeVar("R", bound=DeliveredRecord)

log = LibraryLog()


class Consumer(Generic[R]):
    """An iterator over the messages that fall to this member of the group.

    A message counts as outstanding until it is acknowledged; with a thousand outstanding in a queue nothing more of
    that queue comes, and after half a minute of that the log has a warning. What is not acknowledged comes again when
    the group starts anew from its offset.
    """

    def __init__(self, cluster: Cluster, options: Sequence[ConsumerOptions[R]], pulling: TaskGroup) -> None:
        """``options``: one of each topic; they differ in nothing but topic and subscription."""
        self.topics = tuple(each.topic for each in options)
        self.group = options[0].group
        self._cluster = cluster
        self._options = options[0]
        self._subscribed = {each.topic: each for each in options}
        retries = options[0].of_retries()
        self._retries = None if retries is None or retries.topic in self._subscribed else retries
        self._pulling = pulling
        self._pullers: dict[MessageQueue, Puller[R]] = {}
        self._resets: dict[MessageQueue, int] = {}
        self._fetched = self._acknowledged = self._returned = 0
        self._samples: deque[tuple[float, int, int, int]] = deque(maxlen=SAMPLES)
        self._last_error: tuple[str | None, int] = (None, 0)
        self._joined_at = 0
        self._old_queues: set[MessageQueue] = set()
        """The topic's queues when this member joined: in all others, ``start`` means the time of joining."""
        self._ready: deque[list[R]] = deque()
        self._current: deque[R] = deque()
        self._arrived = anyio.Event()
        self._unbalanced = anyio.Event()
        self._closed = False
        self._refusal: AccessDenied | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> R:
        """The next message, whenever it comes.

        Raises :class:`ClientClosed` after the consumer's block, and :class:`AccessDenied` once a broker has refused
        the client's credentials, or this group or topic to them; nothing is tried again then.
        """
        while True:
            self._ensure_open()
            while self._current:
                message = self._current.popleft()
                if message.delivery is not None and not message.delivery.dropped:
                    return message
            await self._more()

    def batches(self, max: int = BATCH_MESSAGES) -> Batches[R]:
        """Lists of 1 to ``max`` messages, whatever is there; waits only while there is none."""
        return Batches(self, max)

    async def next_batch(self, max: int = BATCH_MESSAGES) -> list[R]:
        """1 to ``max`` messages; waits while there is none."""
        batch = [await anext(self)]
        while len(batch) < max:
            if not self._current and self._ready:
                self._current.extend(self._ready.popleft())
            if not self._current:
                break
            message = self._current.popleft()
            if message.delivery is not None and not message.delivery.dropped:
                batch.append(message)
        return batch

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues of the topics that are this member's now, in order of broker, topic and id."""
        return sorted(queue for queue in self._pullers if queue.topic in self._subscribed)

    async def commit(self) -> None:
        """Tell the brokers now how far the group is, and wait for their answers.

        Offsets are committed every five seconds anyway. Raises :class:`ConnectError`, :class:`NoRoute`.
        """
        self._ensure_open()
        for puller in list(self._pullers.values()):
            await puller.commit(confirmed=True)

    def statistics(self) -> ConsumerStatistics:
        """How this member is doing: lag, outstanding messages, rates, and what failed last."""
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
        """What administrators are told of this member (307)."""
        now = self.statistics()
        subscriptions = self.describe().subscription_data_set
        rates = ConsumeStatus(
            pull_tps=now.fetched_per_second, consume_ok_tps=now.acknowledged_per_second,
            consume_failed_tps=now.returned_per_second, consume_failed_msgs=now.returned,
        )  # fmt: skip
        return ConsumerRunningInfo(
            properties={
                "consumerGroup": self.group,
                "messageModel": "CLUSTERING",
                "consumeFromWhere": self.describe().consume_from_where,
                "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
                "PROP_CONSUMEORDERLY": "false",
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
            consume_from_where=_FROM_WHERE.get(str(self._options.start), "CONSUME_FROM_TIMESTAMP"),
            subscription_data_set=[
                options.subscription for options in (*self._subscribed.values(), self._retries) if options
            ],
        )

    def rebalance_soon(self) -> None:
        """Share the queues out again at once, not at the next interval."""
        self._unbalanced.set()

    async def start(self, upkeep: TaskGroup) -> None:
        """Join the group and take the first share of the queues; where that fails it is tried again in ``upkeep``.

        Raises :class:`NotANameserver`, and :class:`AccessDenied` when a broker refuses the client's credentials.
        """
        settled = await self._settle(joining=True)
        if self._refusal is not None:
            raise self._refusal
        upkeep.start_soon(self._keep_balanced, settled)
        upkeep.start_soon(self._keep_committing)

    async def aclose(self) -> None:
        """Stop pulling, commit what is done, and leave the group."""
        self._closed = True
        self._arrived.set()
        for puller in self._pullers.values():
            puller.close()
        for puller in self._pullers.values():
            await self._commit_quietly(puller, confirmed=True)
        await self._cluster.leave_as_consumer(self.group)

    def _ensure_open(self) -> None:
        self._cluster.ensure_open()
        if self._closed:
            raise ClientClosed(f"the consumer of group {self.group} is closed: its `async with` block has ended")

    async def _more(self) -> None:
        if self._ready:
            await anyio.lowlevel.checkpoint()  # a busy loop over messages must not starve the heartbeat
        while not self._ready:
            if self._refusal is not None:
                raise self._refusal
            self._arrived = anyio.Event()
            await self._arrived.wait()
            self._ensure_open()
        self._current.extend(self._ready.popleft())

    def take(self, messages: list[R]) -> None:
        """As :class:`Owner` has it, like the three that follow."""
        self._fetched += len(messages)
        self._ready.append(messages)
        self._arrived.set()

    def wake(self) -> None:
        """Let what waits for messages look whether the client is still alive."""
        self._arrived.set()

    def acknowledged(self) -> None:
        self._acknowledged += 1

    def returned(self) -> None:
        self._returned += 1
        if self._retries is not None and not any(queue.topic == self._retries.topic for queue in self._pullers):
            self.rebalance_soon()  # whoever has them now will get the message

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
            for puller in list(self._pullers.values()):
                await self._commit_quietly(puller, confirmed=False)

    async def _reset(self) -> None:
        resets, self._resets = self._resets, {}
        async with anyio.create_task_group() as starting:
            for queue, offset in resets.items():
                puller = self._pullers.get(queue)
                if puller is not None:
                    puller.replace()
                    log.info("queue_offset_reset", topic=queue.topic, queue=queue.queue_id, offset=offset)
                    starting.start_soon(self._start_pulling, queue, offset)

    async def _settle(self, *, joining: bool = False) -> bool:
        try:
            await self._rebalance()
        except GantryError as error:
            if joining and isinstance(error, NotANameserver | AccessDenied):
                raise  # no later attempt will do better
            if isinstance(error, AccessDenied):
                self.refused(error)
            self.failed(error)
            self._cluster.rare.warning(
                "rebalance_failed", self.group, topics=self.topics, group=self.group, reason=str(error)
            )
            if isinstance(error, ConnectError):
                for topic in self.topics:
                    await self._cluster.routes.renew(topic)  # a slave may be there to ask
            return False
        return True

    async def _rebalance(self) -> None:
        routes: dict[str, TopicRouteData] = {}
        missing: NoRoute | None = None
        for topic in self.topics:
            try:
                routes[topic] = await self._cluster.routes.get(topic)
            except NoRoute as error:
                missing = error
        if missing is not None and not routes:
            raise missing
        if not self._pullers:
            await self._cluster.heartbeat()
        mine: set[MessageQueue] = set()
        old: set[MessageQueue] = set()
        members: list[str] = []
        for topic, route in routes.items():
            queues = queues_to_subscribe(topic, route)
            members = await self._members(topic, route)
            mine.update(allocate(queues, members, self._cluster.client_id))
            old.update(queues)
        if not self._joined_at:
            self._joined_at = int(time.time() * 1000)
            self._old_queues = old
        mine |= await self._retry_queues(members)
        lost = [queue for queue in self._pullers if queue not in mine]
        gained = sorted(mine - self._pullers.keys())
        for queue in lost:
            puller = self._pullers.pop(queue)
            puller.drop()
            await self._commit_quietly(puller, confirmed=True)
        async with anyio.create_task_group() as starting:
            for queue in gained:
                starting.start_soon(self._start_pulling, queue)
        if lost or gained:
            log.info(
                "queues_rebalanced",
                topics=self.topics,
                group=self.group,
                queues=len(mine),
                lost=len(lost),
                gained=len(gained),
            )
        if missing is not None:
            raise missing

    async def _retry_queues(self, members: list[str]) -> set[MessageQueue]:
        """This member's share of the group's retry topic, which brokers make when they first hear of the group."""
        if self._retries is None:
            return set()
        try:
            route = await self._cluster.routes.get(self._retries.topic)
        except NoRoute:
            return set()
        queues = queues_to_subscribe(self._retries.topic, route)
        return set(allocate(queues, members, self._cluster.client_id))

    async def _start_pulling(self, queue: MessageQueue, begin: int | None = None) -> None:
        options = self._subscribed.get(queue.topic) or self._retries
        assert options is not None  # a queue is pulled only for what is subscribed to
        appeared = None if queue in self._old_queues else self._joined_at
        puller = Puller(self._cluster, options, queue, self, begin=begin, appeared=appeared)
        self._pullers[queue] = puller
        await self._pulling.start(puller.run)

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

    async def _commit_quietly(self, puller: Puller[R], *, confirmed: bool) -> None:
        try:
            await puller.commit(confirmed=confirmed)
        except GantryError as error:
            self.failed(error)
            queue = puller.queue
            self._cluster.rare.warning(
                "commit_failed", queue.broker_name, self.group,
                topic=queue.topic, queue=queue.queue_id, reason=str(error),
            )  # fmt: skip


class Batches(Generic[R]):
    """An iterator over lists of messages; unlike a generator it may be left at any time."""

    def __init__(self, consumer: Consumer[R], max: int) -> None:
        self._consumer = consumer
        self._max = max

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[R]:
        """As :meth:`Consumer.next_batch`."""
        return await self._consumer.next_batch(self._max)


@asynccontextmanager
async def open_consumer(cluster: Cluster, options: Sequence[ConsumerOptions[R]]) -> AsyncIterator[Consumer[R]]:
    """A :class:`Consumer` that is a member of its group for the length of the block."""
    cluster.ensure_open()
    async with hosted_tasks(cluster.fail) as pulling:
        consumer = Consumer(cluster, options, pulling)
        cluster.join_as_consumer(consumer.group, consumer)
        try:
            # what shares out and commits has ended before the consumer closes what it works on
            async with hosted_tasks(cluster.fail) as upkeep:
                await consumer.start(upkeep)
                yield consumer
        finally:
            with anyio.move_on_after(LEAVE_SECONDS, shield=True):
                await consumer.aclose()

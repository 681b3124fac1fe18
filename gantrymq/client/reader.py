"""Read queues at places of one's own choice: without a group's sharing, locks and retries.

Source: RocketMQ 4.9.7 ``DefaultLitePullConsumerImpl``, ``PullAPIWrapper``.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, Generic, Self, TypeVar

import anyio
from anyio.abc import TaskGroup

from gantrymq.client.admin import Admin
from gantrymq.client.cluster import Cluster
from gantrymq.client.errors import (
    AccessDenied,
    BodyError,
    BrokerError,
    ConnectError,
    GantryError,
    InvalidName,
)
from gantrymq.client.lifetime import Lifetime
from gantrymq.client.lookup import TOOLS_GROUP
from gantrymq.client.options import ReaderSettings, Start, Topics, as_timestamp, subscriptions
from gantrymq.client.progress import OUTSTANDING_MAX_BYTES
from gantrymq.client.pulled_records import decode_intact
from gantrymq.client.puller import (
    IDLE_INTERVAL_SECONDS,
    PAUSE_AFTER_ERROR_SECONDS,
    PULL_TIMEOUT_SECONDS,
    SUSPEND_MILLISECONDS,
)
from gantrymq.client.requests import next_offset, pull_request, read_pull, reading
from gantrymq.client.routes import queues_to_subscribe
from gantrymq.client.sender import RENEW_WAIT_S
from gantrymq.client.serializers import Deserializer
from gantrymq.message import DeliveredRecord
from gantrymq.remoting.bodies.clients import SubscriptionData
from gantrymq.remoting.bodies.queues import MessageQueue
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.tasks import hosted_tasks

PREFETCH_MESSAGES: Final = 1000
POLL_MESSAGES: Final = 64
NEW_QUEUES_INTERVAL_SECONDS: Final = 30.0

R = TypeVar("R", bound=DeliveredRecord)


class _Queue(Generic[R]):
    """Where the reader is in one queue, and what it has fetched ahead."""

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        self.position: int | None = None
        """The offset of the next message to give out; None where it is not known yet."""
        self.fetched: deque[R] = deque()
        self.bytes = 0
        """The size of what is fetched."""
        self.fetch_at = 0
        self.turn = 0
        """Changes with each seek: an answer to an older request does not count."""
        self.paused = False
        self.wanted = anyio.Event()
        self.scope = anyio.CancelScope()
        self.asking = anyio.CancelScope()

    def seek(self, offset: int) -> None:
        self.position = self.fetch_at = offset
        self.fetched.clear()
        self.bytes = 0
        self.turn += 1
        self.asking.cancel()
        self.wanted.set()

    def give(self, most: int, end: int | None) -> list[R]:
        given: list[R] = []
        while self.fetched and len(given) < most:
            if end is not None and self.fetched[0].queue_offset >= end:
                self.position = max(self.position or 0, end)
                break
            given.append(self.fetched.popleft())
            self.bytes -= given[-1].stored_size
        if given:
            self.position = given[-1].queue_offset + 1
        if not self.fetched and self.position is not None:
            self.position = max(self.position, self.fetch_at)  # what lies between was not wanted, or is gone
        self.wanted.set()
        return given


class Reader(Lifetime, Generic[R]):
    """An async iterator over the messages of some topics' queues, from any offset; it acknowledges nothing.

    Its methods raise :class:`BrokerError`, :class:`ConnectError` and :class:`NoRoute`; those that seek, pause, resume
    or return a position raise ValueError for a queue that is not read.
    """

    def __init__(
        self,
        cluster: Cluster,
        wanted: Mapping[str, SubscriptionData],
        make: type[R],
        settings: ReaderSettings,
    ) -> None:
        super().__init__("reader")
        self._cluster = cluster
        self._admin = Admin(cluster)
        self._wanted = wanted
        self._make = make
        self._group = settings.group
        self._start = settings.start
        self._until = settings.until
        self._pull_batch = settings.pull_batch
        self._deserialize = settings.deserialize
        self._tasks: TaskGroup | None = None
        self._queues: dict[MessageQueue, _Queue[R]] = {}
        self._assigned = False
        self._assignments = 0
        self._refreshed_at = float("-inf")
        self._has_looked_up = False
        self._opened_ms = 0
        self._old_queues: set[MessageQueue] = set()
        """Those of the first look-up, and those that were assigned. In all others, ``start="last"`` means the time of
        opening, or of their removal."""
        self._removed_ms: dict[MessageQueue, int] = {}
        self._ends: dict[MessageQueue, int] | None = None
        self._arrived = anyio.Event()
        self._is_looking_up = False
        self._failure: GantryError | None = None
        self._more = 0
        """The number of messages that the iteration may still return before the next queue has its turn."""
        self._closed = True

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are read."""
        return tuple(self._wanted)

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that are read, in order."""
        return sorted(self._queues)

    async def assign(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Read these ``queues`` and no others; None for all of the topics, those that are added later as well.

        A queue that was read already continues at its position. The latest of concurrent calls is effective.
        :class:`InvalidName` for a queue of another topic.
        """
        self._ensure_open()
        chosen = None if queues is None else set(queues)
        for queue in chosen or ():
            if queue.topic not in self._wanted:
                raise InvalidName(f"the reader reads {', '.join(self._wanted)}, not {queue.topic}")
        self._assignments += 1
        number = self._assignments
        if chosen is None:
            chosen = await self._all_queues()
            if number != self._assignments:
                return  # a later call has assigned queues meanwhile
        self._assigned = queues is not None
        self._old_queues |= chosen
        for queue in self._queues.keys() - chosen:
            self._queues.pop(queue).scope.cancel()
        await self._add(chosen - self._queues.keys())
        self._forget_ends()

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at the queue offset ``offset`` of ``queue``. ValueError for a negative one."""
        if offset < 0:
            raise ValueError(f"offset {offset} is negative")
        (await self._known([queue]))[0].seek(offset)
        self._forget_ends()

    async def seek_to_beginning(self, *queues: MessageQueue) -> None:
        """Continue at the oldest message of these ``queues``, or of all."""
        await self._seek_each(queues, "first")

    async def seek_to_end(self, *queues: MessageQueue) -> None:
        """Continue at the next message to come of these ``queues``, or of all."""
        await self._seek_each(queues, "last")

    async def seek_to_time(self, when: Start, *queues: MessageQueue) -> None:
        """Continue, in these ``queues`` or in all, at the first message stored at or after ``when``.

        ``when`` is a datetime, or milliseconds since 1970; ValueError for anything else.
        """
        await self._seek_each(queues, as_timestamp(when))

    def pause(self, *queues: MessageQueue) -> None:
        """Return no messages of these ``queues``, or of all, until :meth:`resume`."""
        self._pause(queues, True)

    def resume(self, *queues: MessageQueue) -> None:
        """Continue with these ``queues``, or with all."""
        self._pause(queues, False)

    async def poll(self, timeout: float | None = None, max: int = POLL_MESSAGES) -> list[R]:
        """Return 1 to ``max`` messages; none after ``timeout`` seconds (None: no limit), or at the end of ``until``.

        Raises the :class:`GantryError` that occurred since the last call if there is no message; the next call tries
        again. ValueError for a ``max`` below 1.
        """
        if max < 1:
            raise ValueError(f"max {max}: ask for at least one message")
        self._ensure_open()
        with anyio.move_on_after(timeout):
            while True:
                self._ensure_open()
                if self._arrived.is_set():
                    self._arrived = anyio.Event()
                self._look_up_soon()
                is_known = self._until != "end" or self._ends is not None
                batch = self._take(max) if is_known else []
                if batch or self._at_end():
                    return batch
                if self._failure is not None:
                    failure, self._failure = self._failure, None
                    raise failure
                await self._arrived.wait()
        return []

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> R:
        """The next message, whenever it comes; with ``until="end"`` the iteration ends there.

        Raises as :meth:`poll`.
        """
        if self._closed or not self._cluster.usable:
            self._ensure_open()
        if self._more and self._queues:
            last, known = next(reversed(self._queues.items()))  # the one that the last message came from
            if given := self._take_from(last, known, 1):
                self._more -= 1
                return given[0]
        batch = await self.poll(max=1)
        if not batch:
            raise StopAsyncIteration
        self._more = POLL_MESSAGES - 1
        return batch[0]

    async def position(self, queue: MessageQueue) -> int:
        """Return the queue offset of the next message of ``queue`` that :meth:`poll` or the iteration returns."""
        (known,) = await self._known([queue])
        if known.position is None:
            known.seek(await self._place(queue))
        assert known.position is not None  # just set
        return known.position

    async def begin_offsets(self) -> dict[MessageQueue, int]:
        """Return the queue offset of the oldest message of each queue that is read."""
        await self._refresh_queues()
        return {queue: await self._admin.min_offset(queue) for queue in self.queues}

    async def end_offsets(self) -> dict[MessageQueue, int]:
        """Return the queue offset of the next message to come of each queue that is read."""
        await self._refresh_queues()
        return {queue: await self._admin.max_offset(queue) for queue in self.queues}

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the committed offset of the group in ``queue``, None without one. ValueError without a group."""
        self._ensure_open()
        return await self._admin.consumer_offset(self._named_group(), queue)

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit the positions, or ``offsets``, as the group's, from which a later reader of the group continues.

        ValueError without a group; :class:`BrokerError`, :class:`ConnectError`, :class:`NoRoute`.
        """
        self._ensure_open()
        group = self._named_group()
        if offsets is None:
            positions = {queue: each.position for queue, each in self._queues.items()}
            offsets = {queue: position for queue, position in positions.items() if position is not None}
        for queue, offset in offsets.items():
            await self._admin.set_consumer_offset(group, queue, offset)

    def _put_back(self, batch: Sequence[R]) -> None:
        """Give the messages of ``batch`` out again, as if :meth:`poll` had not returned them."""
        for record in reversed(batch):
            known = self._queues.get(record.queue)
            if known is None or known.position is None or known.position <= record.queue_offset:
                continue  # it is not read any more, or will be again
            known.fetched.appendleft(record)
            known.bytes += record.stored_size
            known.position = record.queue_offset
        self._arrived.set()

    def _finish(self) -> None:
        """From now on every use raises :class:`ClientClosed`."""
        self._closed = True
        self._arrived.set()

    def _ensure_open(self) -> None:
        self._cluster.ensure_open()
        if self._closed:
            raise self._closed_error()

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[None]:
        """It reads for the length of the block."""
        async with hosted_tasks(self._cluster.fail) as tasks:
            self._cluster.ensure_open()
            self._tasks = tasks
            self._opened_ms = int(time.time() * 1000)
            self._closed = False
            try:
                yield
            finally:
                self._finish()

    def _named_group(self) -> str:
        if self._group is None:
            raise ValueError("a reader without a group has no committed offsets: open it with group=")
        return self._group

    def _look_up_soon(self) -> None:
        """Begin to look up the queues and their ends if they are not known, or not lately."""
        is_missing = self._are_queues_due() or (self._until == "end" and self._ends is None)
        if is_missing and self._failure is None and not self._is_looking_up:
            self._is_looking_up = True
            assert self._tasks is not None  # it is open
            self._tasks.start_soon(self._look_up)

    async def _look_up(self) -> None:
        """A task of its own, because the timeout of one poll may be too short for it."""
        try:
            await self._refresh_queues()
            if self._until == "end" and self._ends is None:
                ends = await self.end_offsets()
                if ends.keys() == self._queues.keys():  # no others were assigned meanwhile
                    self._ends = ends
        except GantryError as error:
            self._failure = error
        finally:
            self._is_looking_up = False
            self._arrived.set()

    def _are_queues_due(self) -> bool:
        return not self._assigned and anyio.current_time() - self._refreshed_at >= NEW_QUEUES_INTERVAL_SECONDS

    async def _refresh_queues(self) -> None:
        """Take up all queues of the topics, unless some were assigned."""
        self._ensure_open()
        if not self._are_queues_due():
            return
        is_first = not self._has_looked_up
        if self._refreshed_at > float("-inf"):
            # The kept routes are up to 30 s old. They are used if a nameserver hangs: the brokers may work.
            with anyio.move_on_after(RENEW_WAIT_S):
                for topic in self._wanted:
                    await self._cluster.routes.renew(topic)
        try:
            queues = await self._all_queues()
        finally:
            self._has_looked_up = True  # a topic that does not exist now has only messages stored since the opening
        if self._assigned:
            return  # while the look-up was under way
        if is_first:
            self._old_queues |= queues
        self._refreshed_at = anyio.current_time()
        await self._add(queues - self._queues.keys())

    async def _all_queues(self) -> set[MessageQueue]:
        found: set[MessageQueue] = set()
        for topic in self._wanted:
            found.update(queues_to_subscribe(topic, await self._cluster.routes.get(topic)))
        return found

    async def _add(self, queues: Iterable[MessageQueue]) -> None:
        for queue in sorted(queues):
            known = self._queues[queue] = _Queue[R](queue)
            assert self._tasks is not None  # it is open
            self._tasks.start_soon(self._fetch, known)

    async def _known(self, queues: Iterable[MessageQueue]) -> list[_Queue[R]]:
        await self._refresh_queues()
        for queue in queues:
            if queue not in self._queues:
                raise ValueError(f"queue {queue.queue_id} of {queue.topic} at {queue.broker_name} is not read")
        return [self._queues[queue] for queue in queues]

    async def _seek_each(self, queues: tuple[MessageQueue, ...], where: Start) -> None:
        await self._refresh_queues()
        for known in await self._known(queues or self.queues):
            known.seek(await self._place_of(known.queue, where))
        self._forget_ends()

    def _forget_ends(self) -> None:
        """Let ``until`` mean the ends of now, also for a poll that waits."""
        self._ends = None
        self._arrived.set()

    def _pause(self, queues: tuple[MessageQueue, ...], paused: bool) -> None:
        self._ensure_open()
        for queue in queues or self.queues:
            known = self._queues.get(queue)
            if known is None:
                raise ValueError(f"queue {queue.queue_id} of {queue.topic} at {queue.broker_name} is not read")
            known.paused = paused
            known.wanted.set()
        self._arrived.set()

    async def _place(self, queue: MessageQueue) -> int:
        """The first position of a queue without a seek."""
        if self._group is not None:
            committed = await self._admin.consumer_offset(self._group, queue)
            if committed is not None:
                return committed
        if self._start == "last" and queue not in self._old_queues:
            return await self._admin.search_offset(queue, self._removed_ms.get(queue, self._opened_ms))
        return await self._place_of(queue, self._start)

    async def _place_of(self, queue: MessageQueue, where: Start) -> int:
        if where == "first":
            return await self._admin.min_offset(queue)
        if where == "last":
            return await self._admin.max_offset(queue)
        return await self._admin.search_offset(queue, as_timestamp(where))

    def _take(self, most: int) -> list[R]:
        batch: list[R] = []
        for queue, known in list(self._queues.items()):
            if len(batch) < most and (given := self._take_from(queue, known, most - len(batch))):
                batch += given
                self._queues[queue] = self._queues.pop(queue)  # the others first, next time
        return batch

    def _take_from(self, queue: MessageQueue, known: _Queue[R], most: int) -> list[R]:
        if known.paused or (self._ends is not None and queue not in self._ends):
            return []  # with until="end", a queue that is found later is not read
        return known.give(most, None if self._ends is None else self._ends[queue])

    def _at_end(self) -> bool:
        if self._ends is None:
            return False
        places = [(self._queues[queue].position, end) for queue, end in self._ends.items() if queue in self._queues]
        return all(position is not None and position >= end for position, end in places)

    async def _fetch(self, known: _Queue[R]) -> None:
        with known.scope:
            while True:
                try:
                    if known.position is None:
                        turn = known.turn
                        place = await self._place(known.queue)
                        if known.turn == turn:
                            known.seek(place)
                        self._arrived.set()  # there may be nothing to read from there to the end
                    elif (
                        known.paused or len(known.fetched) >= PREFETCH_MESSAGES or known.bytes >= OUTSTANDING_MAX_BYTES
                    ):
                        known.wanted = anyio.Event()
                        await known.wanted.wait()
                    else:
                        await self._pull(known)
                except GantryError as error:
                    if isinstance(error, BrokerError) and await self._is_gone(known.queue):
                        if not known.fetched:
                            self._drop(known)
                            return
                    else:
                        self._failure = error
                        self._arrived.set()
                        if isinstance(error, ConnectError):
                            await self._cluster.routes.renew(known.queue.topic)
                    await anyio.sleep(60.0 if isinstance(error, AccessDenied) else PAUSE_AFTER_ERROR_SECONDS)

    async def _is_gone(self, queue: MessageQueue) -> bool:
        """Whether the topic has fewer queues now on the broker of ``queue``, which nobody has assigned."""
        if self._assigned:
            return False
        await self._cluster.routes.renew(queue.topic)
        try:
            queues = queues_to_subscribe(queue.topic, await self._cluster.routes.get(queue.topic))
        except GantryError:
            return False
        # queues of a broker that is away, or may not be read at present, come back with their messages
        has_others = any(other.broker_name == queue.broker_name for other in queues)
        return has_others and queue not in queues and not self._assigned

    def _drop(self, known: _Queue[R]) -> None:
        if self._queues.get(known.queue) is known:
            del self._queues[known.queue]
            self._old_queues.discard(known.queue)
            self._removed_ms[known.queue] = int(time.time() * 1000)
            self._forget_ends()

    async def _pull(self, known: _Queue[R]) -> None:
        queue, turn, begin = known.queue, known.turn, known.fetch_at
        subscription = self._wanted[queue.topic]
        request = pull_request(
            self._group or TOOLS_GROUP, queue.topic, queue.queue_id, begin, self._pull_batch, subscription,
            SUSPEND_MILLISECONDS,
        )  # fmt: skip
        address = self._cluster.routes.reader(queue)
        channel = await self._cluster.broker(address)
        asked_at = anyio.current_time()
        answer: Command | None = None
        with anyio.CancelScope() as known.asking:  # a seek does not wait for something at the old place
            answer = await channel.call(request, PULL_TIMEOUT_SECONDS)
        if answer is None or known.turn != turn:
            return
        ext = read_pull(answer, address)
        with reading(address):
            records = decode_intact(answer.body, self._make, queue) if answer.code == ResponseCode.SUCCESS else []
        if self._cluster.namespace is not None:
            self._cluster.namespace.restore(records)
        wanted = subscription.tags_set
        for record in records:
            if not wanted or record.tags in wanted:
                if self._deserialize is not None:
                    _decode(record, self._deserialize)
                known.fetched.append(record)
                known.bytes += record.stored_size
        known.fetch_at = next_offset(answer.code, begin, ext)
        if not known.fetched:
            known.position = known.fetch_at
        self._arrived.set()
        if known.fetch_at == begin:
            await anyio.sleep_until(asked_at + IDLE_INTERVAL_SECONDS)


def make_reader(cluster: Cluster, make: type[R], topics: Topics, settings: ReaderSettings) -> Reader[R]:
    """A :class:`Reader` of what a user gave; :class:`InvalidName` for what a broker would refuse."""
    wanted = subscriptions(topics, settings.tags, int(time.time() * 1000))
    return Reader(cluster, wanted, make, settings)


def _decode(record: DeliveredRecord, deserialize: Deserializer) -> None:
    try:
        record.decoded = (deserialize(record.body),)
    except BodyError as error:
        record.decoded = error

"""Pull one queue for one consumer: where to start, long polling, flow control, offsets.

Source: RocketMQ 4.9.7 ``DefaultMQPushConsumerImpl.pullMessage``, ``PullAPIWrapper``, ``RebalancePushImpl``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, Generic, Protocol, TypeVar

import anyio
from anyio.abc import TaskStatus

from gantrymq.client.admin import Admin
from gantrymq.client.cluster import Cluster
from gantrymq.client.connections import call
from gantrymq.client.errors import (
    AccessDenied,
    AuthenticationFailed,
    BrokerError,
    ClientClosed,
    ConnectError,
    GantryError,
    NoRoute,
    broker_error,
)
from gantrymq.client.lanes import Lane
from gantrymq.client.local_offsets import LocalOffsets
from gantrymq.client.options import ConsumerOptions
from gantrymq.client.progress import Progress
from gantrymq.client.pulled_records import decode_intact
from gantrymq.client.replies import send_reply
from gantrymq.client.requests import MAY_SUSPEND, PULL_BATCH_BYTES, PULL_CODES, reading
from gantrymq.client.retry_copies import retry_copy
from gantrymq.client.routes import MASTER_ID
from gantrymq.client.statistics import QueueStatistics
from gantrymq.message import DeliveredRecord
from gantrymq.remoting.bodies.clients import SQL92
from gantrymq.remoting.bodies.queues import MessageQueue
from gantrymq.remoting.channel import Channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.header import read_header
from gantrymq.remoting.headers.offsets import UpdateConsumerOffsetHeader
from gantrymq.remoting.headers.pull import PullMessageHeader, PullMessageResponse
from gantrymq.remoting.headers.send import SendBackHeader
from gantrymq.remoting.logs import LibraryLog
from gantrymq.remoting.names import is_retry_topic
from gantrymq.remoting.properties import RETRY_TOPIC
from gantrymq.remoting.records import stored_sizes

SUSPEND_MILLISECONDS: Final = 15_000
PULL_TIMEOUT_SECONDS: Final = 30.0
PAUSE_AFTER_ERROR_SECONDS: Final = 1.0
IDLE_INTERVAL_SECONDS: Final = 0.1
"""The shortest time between two pulls that bring a queue no further."""

STALL_SECONDS: Final = 30.0
"""So long no acknowledgment has moved a full queue's offset when the client warns."""

_COMMITS_OFFSET: Final = 1

R = TypeVar("R", bound=DeliveredRecord)

log: LibraryLog = LibraryLog()


class Owner(Protocol[R]):
    """The consumer that a queue is pulled for."""

    def take(self, messages: list[R]) -> None:
        """Messages of a queue came, in order."""

    def fetched(self, count: int) -> None:
        """``count`` messages of a lane were received."""

    def suspend(self, resume: Callable[[], None]) -> None:
        """A message of a lane was returned: call ``resume`` after a while to continue the lane."""

    def acknowledged(self, count: int) -> None:
        """``count`` messages are done."""

    def returned(self) -> None:
        """A message was returned for redelivery."""

    def failed(self, error: GantryError) -> None:
        """Something failed that is tried again."""

    def refused(self, error: AccessDenied) -> None:
        """A broker refused the client's credentials: the application must learn of it."""

    def begin_again(self, queue: MessageQueue, offset: int) -> None:
        """The puller of ``queue`` has ended: start another one at ``offset`` when nothing is in work any more."""


class Puller(Generic[R]):
    """Pulls ``queue`` for ``owner`` while :meth:`run` runs."""

    def __init__(
        self,
        cluster: Cluster,
        options: ConsumerOptions[R],
        queue: MessageQueue,
        owner: Owner[R],
        *,
        begin: int | None = None,
        appeared: int | None = None,
        lane: Lane[R] | None = None,
        is_held: Callable[[], bool] | None = None,
        local: LocalOffsets | None = None,
    ) -> None:
        """``begin``: the offset to begin at, whatever the group's is.

        ``appeared`` (ms since 1970): the queue came into the topic's route while the group was already consuming; what
        was stored in it from then on belongs to a group that starts with the last message, too.

        ``lane``: what gives the messages out one after another. ``is_held``: whether the queue's lock is this member's;
        nothing is pulled or committed without it. ``local`` keeps offsets in the broker's place.
        """
        self.queue = queue
        self.dropped: bool = False
        """Whether its messages must not be given out any more."""
        self.lane = lane
        self.replaced: bool = False
        """Whether the offset of the queue is another puller's to commit."""
        self._cluster = cluster
        self._options = options
        self._owner = owner
        self._begin = begin
        self._appeared = appeared
        self._is_held = is_held
        self._local = local
        self._timeout = options.settings.consume_timeout
        self._given: dict[int, tuple[float, R]] = {}
        self._returning: dict[int, anyio.Event] = {}
        """By their offsets, messages that are being sent back; the event is set when that ends."""
        self._is_special = lane is not None or self._timeout is not None
        """Whether an acknowledgment concerns more than the offsets."""
        self._ended = False
        self._progress: Progress | None = None
        self._committed = -1
        """The offset that was sent to the broker last."""
        self._confirmed = -1
        """The offset that the broker took last, by its answer."""
        self._room: anyio.Event | None = None
        """What a pull waits for while the queue is full."""
        self._read_from = MASTER_ID
        self._scope = anyio.CancelScope()
        self._closed = False
        self._end = 0
        self._last = -1
        """The highest offset of a message that came."""
        self._pulled_at = 0
        self._acknowledged_at = 0.0
        self._blocked_by = -1
        self._blocked_since = 0.0
        self._warned_offset = -1

    def statistics(self) -> QueueStatistics:
        """How the queue is doing."""
        progress = self._progress
        if progress is None:
            return QueueStatistics(-1, -1, 0, 0, 0, None, False, 0, 0)
        since = progress.oldest_since()
        committable = progress.committable
        return QueueStatistics(
            position=progress.position, committable=committable, end=max(self._end, progress.position),
            outstanding=progress.outstanding, outstanding_bytes=progress.bytes,
            oldest_age=None if since is None else anyio.current_time() - since,
            stalled=progress.full and self._warned_offset == committable,
            last_pull=self._pulled_at, last_acknowledged=int(self._acknowledged_at * 1000),
        )  # fmt: skip

    @property
    def committable(self) -> int | None:
        """The offset that the group would continue from; None before the first pull."""
        return None if self._progress is None else self._progress.committable

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Pull until :meth:`drop`. Errors are logged and tried again after a second.

        Started when the place to start at is known, or could not be had at the first attempt.
        """
        started = False
        with self._scope:
            while True:
                try:
                    if self._progress is None:
                        self._progress = Progress(await self._start_offset(), self._options.settings.prefetch)
                    elif started:
                        await self._pull(self._progress)
                        queue, group = self.queue, self._options.group
                        self._cluster.rare.over("pull_failed", queue.broker_name, group)
                        self._cluster.rare.over("pull_failed", queue.broker_name, group, queue.topic)
                except GantryError as error:
                    self._log_failure(error)
                    if isinstance(error, AccessDenied):
                        self._owner.refused(error)
                        break
                    if isinstance(error, ConnectError):
                        await self._cluster.routes.renew(self.queue.topic)  # a slave may be there to read from
                    if started:
                        await anyio.sleep(PAUSE_AFTER_ERROR_SECONDS)
                if not started:
                    started = True
                    task_status.started()
        if not started:
            task_status.started()  # dropped before it began, or refused

    def _log_failure(self, error: GantryError) -> None:
        self._owner.failed(error)
        queue, group = self.queue, self._options.group
        refused = (queue.topic,) if isinstance(error, BrokerError) else ()  # a broker that is down concerns all topics
        self._cluster.rare.warning(
            "pull_failed", queue.broker_name, group, *refused,
            topic=queue.topic, queue=queue.queue_id, group=group, reason=str(error),
        )  # fmt: skip

    def stop(self) -> None:
        """The queue is about to go to another member: fetch and give out nothing more; acknowledgments count still."""
        self.dropped = True
        self._scope.cancel()
        if self.lane is not None:
            self.lane.close()

    def drop(self) -> None:
        """The queue is another member's now: stop, and ignore acknowledgments from now on."""
        self.stop()
        self._ended = True
        self._given.clear()

    def replace(self) -> None:
        """As :meth:`drop`, and commit nothing: the queue begins again somewhere else."""
        self.replaced = True
        self.drop()

    def close(self) -> None:
        """The consumer's block has ended: an acknowledgment is an error from now on."""
        self._closed = True
        self._scope.cancel()

    def acknowledge(self, queue_offset: int) -> None:
        """Count a message as done; :class:`ClientClosed` after :meth:`close`."""
        progress = self._progress
        if self._closed or self._ended or self._is_special or progress is None:
            if self._closed:
                raise ClientClosed(
                    f"the consumer of group {self._options.group} is closed: acknowledge inside its block"
                )
            if self.lane is not None and not self.lane.settle(queue_offset):
                return
            if self._ended or progress is None:
                return
            if self._given:
                self._given.pop(queue_offset, None)
        if progress.done(queue_offset):
            self._acknowledged_at = time.time()
            self._owner.acknowledged(1)
            if self._room is not None:
                self._room.set()
                self._room = None

    def acknowledge_pulled(self, records: Sequence[R]) -> None:
        """As :meth:`acknowledge` for each of ``records``, which came with one answer, nothing left out between them."""
        if self._closed or self._given or self.lane is not None or self._ended or self._progress is None:
            for record in records:
                self.acknowledge(record.queue_offset)
        elif count := self._progress.done_until(records[0].queue_offset, records[-1].queue_offset):
            self._acknowledged(count)

    def _acknowledged(self, count: int) -> None:
        self._acknowledged_at = time.time()
        self._owner.acknowledged(count)
        if self._room is not None:
            self._room.set()
            self._room = None

    async def reply(self, record: DeliveredRecord, body: bytes) -> None:
        """Send the reply to the request ``record``; :class:`ClientClosed` after :meth:`close`."""
        if self._closed:
            raise ClientClosed(f"the consumer of group {self._options.group} is closed: reply inside its block")
        await send_reply(self._cluster, record, body)

    async def send_back(self, record: DeliveredRecord, delay_level: int) -> None:
        """Let the broker bring a message again, and count this one as done.

        Without effect on a message that is done, on one that is redelivered with the one before it, on one whose queue
        is another member's, which gets it, and on all of a queue whose end the broker has lost: those that it still has
        are redelivered.
        Raises :class:`BrokerError`, :class:`ConnectError`, :class:`NoRoute`; :class:`ClientClosed` after :meth:`close`.
        """
        if self._closed:
            raise ClientClosed(f"the consumer of group {self._options.group} is closed: call retry() inside its block")
        if self._local is not None:
            queue = self.queue
            self._cluster.rare.warning(
                "broadcast_message_skipped", self._options.group, queue.topic,
                group=self._options.group, topic=queue.topic, queue=queue.queue_id, offset=record.queue_offset,
            )  # fmt: skip
            self.acknowledge(record.queue_offset)
            return
        max_retries = self._options.settings.max_retries
        if self.lane is not None and delay_level >= 0:
            if max_retries is None or record.reconsume_times < max_retries:
                resume = self.lane.put_back(record.queue_offset, self._returning)
                if resume is not None:
                    record.reconsume_times += 1
                    self._owner.suspend(resume)
                return
            delay_level = -1
        # the application and `consume_timeout` may both return a message, and each copy would be redelivered
        while (other := self._returning.get(record.queue_offset)) is not None:
            await other.wait()
        if self.lane is not None and not self.lane.has(record):
            return  # done, or put back with the one before it and redelivered
        if self._ended or self._progress is None or not self._progress.is_outstanding(record.queue_offset):
            if self._ended and self.lane is not None:
                self.lane.settle(record.queue_offset)  # the next puller waits for it
            return
        self._returning[record.queue_offset] = ended = anyio.Event()
        try:
            await self._request_send_back(record, delay_level)
        finally:
            del self._returning[record.queue_offset]
            ended.set()

    async def _request_send_back(self, record: DeliveredRecord, delay_level: int) -> None:
        header = SendBackHeader(
            offset=record.commit_log_offset,
            group=self._options.group,
            delay_level=delay_level,
            origin_msg_id=record.message_id,
            origin_topic=record.topic,
            max_reconsume_times=self._options.settings.max_retries,
        )
        channel = await self._cluster.broker(self._cluster.routes.master(self.queue))
        try:
            await call(channel, Command(RequestCode.CONSUMER_SEND_MSG_BACK, header.to_ext()))
        except BrokerError as error:
            if error.code != ResponseCode.SYSTEM_ERROR or isinstance(error, AccessDenied):
                raise
            # the broker's log may no longer have the message, and then no other attempt would succeed
            await self._send_copy(record, delay_level, channel, error)
        self._owner.returned()
        if not self._closed:
            self.acknowledge(record.queue_offset)

    async def _send_copy(
        self, record: DeliveredRecord, delay_level: int, channel: Channel, reason: BrokerError
    ) -> None:
        group, namespace = self._options.group, self._cluster.namespace
        topic = record.topic if namespace is None else namespace.topic(record.topic)
        outgoing, command = retry_copy(record, topic, group, delay_level, self._options.settings.max_retries)
        outgoing.stored(self.queue, await channel.call(command), channel.address)
        self._cluster.rare.warning(
            "message_copy_sent_back", self.queue.broker_name, group,
            group=group, topic=record.topic, queue=self.queue.queue_id, offset=record.queue_offset, reason=str(reason),
        )  # fmt: skip

    def given_out(self, record: R) -> None:
        """The application has ``record`` now; it counts for :meth:`expired` from here on."""
        if self._timeout is not None and not self._ended:
            self._given[record.queue_offset] = (anyio.current_time(), record)

    def put_back(self, records: Sequence[R]) -> bool:
        """``records`` count as not given out. Returns whether they come again through :attr:`lane`, in order."""
        for record in reversed(records):
            self._given.pop(record.queue_offset, None)
            if self.lane is not None and self.lane.has(record):
                resume = self.lane.put_back(record.queue_offset, self._returning)
                if resume is not None:
                    resume()
        return self.lane is not None

    def expired(self) -> list[R]:
        """The messages that the application has had for ``consume_timeout``, each reported once."""
        if self._timeout is None or not self._given:
            return []
        limit = anyio.current_time() - self._timeout
        late = []
        for at, record in self._given.values():
            if at > limit:
                break
            late.append(record)
        for record in late:
            del self._given[record.queue_offset]
        return late

    def owes_commit(self, *, confirmed: bool) -> bool:
        """Return whether :meth:`commit` has something to say."""
        known = self._confirmed if confirmed else self._committed
        return self._progress is not None and self._progress.committable != known

    async def commit(self, *, confirmed: bool) -> None:
        """Tell the broker how far the group is, if it does not know yet; ``confirmed`` waits for its answer.

        Raises :class:`BrokerError` when the broker refuses (:class:`AccessDenied` by its access control),
        :class:`ConnectError`, :class:`NoRoute`.
        """
        progress = self._progress
        if progress is None or not self.owes_commit(confirmed=confirmed):
            return
        if self._is_held is not None and not self._is_held():
            return  # another member may be further by now
        offset = progress.committable
        if self._local is not None:
            if not self.replaced:
                self._local.set(self.queue, offset)
                self._committed = self._confirmed = offset
            return
        header = UpdateConsumerOffsetHeader(
            consumer_group=self._options.group,
            topic=self.queue.topic,
            queue_id=self.queue.queue_id,
            commit_offset=offset,
        )
        channel = await self._cluster.broker(self._cluster.routes.reader(self.queue))
        if self.replaced:
            return
        command = Command(RequestCode.UPDATE_CONSUMER_OFFSET, header.to_ext())
        if confirmed:
            await call(channel, command)
            self._confirmed = offset
        else:
            await channel.send_oneway(command)
        self._committed = offset

    async def _start_offset(self) -> int:
        admin = Admin(self._cluster)
        if self._begin is not None:
            await self._fix_start(admin, self._begin)
            return self._begin
        if self._local is None:
            stored = await admin.consumer_offset(self._options.group, self.queue)
        else:
            stored = self._local.get(self.queue)
        if stored is not None:
            return stored
        if self._options.start == "first":
            return await self._first_offset(admin)
        if self._options.start != "last":
            offset = await admin.search_offset(self.queue, self._options.start_timestamp())
        elif self._appeared is not None:
            offset = await admin.search_offset(self.queue, self._appeared)
        else:
            offset = await admin.max_offset(self.queue)
        await self._fix_start(admin, offset)
        return offset

    async def _first_offset(self, admin: Admin) -> int:
        try:
            return await admin.min_offset(self.queue)
        except AuthenticationFailed:
            raise
        except AccessDenied:
            # 5.3 brokers have a permission for this question that consuming does not need; they correct the 0
            return 0

    async def _fix_start(self, admin: Admin, offset: int) -> None:
        # the next owner of the queue must not skip what comes until the first regular commit
        if self._local is not None:
            self._local.set(self.queue, offset)
            self._committed = self._confirmed = offset
            return
        try:
            await admin.set_consumer_offset(self._options.group, self.queue, offset)
        except (BrokerError, NoRoute) as error:
            log.warning("commit_failed", topic=self.queue.topic, queue=self.queue.queue_id, reason=str(error))
        else:
            self._committed = self._confirmed = offset

    async def _pull(self, progress: Progress) -> None:
        while progress.full:
            self._room = anyio.Event()
            try:
                await self._wait_for_room(progress, self._room)
            finally:
                self._room = None
        if self._is_held is not None and not self._is_held():
            await anyio.sleep(PAUSE_AFTER_ERROR_SECONDS)
            return
        address, is_master = self._address()
        is_master = is_master and self._local is None
        commit, settings = progress.committable, self._options.settings
        header = PullMessageHeader(
            consumer_group=self._options.group,
            topic=self.queue.topic,
            queue_id=self.queue.queue_id,
            queue_offset=progress.position,
            max_msg_nums=settings.pull_batch
            if settings.prefetch is None
            else min(settings.pull_batch, settings.prefetch),
            sys_flag=MAY_SUSPEND | (_COMMITS_OFFSET if is_master and commit > 0 else 0),
            commit_offset=commit,
            suspend_timeout_millis=SUSPEND_MILLISECONDS,
            sub_version=self._options.subscription.sub_version,
            expression_type=self._options.subscription.expression_type,
            gantrymq_max_bytes=PULL_BATCH_BYTES,
        )
        channel = await self._cluster.broker(address)
        asked_at = anyio.current_time()
        answer = await channel.call(Command(RequestCode.PULL_MESSAGE, header.to_ext()), PULL_TIMEOUT_SECONDS)
        self._pulled_at = int(time.time() * 1000)
        await self._take_response(progress, answer, address)
        if progress.position == header.queue_offset:
            # a broker that holds no pulls, or repeats itself, must not be asked in a busy loop
            await anyio.sleep_until(asked_at + IDLE_INTERVAL_SECONDS)

    async def _wait_for_room(self, progress: Progress, room: anyio.Event) -> None:
        now = anyio.current_time()
        oldest = progress.committable
        if oldest != self._blocked_by:
            self._blocked_by, self._blocked_since = oldest, now
        if self._warned_offset == oldest:
            await room.wait()
            return
        with anyio.move_on_after(self._blocked_since + STALL_SECONDS - now):
            await room.wait()
            return
        self._warned_offset = oldest
        since = progress.oldest_since()
        log.warning(
            "consumer_stalled", topic=self.queue.topic, queue=self.queue.queue_id, broker=self.queue.broker_name,
            group=self._options.group, offset=oldest, age_s=0 if since is None else round(now - since),
            outstanding=progress.outstanding,
        )  # fmt: skip

    async def _take_response(self, progress: Progress, answer: Command, address: str) -> None:
        if answer.code not in PULL_CODES:
            sql = self._options.subscription.expression_type == SQL92
            if answer.code in _UNKNOWN_TO_BROKER or (sql and answer.code in _FILTER_UNKNOWN_TO_BROKER):
                # the broker has restarted, or has not seen this subscription yet
                await self._cluster.repeat_heartbeat()
            raise broker_error(answer, address)
        with reading(address):
            header = read_header(PullMessageResponse, answer.ext)
            records: list[R] = []
            if answer.code == ResponseCode.SUCCESS:
                records = decode_intact(answer.body, self._options.make, self.queue, self)
        self._end = header.max_offset
        self._read_from = header.suggest_which_broker_id
        moved_back = header.next_begin_offset < progress.position
        if answer.code == ResponseCode.PULL_OFFSET_MOVED or moved_back:
            self._correct_offset(progress, header, address)
            return
        progress.position = header.next_begin_offset
        if self._cluster.namespace is not None:
            self._cluster.namespace.restore_consumed(records)
        wanted = self._options.subscription.tags_set
        taken = [record for record in records if record.tags in wanted] if wanted else records
        if not taken:
            return
        if is_retry_topic(self.queue.topic):
            for record in taken:
                if is_retry_topic(record.topic) and (origin := record.properties.get(RETRY_TOPIC)):
                    record.retry_topic, record.topic = record.topic, origin
        first = taken[0].queue_offset
        self._last = last = taken[-1].queue_offset
        dense = last - first + 1 == len(taken)
        offsets = range(first, last + 1) if dense else [record.queue_offset for record in taken]
        progress.pulled(offsets, stored_sizes(taken), anyio.current_time())
        if self.lane is None:
            self._owner.take(taken)
        else:
            self._owner.fetched(len(taken))
            self.lane.add(taken)

    def _correct_offset(self, progress: Progress, header: PullMessageResponse, address: str) -> None:
        """Go on where the broker says the queue is."""
        offset, oldest = header.next_begin_offset, progress.committable
        log.warning(
            "queue_offset_corrected", topic=self.queue.topic, queue=self.queue.queue_id, broker=address,
            wanted=progress.position, now=offset, first=header.min_offset, end=header.max_offset,
        )  # fmt: skip
        if self._last < offset <= progress.position:
            progress.position = offset  # the broker still has all messages that came, and they count as before
            return
        has_lost_end = self._last >= offset
        if has_lost_end:
            offset = min(offset, oldest)  # what the broker still has, and was not acknowledged, comes again
        progress.reset(offset)
        self._given.clear()
        if has_lost_end:
            # The next messages of the queue get the offsets of old ones, which may still be settled. Until another
            # puller takes over, this one commits where that one begins, whatever is acknowledged.
            self._ended = True
            self._scope.cancel()
            self._owner.begin_again(self.queue, offset)

    def _address(self) -> tuple[str, bool]:
        data = self._cluster.routes.broker(self.queue.broker_name)
        if data is None or not data.broker_addrs:
            raise NoRoute(f"broker {self.queue.broker_name} is not known to the nameservers any more")
        broker_id = self._read_from if self._read_from in data.broker_addrs else min(data.broker_addrs)
        return data.broker_addrs[broker_id], broker_id == MASTER_ID


_FILTER_UNKNOWN_TO_BROKER: Final = frozenset({ResponseCode.FILTER_DATA_NOT_EXIST, ResponseCode.FILTER_DATA_NOT_LATEST})
_UNKNOWN_TO_BROKER: Final = frozenset({ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST})

"""The one object that a client's parts share: connections, routes, members and their heartbeats.

Source of the intervals: RocketMQ 4.9.7 ``MQClientInstance``, ``ClientConfig``.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, Protocol
from weakref import WeakSet

import anyio
from anyio.abc import TaskGroup

from gantrymq.client.addresses import parse_nameservers
from gantrymq.client.connect_options import ConnectOptions
from gantrymq.client.connections import Connections, call
from gantrymq.client.discovery import INTERVAL_SECONDS as DISCOVERY_INTERVAL_SECONDS
from gantrymq.client.discovery import Discovery
from gantrymq.client.errors import AccessDenied, ClientClosed, ConnectError, ConnectFailed, GantryError
from gantrymq.client.ids import UniqueKeys, make_client_id
from gantrymq.client.nameservers import Nameservers
from gantrymq.client.namespace import Namespace
from gantrymq.client.replies import Replies
from gantrymq.client.routes import MASTER_ID, Routes
from gantrymq.client.silent_masters import SilentMasters
from gantrymq.message import DeliveredRecord
from gantrymq.remoting.bodies.clients import ConsumerData, HeartbeatData, ProducerData
from gantrymq.remoting.bodies.offsets import ClientOffsets, OrderedOffsets
from gantrymq.remoting.bodies.queues import MessageQueue
from gantrymq.remoting.bodies.running import ConsumerRunningInfo, DirectlyConsumed
from gantrymq.remoting.channel import Channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import FatalRemoteFault, RemoteFault
from gantrymq.remoting.headers.groups import (
    ConsumeDirectlyHeader,
    ConsumerGroupHeader,
    ConsumerStatusHeader,
    RunningInfoHeader,
    UnregisterClientHeader,
)
from gantrymq.remoting.headers.header import read_header
from gantrymq.remoting.headers.offsets import ResetOffsetHeader
from gantrymq.remoting.headers.transactions import CheckTransactionHeader
from gantrymq.remoting.logs import LibraryLog
from gantrymq.remoting.outages import Outages
from gantrymq.remoting.properties import PGROUP
from gantrymq.remoting.records import decode_records

ROUTE_INTERVAL_SECONDS: Final = 30.0
HEARTBEAT_INTERVAL_SECONDS: Final = 30.0
REPEATED_HEARTBEAT_SECONDS: Final = 0.5
"""How often at most a heartbeat is sent because a broker does not know a subscription; less than pulls pause then."""
STACKS_MAX_CHARACTERS: Final = 1_000_000
"""The longest text of a client's thread stacks in an answer to an administrator."""
LEAVE_SECONDS: Final = 3.0
"""How long a closing producer or consumer waits for brokers to take its departure, and a consumer its last commits."""

log: LibraryLog = LibraryLog()

_clusters: WeakSet[Cluster] = WeakSet()


def _mark_forked() -> None:
    for cluster in _clusters:
        cluster.is_forked, cluster.usable = True, False


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_mark_forked)


class Member(Protocol):
    """A consumer, as the cluster sees it."""

    def describe(self) -> ConsumerData:
        """Its part of the heartbeat."""

    def rebalance_soon(self) -> None:
        """Share the queues anew soon, because the group or the routes changed."""

    def wake(self) -> None:
        """Wake tasks that wait for messages, so that they notice that the client has failed."""

    def refused(self, error: AccessDenied) -> None:
        """Report to the application that a broker refused this member."""

    def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue at these offsets, as an administrator requested for the group."""

    def offsets(self, topic: str) -> dict[MessageQueue, int]:
        """Return the offsets of its queues of ``topic``."""

    def running_info(self) -> ConsumerRunningInfo:
        """Its state, for an administrator."""

    async def consume_directly(self, body: bytes, broker: str) -> DirectlyConsumed:
        """Consume the stored message ``body`` of ``broker`` now."""


class Transactional(Protocol):
    """A transactional producer, as the cluster sees it."""

    def take_check(self, address: str, header: CheckTransactionHeader, record: DeliveredRecord) -> None:
        """A broker asks what became of a half message. Returns at once."""


class Cluster:
    """Shared state of one client. :meth:`start` connects; producers and consumers join and leave."""

    def __init__(self, tasks: TaskGroup, options: ConnectOptions) -> None:
        self.rare: Outages = Outages(log)
        self._tasks = tasks
        self.connections: Connections = Connections(tasks, self._take_request, options)
        self._options = options
        self.namespace: Namespace | None = options.namespace
        """What topics and groups are prefixed with; None for most clients."""
        self.nameservers: Nameservers = Nameservers(options.nameservers, self.connections)
        self.routes: Routes = Routes(self.nameservers, self._route_changed, self.rare)
        self.silent_masters: SilentMasters = SilentMasters(self.routes, self.connections)
        self.unit_name: str | None = options.unit_name
        self.client_id: str = ""
        self.unique_keys: UniqueKeys = UniqueKeys("127.0.0.1")
        self.closed: bool = False
        self._failure: Exception | None = None
        self.is_forked: bool = False
        """Whether this is the copy of a client in a process that was forked off."""
        self.usable: bool = True
        """Whether :meth:`ensure_open` raises nothing, which is asked for with each message."""
        _clusters.add(self)
        self._producers: dict[str, int] = {}
        self._consumers: dict[str, Member] = {}
        self._transactional: dict[str, Transactional] = {}
        self._repeated_at = -REPEATED_HEARTBEAT_SECONDS
        self.replies: Replies = Replies()
        """Replies to the client's requests, pushed by brokers."""

    async def start(self) -> None:
        """Reach a nameserver and begin the timed work. Raises :class:`ConnectFailed`."""
        discovery = self._options.discovery
        if discovery is not None:
            await self._discover(discovery)
        channel = await self.nameservers.connect()
        self.client_id = make_client_id(channel.local_host, self.unit_name)
        self.unique_keys = UniqueKeys(channel.local_host)
        self._tasks.start_soon(self._refresh_routes)
        self._tasks.start_soon(self._beat)
        self._tasks.start_soon(self.silent_masters.run)
        if discovery is not None:
            self._tasks.start_soon(self._keep_discovering, discovery)

    async def aclose(self) -> None:
        """Close the connections; what is used from now on raises :class:`ClientClosed`."""
        self.closed, self.usable = True, False
        await self.connections.aclose()

    def fail(self, error: Exception) -> None:
        """Work in the background ended with an error, which is a bug: nothing works any more."""
        log.error("client_failed", client=self.client_id, exc_info=error)
        self._failure, self.usable = error, False
        for member in self._consumers.values():
            member.wake()

    def ensure_open(self) -> None:
        """Raise :class:`ClientClosed` after the client's block has ended, and in another event loop."""
        if self.is_forked:
            raise ClientClosed("the client belongs to the process that forked this one: connect again after the fork")
        self.connections.loop.ensure()
        if self._failure is not None:
            raise ClientClosed(f"the client has ended after an error of its own: {self._failure!r}") from self._failure
        if self.closed:
            raise ClientClosed("the client is closed: its `async with` block has ended")

    def start_soon(self, work: Callable[..., Coroutine[Any, Any, None]], *arguments: object) -> None:
        """Run ``work`` until the client ends; an error of it is a bug, see :meth:`fail`."""
        self.connections.loop.ensure()
        self._tasks.start_soon(work, *arguments)

    async def broker(self, address: str) -> Channel:
        """The connection to a broker; a new one sends a heartbeat at once."""
        return self.connections.open_one(address) or await self.connections.get(address, self._greet)

    def join_as_producer(self, group: str) -> None:
        """Name ``group`` in the heartbeats from now on."""
        self._producers[group] = self._producers.get(group, 0) + 1

    async def leave_as_producer(self, group: str) -> None:
        """The opposite; with the group's last producer the brokers are notified."""
        self._producers[group] -= 1
        if not self._producers[group]:
            del self._producers[group]
            await self._unregister(UnregisterClientHeader(client_id=self.client_id, producer_group=group))

    def join_as_transactional(self, group: str, producer: Transactional) -> None:
        """As :meth:`join_as_producer`, and what brokers ask the group goes to ``producer``.

        Raises :class:`GantryError` when ``group`` has one here.
        """
        if group in self._transactional:
            raise GantryError(f"this client already has a transactional producer of group {group}: share it")
        self._transactional[group] = producer
        self.join_as_producer(group)

    async def leave_as_transactional(self, group: str) -> None:
        """The opposite."""
        del self._transactional[group]
        await self.leave_as_producer(group)

    def join_as_consumer(self, group: str, member: Member) -> None:
        """Name ``member`` in the heartbeats from now on. Raises :class:`GantryError` when ``group`` has one here."""
        if group in self._consumers:
            raise GantryError(f"this client already consumes as group {group}: open another client for another member")
        self._consumers[group] = member

    def forget_consumer(self, group: str) -> None:
        """Name ``group`` in no heartbeat from now on; :meth:`join_as_consumer` takes another member."""
        del self._consumers[group]

    async def unregister_consumer(self, group: str) -> None:
        """Tell the brokers that this client has left ``group``, which then rebalances."""
        await self._unregister(UnregisterClientHeader(client_id=self.client_id, consumer_group=group))

    async def heartbeat(self) -> None:
        """Send a heartbeat to every broker in the routes; one that does not answer is logged and skipped."""
        addresses = {
            address
            for data in self.routes.brokers().values()
            for broker_id, address in data.broker_addrs.items()
            if broker_id == MASTER_ID or self._consumers
        }
        async with anyio.create_task_group() as beats:
            for address in addresses:
                beats.start_soon(self._beat_at, address)

    async def repeat_heartbeat(self) -> None:
        """Send a heartbeat because a broker does not know a subscription: one for all queues that notice it."""
        now = anyio.current_time()
        if now - self._repeated_at >= REPEATED_HEARTBEAT_SECONDS:
            self._repeated_at = now
            await self.heartbeat()

    async def _beat_at(self, address: str) -> None:
        try:
            channel = self.connections.open_one(address)
            if channel is None:
                await self.connections.get(address, self._greet)
            else:
                await self._greet(channel)
            self.rare.over("broker_unreachable", address)
        except ConnectError as error:
            self.rare.warning("broker_unreachable", address, broker=address, reason=error.reason)

    async def _greet(self, channel: Channel) -> None:
        if not self._producers and not self._consumers:
            return
        members = list(self._consumers.values())
        try:
            await self._beat_once(channel, list(self._producers), members)
            self.rare.over("heartbeat_failed", channel.address)
        except GantryError as error:
            self.rare.warning("heartbeat_failed", channel.address, broker=channel.address, reason=str(error))
            if isinstance(error, AccessDenied):
                await self._beat_one_by_one(channel, members)

    async def _beat_once(self, channel: Channel, producers: Sequence[str], members: Sequence[Member]) -> None:
        body = HeartbeatData(
            client_id=self.client_id,
            producer_data_set=[ProducerData(group_name=group) for group in producers],
            consumer_data_set=[member.describe() for member in members],
        )
        answer = await call(channel, Command(RequestCode.HEART_BEAT, body=body.to_bytes()))
        channel.peer = (answer.language, answer.version)

    async def _beat_one_by_one(self, channel: Channel, members: Sequence[Member]) -> None:
        """A broker refuses a heartbeat whole where one of the groups or topics is not allowed: only that one fails."""
        for member in members:
            try:
                await self._beat_once(channel, (), (member,))
            except AccessDenied as error:
                member.refused(error)
            except GantryError as error:
                self.rare.warning("heartbeat_failed", channel.address, broker=channel.address, reason=str(error))

    async def peer(self, channel: Channel) -> tuple[str, int]:
        """The language and version of the broker at the other end; empty and 0 when it does not say."""
        if channel.peer is None:
            await self._greet(channel)
        return channel.peer or ("", 0)

    async def _unregister(self, header: UnregisterClientHeader) -> None:
        async def tell(channel: Channel) -> None:
            try:
                await call(channel, Command(RequestCode.UNREGISTER_CLIENT, header.to_ext()))
            except GantryError as error:
                log.warning("unregister_failed", broker=channel.address, reason=str(error))

        addresses = {address for data in self.routes.brokers().values() for address in data.broker_addrs.values()}
        channels = [channel for address in addresses if (channel := self.connections.open_one(address)) is not None]
        async with anyio.create_task_group() as telling:
            for channel in channels:
                telling.start_soon(tell, channel)

    async def _discover(self, discovery: Discovery) -> None:
        text = await discovery.fetch()
        try:
            addresses = parse_nameservers(text)
        except ValueError as error:
            raise ConnectFailed(discovery.url, f"its response names no nameservers: {error}") from None
        if set(addresses) != set(self.nameservers.addresses):
            if self.nameservers.addresses:
                log.info("nameservers_changed", nameservers=addresses)
            self.nameservers.update(addresses)

    async def _keep_discovering(self, discovery: Discovery) -> None:
        while True:
            await anyio.sleep(DISCOVERY_INTERVAL_SECONDS)
            try:
                await self._discover(discovery)
            except ConnectFailed as error:
                self.rare.warning("nameserver_discovery_failed", discovery.url, url=discovery.url, reason=error.reason)

    async def _refresh_routes(self) -> None:
        while True:
            await anyio.sleep(ROUTE_INTERVAL_SECONDS)
            await self.routes.refresh()

    async def _beat(self) -> None:
        while True:
            await anyio.sleep(HEARTBEAT_INTERVAL_SECONDS)
            await self.heartbeat()

    def _route_changed(self, topic: str) -> None:
        for member in self._consumers.values():
            member.rebalance_soon()

    def _take_request(self, address: str, request: Command) -> Command | Awaitable[Command | None] | None:
        match request.code:
            case RequestCode.CHECK_TRANSACTION_STATE:
                self._take_check(address, request)
                return None
            case RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT:
                return self.replies.take(request)
            case RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
                member = self._consumers.get(read_header(ConsumerGroupHeader, request.ext).consumer_group)
                if member is not None:
                    member.rebalance_soon()
                return request.answer(ResponseCode.SUCCESS)
            case RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
                reset = read_header(ResetOffsetHeader, request.ext)
                member = self._consumers.get(reset.group)
                if member is not None:
                    offsets = OrderedOffsets.from_bytes(request.body).offsets if request.body else {}
                    log.info("offset_reset_ordered", group=reset.group, topic=reset.topic, queues=len(offsets))
                    if self.namespace is not None:
                        # consumers name their retry topics as brokers do; what is not theirs they skip
                        offsets = {**offsets, **self.namespace.queues_without(offsets)}
                    member.reset_offsets(offsets)
                return request.answer(ResponseCode.SUCCESS)
            case RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
                status = read_header(ConsumerStatusHeader, request.ext)
                member = self._member(status.group)
                table = member.offsets(status.topic)
                if self.namespace is not None:
                    table = self.namespace.queues(table or member.offsets(self.namespace.without(status.topic)))
                return request.answer(ResponseCode.SUCCESS, body=ClientOffsets(table).to_bytes())
            case RequestCode.GET_CONSUMER_RUNNING_INFO:
                asked = read_header(RunningInfoHeader, request.ext)
                info = self._member(asked.consumer_group).running_info()
                if asked.jstack_enable:
                    info.jstack = _stacks()
                if self.namespace is not None:
                    info = self.namespace.running_info(info)
                return request.answer(ResponseCode.SUCCESS, body=info.to_bytes())
            case RequestCode.CONSUME_MESSAGE_DIRECTLY:
                directly = read_header(ConsumeDirectlyHeader, request.ext)
                return self._consume_directly(request, self._member(directly.consumer_group), directly.broker_name)
        return request.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {request.code} not supported")

    def _member(self, group: str) -> Member:
        member = self._consumers.get(group)
        if member is None:
            raise RemoteFault(ResponseCode.SYSTEM_ERROR, f"client {self.client_id} does not consume as group {group}")
        return member

    async def _consume_directly(self, request: Command, member: Member, broker: str | None) -> Command:
        result = await member.consume_directly(request.body, broker or "")
        return request.answer(ResponseCode.SUCCESS, body=result.to_bytes())

    def _take_check(self, address: str, request: Command) -> None:
        try:
            header = read_header(CheckTransactionHeader, request.ext)
            # the outcome depends on the id, not on the body, whose CRC a broker need not set when it asks
            records = decode_records(request.body, DeliveredRecord, check_crc=False)
        except (RemoteFault, FatalRemoteFault) as error:
            log.warning("transaction_check_unreadable", broker=address, reason=str(error))
            return
        if self.namespace is not None:
            self.namespace.restore(records)
        for record in records:
            group = record.properties.get(PGROUP, "")
            producer = self._transactional.get(group)
            if producer is None:
                log.warning("transaction_check_unknown_group", broker=address, group=group)
            else:
                producer.take_check(address, header, record)


def _stacks() -> str:
    """Where each thread is, as text."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for number, frame in sys._current_frames().items():
        parts.append(f"{names.get(number, number)}\n{''.join(traceback.format_stack(frame))}")
    return "\n".join(parts)[:STACKS_MAX_CHARACTERS]

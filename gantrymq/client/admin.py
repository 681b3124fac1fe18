"""What a client can ask and order besides sending and receiving: topics, routes, groups, offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import anyio
import attrs

from gantrymq.client.checks import check_group, check_topic
from gantrymq.client.cluster import Cluster
from gantrymq.client.connections import call
from gantrymq.client.errors import AccessDenied, BadResponse, BrokerError, NoRoute
from gantrymq.client.groups import GroupLag, OffsetReset, group_lags, group_names, plan_reset, reset_offsets
from gantrymq.client.lookup import FOREVER, find_by_id, find_by_key, first_stored_since, message_at
from gantrymq.client.namespace import plain_topics
from gantrymq.client.options import Start, as_timestamp, check_start
from gantrymq.client.requests import (
    commit_request,
    max_offset_request,
    min_offset_request,
    read_offset,
    reading,
    search_offset_request,
)
from gantrymq.client.routes import DEFAULT_TOPIC, MASTER_ID, queues_to_subscribe
from gantrymq.client.topics import delete_topic
from gantrymq.message import DeliveredRecord
from gantrymq.remoting.bodies.offsets import ConsumerOffsetSerializeWrapper
from gantrymq.remoting.bodies.queues import MessageQueue
from gantrymq.remoting.bodies.routes import ClusterInfo, TopicRouteData
from gantrymq.remoting.bodies.topics import TopicConfig, TopicConfigSerializeWrapper
from gantrymq.remoting.channel import Channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.header import read_header
from gantrymq.remoting.headers.offsets import (
    OffsetResponse,
    QueryConsumerOffsetHeader,
)
from gantrymq.remoting.headers.topics import CreateTopicHeader, TopicHeader
from gantrymq.remoting.logs import LibraryLog
from gantrymq.remoting.names import is_retry_topic

TOPIC_QUEUES: Final = 8
"""Queues of a topic that is created without a number, as ``mqadmin updateTopic`` does."""

ROUTE_WAIT_SECONDS: Final = 3.0
_ROUTE_POLL_SECONDS: Final = 0.02
_ASK_FOR_ALL: Final = frozenset({ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.NO_PERMISSION})
"""Codes after which a broker may still list all topics: one of 4.x does not know the request for one topic, and another
permission is needed for all."""
KNOWS_MISSING_OFFSETS: Final = 412
"""5.0.0: the first version whose brokers, when asked to, do not answer 0 for a group without an offset."""

log: LibraryLog = LibraryLog()


class Admin:
    """Administrative requests about topics, groups, offsets and single messages: ``client.admin``.

    All raise :class:`ConnectError`, :class:`BrokerError` and :class:`NoRoute`, and :class:`InvalidName` for a ``topic``
    that brokers would refuse. Offsets are queue offsets.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def topics(self) -> list[str]:
        """Return the names of all topics, sorted; the brokers' own are among them."""
        self._cluster.ensure_open()
        return await self._cluster.nameservers.topics()

    async def cluster(self) -> ClusterInfo:
        """Return all clusters and brokers with their addresses."""
        self._cluster.ensure_open()
        return await self._cluster.nameservers.cluster()

    @property
    def nameservers(self) -> tuple[str, ...]:
        """The addresses of the nameservers, ``host:port``."""
        return self._cluster.nameservers.addresses

    async def request(self, address: str, command: Command) -> Command:
        """Return the response of the broker or nameserver at ``address`` (``host:port``) to a request.

        ``command`` is a request of RocketMQ's protocol, a ``gantrymq.remoting.command.Command``. It is signed and sent
        by TLS as the client's own. :class:`BrokerError` for a response code other than SUCCESS.
        """
        self._cluster.ensure_open()
        return await call(await self._cluster.broker(address), command)

    async def route(self, topic: str) -> TopicRouteData:
        """Return the brokers and queues of ``topic``, as a nameserver knows them now."""
        self._cluster.ensure_open()
        check_topic(topic)
        route = await self._cluster.nameservers.route(topic)
        if route is None:
            raise NoRoute(f"topic {topic} does not exist: no broker has it")
        return route

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of ``topic`` that can be read, in order of broker and id."""
        self._cluster.ensure_open()
        check_topic(topic)
        return queues_to_subscribe(topic, await self._cluster.routes.get(topic))

    async def create_topic(
        self,
        topic: str,
        queues: int = TOPIC_QUEUES,
        *,
        cluster: str | None = None,
        perm: int | None = None,
    ) -> list[str]:
        """Create ``topic`` with ``queues`` queues on every master (of one ``cluster``, if it is given), or change it.

        ``perm``: the permissions of the topic (``PERM_READ | PERM_WRITE`` of ``gantrymq.remoting.codes``); None leaves
        those of an existing topic as they are, and a new one can be read and written. An existing topic also keeps its
        filter type, its flags and its order; a broker that lacks it gets these settings, and its attributes, from
        another one. No broker changes it if one of them refuses to report its settings.

        Returns the addresses of the brokers, when a nameserver knows that they have the topic (or three seconds have
        passed). ValueError for less than one queue.
        """
        check_topic(topic)
        if queues < 1:
            raise ValueError(f"a topic needs at least one queue, not {queues}")
        masters = await self._masters(cluster, topic)
        exists = await self._cluster.nameservers.route(topic) is not None
        found = {address: await self._topic_config(address, topic) if exists else None for address in masters.values()}
        model = next((config for config in found.values() if config is not None), TopicConfig())
        for address, present in found.items():
            config = present or model
            header = CreateTopicHeader(
                topic=topic,
                default_topic=DEFAULT_TOPIC,
                read_queue_nums=queues,
                write_queue_nums=queues,
                perm=config.perm if perm is None else perm,
                topic_filter_type=config.topic_filter_type,
                topic_sys_flag=config.topic_sys_flag,
                order=config.order,
                attributes=None if present else _as_additions(config.attributes),
            )
            await self.request(address, Command(RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext()))
        await self._wait_for_route(topic, {(name, queues) for name in masters})
        self._cluster.routes.forget(plain_topics(self._cluster.namespace, topic))
        return list(found)

    async def _masters(self, cluster: str | None, topic: str) -> dict[str, str]:
        """Broker name to the address of its master, of one cluster or of all; NoRoute without any."""
        info = await self.cluster()
        names = {
            name
            for cluster_name, members in info.cluster_addr_table.items()
            if cluster is None or cluster_name == cluster
            for name in members
        }
        brokers = [info.broker_addr_table[name] for name in sorted(names) if name in info.broker_addr_table]
        masters = {data.broker_name: data.broker_addrs[MASTER_ID] for data in brokers if MASTER_ID in data.broker_addrs}
        if not masters:
            where = f"cluster {cluster}" if cluster else "any cluster"
            known = ", ".join(sorted(info.cluster_addr_table)) or "none"
            raise NoRoute(f"there is no master broker in {where} to create {topic} on (clusters: {known})")
        return masters

    async def _topic_config(self, address: str, topic: str) -> TopicConfig | None:
        """The settings of ``topic`` on the broker at ``address``; None if it does not have the topic."""
        header = TopicHeader(topic=topic)
        try:
            answer = await self.request(address, Command(RequestCode.GET_TOPIC_CONFIG, header.to_ext()))
        except BrokerError as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                return None
            if error.code not in _ASK_FOR_ALL and not isinstance(error, AccessDenied):
                raise
        else:
            with reading(address):
                return TopicConfig.from_bytes(answer.body)
        answer = await self.request(address, Command(RequestCode.GET_ALL_TOPIC_CONFIG))
        with reading(address):
            table = TopicConfigSerializeWrapper.from_bytes(answer.body).topic_config_table
        namespace = self._cluster.namespace
        return table.get(topic if namespace is None else namespace.topic(topic))

    async def _wait_for_route(self, topic: str, wanted: set[tuple[str, int]]) -> None:
        # Brokers register a topic before they answer, but do not wait for a slow nameserver.
        with anyio.move_on_after(ROUTE_WAIT_SECONDS):
            while True:
                route = await self._cluster.nameservers.route(topic)
                datas = [] if route is None else route.queue_datas
                if wanted <= {(data.broker_name, data.read_queue_nums) for data in datas}:
                    return
                await anyio.sleep(_ROUTE_POLL_SECONDS)

    async def delete_topic(self, topic: str) -> None:
        """Delete ``topic`` with its messages on every master, then in every nameserver; no error if it does not exist.

        Raises :class:`NoRoute` before any change if a broker that has the topic has no master. Producers may create the
        topic again, where brokers create topics on the first send.
        """
        self._cluster.ensure_open()
        check_topic(topic)
        topic = plain_topics(self._cluster.namespace, topic)
        try:
            await delete_topic(self, topic)
        finally:
            self._cluster.routes.forget(topic)

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message that ``queue`` still has; 0 for one that never had any."""
        offset = await self._ask(queue, min_offset_request(queue.topic, queue.queue_id))
        return max(0, offset)  # brokers say -1 for no queue yet

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message of ``queue`` will get."""
        return await self._ask(queue, max_offset_request(queue.topic, queue.queue_id))

    async def search_offset(self, queue: MessageQueue, timestamp: int) -> int:
        """Return the offset of the first message of ``queue`` stored at or after ``timestamp`` (ms since 1970).

        If there is none, the offset behind the last message.
        """
        nearest = await self._ask(queue, search_offset_request(queue.topic, queue.queue_id, timestamp))
        return await first_stored_since(self._cluster, queue, timestamp, nearest, await self._reader(queue))

    async def consumer_offset(self, group: str, queue: MessageQueue) -> int | None:
        """Return the committed offset of ``group`` in ``queue``; None when the broker has none."""
        self._cluster.ensure_open()
        group = self._real_group(group)
        header = QueryConsumerOffsetHeader(
            consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, set_zero_if_not_found=False
        )
        channel = await self._cluster.broker(await self._reader(queue))
        try:
            answer = await call(channel, Command(RequestCode.QUERY_CONSUMER_OFFSET, header.to_ext()))
        except BrokerError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise
        with reading(channel.address):
            offset = read_header(OffsetResponse, answer.ext).offset
        if offset == 0 and answer.version < KNOWS_MISSING_OFFSETS:
            return await self._listed_offset(channel, group, queue)
        return offset

    async def _listed_offset(self, channel: Channel, group: str, queue: MessageQueue) -> int | None:
        """The offset as the broker's table has it: 4.x brokers answer 0 also for a group without one."""
        try:
            answer = await call(channel, Command(RequestCode.GET_ALL_CONSUMER_OFFSET))
            with reading(channel.address):
                table = ConsumerOffsetSerializeWrapper.from_bytes(answer.body).offset_table
        except (BrokerError, BadResponse) as error:
            log.warning("offset_table_unreadable", broker=channel.address, group=group, reason=str(error))
            return 0
        namespace = self._cluster.namespace
        topic = queue.topic if namespace is None else namespace.topic(queue.topic)
        return table.get(f"{topic}@{group}", {}).get(queue.queue_id)

    async def set_consumer_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Commit ``offset`` as the offset of ``group`` in ``queue``; its running members may overwrite that."""
        self._cluster.ensure_open()
        group = self._real_group(group)
        channel = await self._cluster.broker(await self._master(queue))
        await call(channel, commit_request(group, queue.topic, queue.queue_id, offset))

    async def groups(self, *, system: bool = False) -> list[str]:
        """Return the names of the consumer groups that the masters know, sorted; with ``system`` also RocketMQ's and
        GantryMQ's own."""
        self._cluster.ensure_open()
        return await group_names(self, system=system)

    async def lag(self, group: str, *, times: bool = False) -> GroupLag:
        """Return how many messages wait for ``group``, in each queue and in total, as the masters know it.

        ``times`` also asks how long the next message of each queue has waited. A broker without a master is left out. A
        group that has committed no offset, such as one that never ran, has no queues. :class:`InvalidName` for an
        invalid ``group``.
        """
        self._cluster.ensure_open()
        check_group(group)
        lags = await group_lags(self, self._real_group(group), times=times)
        return GroupLag([attrs.evolve(lag, queue=self._plain(lag.queue)) for lag in lags])

    async def reset_offsets(
        self, group: str, to: Start, *, topics: str | Iterable[str] | None = None, dry_run: bool = False
    ) -> list[OffsetReset]:
        """Let ``group`` continue at the first message, at the last (the next one to come), or at the first one stored
        at or after a time (a datetime, or ms since 1970), as ``gantrymq group reset-offsets`` does.

        ``topics``: one topic or several, without it all in which the group has committed offsets; while it has members,
        those of them that they subscribe to. With ``dry_run`` nothing changes. Returns the queues whose offsets were
        set, or would be. Running members continue there at once; their broker computes the offsets itself, and
        RocketMQ's brokers leave out queues that can only be read. Offsets of a broker without a master that is in
        another cluster than those with offsets of the group are left out.

        Raises :class:`NoRoute` before any change if the group has committed no offsets and no ``topics`` are given, or
        if a broker has no master; :class:`InvalidName` for an invalid ``group`` or ``to``; ValueError for ``topics``
        without a topic, such as an empty list. :class:`BrokerError` if a broker refuses to notify its members: the
        topics and brokers before it, in sorted order, are reset then.
        """
        self._cluster.ensure_open()
        check_group(group)
        check_start(to, "to")
        place = to if isinstance(to, str) else max(0, as_timestamp(to))
        real = self._real_group(group)
        names = [topics] if isinstance(topics, str) else list(topics or ())
        if topics is not None and not names:
            raise ValueError("topics has no topic: name some, or leave it out for all topics of the group")
        plan = await plan_reset(self, real, names, place)
        done = plan if dry_run else await reset_offsets(self, real, plan, place)
        return [attrs.evolve(each, queue=self._plain(each.queue)) for each in done]

    async def find(
        self, topic: str, key: str, *, limit: int = 32, begin: int = 0, end: int = FOREVER
    ) -> list[DeliveredRecord]:
        """Return the newest ``limit`` messages of ``topic`` with ``key``, oldest first.

        ``begin`` and ``end`` (ms since 1970) limit the time at which they were stored. A broker returns at most 64.
        """
        self._cluster.ensure_open()
        check_topic(topic)
        topic = plain_topics(self._cluster.namespace, topic)
        return await find_by_key(self._cluster, topic, key, limit, begin, end)

    async def find_by_id(self, topic: str, message_id: str) -> list[DeliveredRecord]:
        """Return the messages of ``topic`` with this ``message_id``, the producer's or the broker's.

        Several when a send was repeated.
        """
        self._cluster.ensure_open()
        check_topic(topic)
        topic = plain_topics(self._cluster.namespace, topic)
        return await find_by_id(self._cluster, topic, message_id)

    async def message_at(self, queue: MessageQueue, offset: int) -> DeliveredRecord | None:
        """Return the message at ``offset`` of ``queue``; None when there is none, or no longer."""
        self._cluster.ensure_open()
        return await message_at(self._cluster, queue, offset, await self._reader(queue))

    def _real_group(self, group: str) -> str:
        return group if self._cluster.namespace is None else self._cluster.namespace.group(group)

    def _plain(self, queue: MessageQueue) -> MessageQueue:
        """The queue as users know it; one of a retry topic keeps its real name."""
        namespace = self._cluster.namespace
        return queue if namespace is None or is_retry_topic(queue.topic) else namespace.queue_without(queue)

    async def _ask(self, queue: MessageQueue, request: Command) -> int:
        self._cluster.ensure_open()
        channel = await self._cluster.broker(await self._reader(queue))
        return read_offset(await channel.call(request), channel.address)

    async def _reader(self, queue: MessageQueue) -> str:
        if self._cluster.routes.broker(queue.broker_name) is None:
            await self._cluster.routes.get(queue.topic)
        return self._cluster.routes.reader(queue)

    async def _master(self, queue: MessageQueue) -> str:
        if self._cluster.routes.broker(queue.broker_name) is None:
            await self._cluster.routes.get(queue.topic)
        return self._cluster.routes.master(queue)


def _as_additions(attributes: Mapping[str, str] | None) -> str | None:
    """The attributes of a new topic in the form of 5.3.3's request; None without any."""
    return ",".join(f"+{key}={value}" for key, value in (attributes or {}).items()) or None

"""Where topics lie: asked of the nameservers, kept, and refreshed.

Source: RocketMQ 4.9.7 ``MQClientInstance`` (``topicRouteData2TopicPublishInfo``, ``...SubscribeInfo``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import anyio

from gantrymq.client.errors import GantryError, NoRoute
from gantrymq.remoting.bodies.queues import MessageQueue
from gantrymq.remoting.bodies.routes import BrokerData, QueueData, TopicRouteData
from gantrymq.remoting.codes import PERM_READ, PERM_WRITE
from gantrymq.remoting.outages import Outages

if TYPE_CHECKING:
    from gantrymq.client.nameservers import Nameservers

DEFAULT_TOPIC: Final = "TBW102"
"""Its route says which brokers create topics on first send."""
DEFAULT_TOPIC_QUEUES: Final = 4
MASTER_ID: Final = 0
RENEW_SECONDS: Final = 0.5
"""The shortest interval between queries of a topic's route while its brokers are unreachable or refuse messages."""


def queues_to_publish(topic: str, route: TopicRouteData) -> list[MessageQueue]:
    """The queues that can be sent to: writable, on a broker whose master is known, in order of broker and id."""
    masters = {data.broker_name for data in route.broker_datas if MASTER_ID in data.broker_addrs}
    if route.order_topic_conf:
        return _ordered_queues(topic, route.order_topic_conf)
    return [
        MessageQueue(topic=topic, broker_name=data.broker_name, queue_id=queue_id)
        for data in _by_broker(route)
        if data.perm & PERM_WRITE and data.broker_name in masters
        for queue_id in range(data.write_queue_nums)
    ]


def queues_to_subscribe(topic: str, route: TopicRouteData) -> list[MessageQueue]:
    """The queues that can be read, in order of broker and id."""
    return [
        MessageQueue(topic=topic, broker_name=data.broker_name, queue_id=queue_id)
        for data in _by_broker(route)
        if data.perm & PERM_READ
        for queue_id in range(data.read_queue_nums)
    ]


def addresses_to_read(broker: BrokerData) -> list[str]:
    """Where a broker's queues can be read: its master's address, where there is one, then those of slaves, by id."""
    return [broker.broker_addrs[broker_id] for broker_id in sorted(broker.broker_addrs)]


def _by_broker(route: TopicRouteData) -> list[QueueData]:
    return sorted(route.queue_datas, key=lambda data: data.broker_name)


def _ordered_queues(topic: str, conf: str) -> list[MessageQueue]:
    # "broker-a:4;broker-b:2", kept by the nameserver for ordered topics; it outranks the brokers' own numbers
    queues: list[MessageQueue] = []
    for part in conf.rstrip(";").split(";"):  # as Java's String.split, which drops empty parts at the end
        broker, _, count = part.rpartition(":")
        if not broker or not count.isdigit():
            raise NoRoute(f"topic {topic}: the nameserver's order configuration {conf!r} is not broker:queues;...")
        queues += [MessageQueue(topic=topic, broker_name=broker, queue_id=number) for number in range(int(count))]
    return queues


class Routes:
    """The routes of the topics in use. ``changed`` is called with a topic whose route is another than before."""

    def __init__(self, nameservers: Nameservers, changed: Callable[[str], None], rare: Outages) -> None:
        self._nameservers = nameservers
        self._changed = changed
        self._rare = rare
        self._routes: dict[str, TopicRouteData] = {}
        self._brokers: dict[str, BrokerData] = {}
        self._publish_queues: dict[str, list[MessageQueue]] = {}
        self._created_on_send: set[str] = set()
        self._asking: dict[str, anyio.Lock] = {}
        self._renewed: dict[str, float] = {}

    async def get(self, topic: str) -> TopicRouteData:
        """The route of a topic that exists; :class:`NoRoute` if no broker has it."""
        route = self._routes.get(topic)
        if route is None or topic in self._created_on_send:
            route = await self._ask(topic)
        if route is None:
            raise NoRoute(
                f"no route to topic {topic}: nameservers {';'.join(self._nameservers.addresses)} know no broker that "
                f"has it; create it (gantrymq topic create {topic}), or wait until its broker has registered"
            )
        return route

    async def get_for_send(self, topic: str) -> TopicRouteData:
        """The route to send by: the topic's own, else that of the brokers which create topics on first send."""
        route = self._routes.get(topic)
        if route is not None:
            return route
        route = await self._ask(topic)
        if route is None:
            route = await self._nameservers.route(DEFAULT_TOPIC)
            if route is None:
                return await self.get(topic)
            for data in route.queue_datas:
                data.write_queue_nums = data.read_queue_nums = min(DEFAULT_TOPIC_QUEUES, data.read_queue_nums)
            self._created_on_send.add(topic)
            self._set(topic, route)
        return route

    async def learn(self, topic: str) -> None:
        """Know the route of ``topic``, so that its brokers hear from this client; nothing if there is none."""
        if topic not in self._routes:
            await self._ask(topic)

    def known_publish_queues(self, topic: str) -> Sequence[MessageQueue] | None:
        """The queues to send to, if they are known and there are any."""
        return self._publish_queues.get(topic) or None

    async def publish_queues(self, topic: str) -> Sequence[MessageQueue]:
        """The queues to send to, in order of broker and id; may be empty. :class:`NoRoute` without any route."""
        if self._publish_queues.get(topic) == []:
            await self._ask(topic, again=True)  # nothing to send to: only a newer route can help
        route = await self.get_for_send(topic)
        queues = self._publish_queues.get(topic)
        if queues is None:
            queues = self._publish_queues[topic] = queues_to_publish(topic, route)
        return queues

    def forget(self, topic: str) -> None:
        """``topic`` was changed or deleted: whoever needs its route asks for it again."""
        self._routes.pop(topic, None)
        self._publish_queues.pop(topic, None)
        self._created_on_send.discard(topic)

    async def refresh(self) -> None:
        """Ask for all known topics again; a route that cannot be had stays as it was."""
        for topic in list(self._routes):
            await self.renew(topic)

    def broker(self, name: str) -> BrokerData | None:
        """The addresses of a broker by its name, as the route that was read last has them."""
        return self._brokers.get(name)

    def brokers(self) -> dict[str, BrokerData]:
        """All brokers of all routes in use, by name, with the addresses that were read last.

        The route of a topic that was deleted stays in use, with addresses that may be old.
        """
        names = {data.broker_name for route in self._routes.values() for data in route.broker_datas}
        return {name: self._brokers[name] for name in names}

    def master(self, queue: MessageQueue) -> str:
        """The address that writes to ``queue`` go to; :class:`NoRoute` when its broker's master is not known."""
        data = self.broker(queue.broker_name)
        address = None if data is None else data.broker_addrs.get(MASTER_ID)
        if address is None:
            raise NoRoute(
                f"broker {queue.broker_name} has no master now, so queue {queue.queue_id} of {queue.topic} waits"
            )
        return address

    def new_master(self, name: str, address: str) -> str | None:
        """Where the master of broker ``name`` is, if that is known and not at ``address``."""
        data = self.broker(name)
        master = None if data is None else data.broker_addrs.get(MASTER_ID)
        return None if master == address else master

    def reader(self, queue: MessageQueue) -> str:
        """Where questions about ``queue`` and its offsets go: its master's address, else that of a slave.

        :class:`NoRoute` when no broker of the name is known.
        """
        data = self.broker(queue.broker_name)
        if data is None or not data.broker_addrs:
            raise NoRoute(f"broker {queue.broker_name} is not known to the nameservers any more")
        return addresses_to_read(data)[0]

    async def renew(self, topic: str) -> None:
        """Ask for the route of ``topic`` now, because a broker in it cannot be reached; it may stay as it was.

        Many callers notice a broker's failure at the same time: soon after one has asked, the others only wait for its
        answer.
        """
        now = anyio.current_time()
        if now - self._renewed.get(topic, -RENEW_SECONDS) < RENEW_SECONDS:
            async with self._asking.setdefault(topic, anyio.Lock()):
                return
        self._renewed[topic] = now
        try:
            await self._ask(topic, again=True)
            self._rare.over("route_refresh_failed", *self._nameservers.addresses)
        except GantryError as error:
            self._rare.warning("route_refresh_failed", *self._nameservers.addresses, topic=topic, reason=str(error))

    async def _ask(self, topic: str, again: bool = False) -> TopicRouteData | None:
        # Many callers may need one new topic at the same moment: one of them asks.
        async with self._asking.setdefault(topic, anyio.Lock()):
            known = self._routes.get(topic)
            if known is not None and not again and topic not in self._created_on_send:
                return known
            route = await self._nameservers.route(topic)
            if route is not None:
                self._created_on_send.discard(topic)
                self._set(topic, route)
            return route

    def _set(self, topic: str, route: TopicRouteData) -> None:
        for data in route.broker_datas:
            self._brokers[data.broker_name] = data
        if self._routes.get(topic) != route:
            self._routes[topic] = route
            self._publish_queues.pop(topic, None)
            self._changed(topic)

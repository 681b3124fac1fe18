"""The nameserver's tables: which brokers live, and which queues of which topics they have. No I/O; the clock is given.

Follows RocketMQ 4.9.7 ``RouteInfoManager``. Where that goes wrong the tables follow 5.3.3: a topic that is unknown here
is taken from any registration, and a broker that leaves takes along its own address only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import attrs
import msgspec

from gantrymq.remoting.bodies import (
    BrokerData,
    ClusterInfo,
    DataVersion,
    QueueData,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicList,
    TopicRouteData,
)
from gantrymq.remoting.codes import PERM_READ, PERM_WRITE, ResponseCode
from gantrymq.remoting.errors import RemoteFault

EXPIRY_SECONDS: Final = 120.0
"""How long a broker lives without a sign (``BROKER_CHANNEL_EXPIRED_TIME``)."""
MASTER_ID: Final = 0
UNIT_FLAG: Final = 1
UNIT_SUB_FLAG: Final = 2
BROKERS_MAX: Final = 10_000
TOPICS_MAX: Final = 200_000
NAME_MAX_CHARACTERS: Final = 512
FILTER_SERVERS_MAX: Final = 100
"""More are refused, so that no peer fills the memory. RocketMQ has no such limits."""


@attrs.frozen
class BrokerIdentity:
    """Who a broker says it is: ``address`` is "host:port", ``broker_id`` 0 the master of its name."""

    cluster: str
    name: str
    broker_id: int
    address: str


@attrs.define
class LiveBroker:
    """One registered broker: until when it lives (the clock's seconds), its topics' version, and who speaks for it."""

    identity: BrokerIdentity
    deadline: float
    lifetime: float
    data_version: DataVersion
    ha_address: str
    connection: object


@attrs.frozen
class Registration:
    """What a slave is told about its master; both None for a master, or while there is none."""

    master_address: str | None = None
    ha_address: str | None = None


class Routes:
    """The tables. ``clock`` returns seconds and only has to go forward. What the questions return shares rows with the
    tables: to be read or encoded at once, not to be changed."""

    def __init__(self, clock: Callable[[], float], expiry: float = EXPIRY_SECONDS) -> None:
        self._clock = clock
        self._expiry = expiry
        self._queues: dict[str, dict[str, QueueData]] = {}  # topic, broker name
        self._brokers: dict[str, BrokerData] = {}  # broker name
        self._clusters: dict[str, dict[str, None]] = {}  # cluster, broker names in order of registration
        self._live: dict[str, LiveBroker] = {}  # broker address
        self._filters: dict[str, list[str]] = {}  # broker address

    # ---- what brokers do

    def register(
        self,
        identity: BrokerIdentity,
        wrapper: TopicConfigSerializeWrapper,
        *,
        ha_address: str = "",
        filter_servers: list[str] | None = None,
        connection: object = None,
        lifetime: float | None = None,
    ) -> Registration:
        """Take a broker in, or renew it. ``connection`` is whatever :meth:`remove_connection` will name; ``lifetime``
        in seconds overrides the expiry. A master's topics are taken when their version changed, when the broker is new
        here, or when the topic is. Topics missing in ``wrapper`` stay. :class:`RemoteFault` (code 1) past the limits.
        """
        known = self._live.get(identity.address)
        if known is not None and known.identity != identity:
            self._remove(known.identity)  # the same address under another id or name: a slave that became master
            known = None
        self._check_limits(identity, wrapper)
        _check_names(identity, ha_address, wrapper, filter_servers or [])
        self._clusters.setdefault(identity.cluster, {})[identity.name] = None
        broker = self._brokers.setdefault(identity.name, BrokerData(identity.cluster, identity.name))
        first = identity.broker_id not in broker.broker_addrs
        broker.broker_addrs[identity.broker_id] = identity.address
        if identity.broker_id == MASTER_ID:
            changed = first or known is None or known.data_version != wrapper.data_version
            self._take_topics(identity.name, wrapper.topic_config_table, changed)
        lifetime = self._expiry if lifetime is None else lifetime
        self._live[identity.address] = LiveBroker(
            identity, self._clock() + lifetime, lifetime, wrapper.data_version, ha_address, connection
        )
        if filter_servers:
            self._filters[identity.address] = filter_servers
        elif filter_servers is not None:
            self._filters.pop(identity.address, None)
        return Registration() if identity.broker_id == MASTER_ID else self._master_of(broker)

    def unregister(self, identity: BrokerIdentity) -> bool:
        """Forget a broker, and its name with all queues when no other broker has it. Whether anything was known."""
        return self._remove(identity)

    def renew(self, address: str) -> bool:
        """A sign of life; whether the broker is known."""
        live = self._live.get(address)
        if live is not None:
            live.deadline = self._clock() + live.lifetime
        return live is not None

    def data_version(self, address: str) -> DataVersion | None:
        """The version of the topics that the broker at ``address`` registered last."""
        live = self._live.get(address)
        return None if live is None else live.data_version

    def expire(self) -> list[LiveBroker]:
        """Remove the brokers whose time is over, and return them."""
        now = self._clock()
        gone = [live for live in self._live.values() if live.deadline < now]
        for live in gone:
            self._remove(live.identity)
        return gone

    def remove_connection(self, connection: object) -> list[LiveBroker]:
        """Remove the brokers that last registered over ``connection``, and return them."""
        gone = [live for live in self._live.values() if live.connection is connection]
        for live in gone:
            self._remove(live.identity)
        return gone

    # ---- what clients and admins ask

    def route(self, topic: str) -> TopicRouteData | None:
        """Where ``topic`` is, or None. Broker names without a live broker are left out of ``broker_datas``."""
        queues = self._queues.get(topic)
        if not queues:
            return None
        brokers = [self._brokers[name] for name in queues if name in self._brokers]
        if not brokers:
            return None
        filters = {
            address: self._filters[address]
            for broker in brokers
            for address in broker.broker_addrs.values()
            if address in self._filters
        }
        return TopicRouteData(list(queues.values()), brokers, filters)

    def cluster_info(self) -> ClusterInfo:
        """All brokers and clusters."""
        return ClusterInfo(dict(self._brokers), {cluster: list(names) for cluster, names in self._clusters.items()})

    def member_group(self, cluster: str, name: str) -> dict[int, str]:
        """The addresses of the brokers of one name, by id."""
        broker = self._brokers.get(name)
        return dict(broker.broker_addrs) if broker is not None and broker.cluster == cluster else {}

    def topics(self) -> TopicList:
        """All topics."""
        return TopicList(list(self._queues))

    def topics_by_cluster(self, cluster: str) -> TopicList:
        """The topics that some broker of ``cluster`` has."""
        names = self._clusters.get(cluster, {})
        return TopicList([topic for topic, queues in self._queues.items() if not names.keys().isdisjoint(queues)])

    def system_topics(self) -> TopicList:
        """The names of clusters and brokers, which are topics too, and the address of some broker."""
        names = [name for cluster, brokers in self._clusters.items() for name in (cluster, *brokers)]
        return TopicList(names, next(iter(self._live), None))

    def topics_with_flag(self, wanted: int, unwanted: int = 0) -> TopicList:
        """The topics whose system flag has all bits of ``wanted``, none of ``unwanted``; one broker speaks for all."""
        flags = {topic: next(iter(queues.values())).topic_sys_flag for topic, queues in self._queues.items() if queues}
        return TopicList([topic for topic, flag in flags.items() if flag & wanted == wanted and not flag & unwanted])

    # ---- what admins do

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forget ``topic``, on the brokers of ``cluster`` or on all."""
        if not cluster:
            self._queues.pop(topic, None)
            return
        queues = self._queues.get(topic, {})
        for name in self._clusters.get(cluster, {}):
            queues.pop(name, None)
        if not queues:
            self._queues.pop(topic, None)

    def wipe_write_perm(self, name: str) -> int:
        """Take the write permission from all topics of a broker name, until it registers a change; how many topics."""
        return self._set_perm(name, lambda perm: perm & ~PERM_WRITE)

    def add_write_perm(self, name: str) -> int:
        """Make all topics of a broker name readable and writable; how many topics."""
        return self._set_perm(name, lambda _: PERM_READ | PERM_WRITE)

    # ---- inside

    def _check_limits(self, identity: BrokerIdentity, wrapper: TopicConfigSerializeWrapper) -> None:
        if not (identity.cluster.strip() and identity.name.strip() and identity.address.strip()):
            raise RemoteFault(ResponseCode.SYSTEM_ERROR, "a broker's cluster, name and address must not be blank")
        if identity.address not in self._live and len(self._live) >= BROKERS_MAX:
            raise RemoteFault(ResponseCode.SYSTEM_ERROR, f"{BROKERS_MAX} brokers are registered, no more are taken")
        if len(self._queues) + len(wrapper.topic_config_table) > TOPICS_MAX:
            news = sum(topic not in self._queues for topic in wrapper.topic_config_table)
            if len(self._queues) + news > TOPICS_MAX:
                raise RemoteFault(ResponseCode.SYSTEM_ERROR, f"more than {TOPICS_MAX} topics are not taken")

    def _take_topics(self, name: str, topics: dict[str, TopicConfig], changed: bool) -> None:
        for key, topic in topics.items():
            queues = self._queues.setdefault(topic.topic_name or key, {})
            if changed or name not in queues:
                queues[name] = QueueData(
                    name, topic.read_queue_nums, topic.write_queue_nums, topic.perm, topic.topic_sys_flag
                )

    def _master_of(self, broker: BrokerData) -> Registration:
        address = broker.broker_addrs.get(MASTER_ID)
        live = None if address is None else self._live.get(address)
        return Registration() if live is None else Registration(address, live.ha_address)

    def _remove(self, identity: BrokerIdentity) -> bool:
        live = self._live.pop(identity.address, None)
        self._filters.pop(identity.address, None)
        broker = self._brokers.get(identity.name)
        if broker is None:
            return live is not None
        mine = [number for number, address in broker.broker_addrs.items() if address == identity.address]
        for number in mine:
            del broker.broker_addrs[number]
        if not broker.broker_addrs:
            self._remove_name(broker)
        return bool(mine) or live is not None

    def _remove_name(self, broker: BrokerData) -> None:
        del self._brokers[broker.broker_name]
        for cluster in [cluster for cluster, names in self._clusters.items() if broker.broker_name in names]:
            del self._clusters[cluster][broker.broker_name]
            if not self._clusters[cluster]:
                del self._clusters[cluster]
        for topic in [topic for topic, queues in self._queues.items() if broker.broker_name in queues]:
            del self._queues[topic][broker.broker_name]
            if not self._queues[topic]:
                del self._queues[topic]

    def _set_perm(self, name: str, change: Callable[[int], int]) -> int:
        rows: Iterable[dict[str, QueueData]] = [queues for queues in self._queues.values() if name in queues]
        count = 0
        for queues in rows:
            queues[name] = msgspec.structs.replace(queues[name], perm=change(queues[name].perm))
            count += 1
        return count


def _check_names(
    identity: BrokerIdentity, ha_address: str, wrapper: TopicConfigSerializeWrapper, filter_servers: list[str]
) -> None:
    names = (identity.cluster, identity.name, identity.address, ha_address, *filter_servers)
    topics = wrapper.topic_config_table
    longest = max(
        *(len(name) for name in names), *(max(len(key), len(topic.topic_name)) for key, topic in topics.items())
    )
    if longest > NAME_MAX_CHARACTERS:
        raise RemoteFault(
            ResponseCode.SYSTEM_ERROR, f"a name of {longest} characters, {NAME_MAX_CHARACTERS} are the limit"
        )
    if len(filter_servers) > FILTER_SERVERS_MAX:
        raise RemoteFault(
            ResponseCode.SYSTEM_ERROR, f"{len(filter_servers)} filter servers, {FILTER_SERVERS_MAX} are the limit"
        )

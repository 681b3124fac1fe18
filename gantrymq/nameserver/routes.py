"""The nameserver's tables: the live brokers, and the queues of their topics. No I/O; the caller provides the clock.

Follows RocketMQ ``RouteInfoManager``: 4.9.7 for brokers that do not send ``enableActingMaster``, 5.3.3 for those that
do. It also follows 5.3.3 where 4.9.7 is wrong: any registration adds topics that are unknown here, and the departure of
a broker removes only its own address.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Final

import msgspec

from gantrymq.nameserver.limits import check_lengths, check_names, check_new, check_rooms
from gantrymq.nameserver.live import (
    MASTER_ID,
    BrokerIdentity,
    Changes,
    LiveBroker,
    MinimumChange,
    Nobody,
    Registration,
)
from gantrymq.remoting.bodies.routes import BrokerData, ClusterInfo, QueueData, TopicRouteData
from gantrymq.remoting.bodies.tables import DataVersion
from gantrymq.remoting.bodies.topics import TopicConfig, TopicConfigSerializeWrapper, TopicList, TopicQueueMapping
from gantrymq.remoting.codes import PERM_READ, PERM_WRITE
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.steps import in_one_go

EXPIRY_SECONDS: Final = 120.0
"""The time until a silent broker expires (``BROKER_CHANNEL_EXPIRED_TIME``)."""
UNIT_FLAG: Final = 1
UNIT_SUB_FLAG: Final = 2
ALL_PERMS: Final = -1
STEP_TOPICS: Final = 512
"""The number of topics processed in one step: about a millisecond."""


class Routes:
    """The tables. ``clock`` returns seconds and must be monotonic. ``changes`` receives all changes of routes.

    Results of queries share rows with the tables: callers must read or encode them at once, and must not change
    them."""

    def __init__(
        self, clock: Callable[[], float], expiry: float = EXPIRY_SECONDS, changes: Changes | None = None
    ) -> None:
        self._clock = clock
        self._expiry = expiry
        self._changes: Changes = Nobody() if changes is None else changes
        self._queues: dict[str, dict[str, QueueData]] = {}  # topic, broker name
        self._brokers: dict[str, BrokerData] = {}  # broker name
        self._clusters: dict[str, dict[str, None]] = {}  # cluster, broker names in order of registration
        self._live: dict[str, LiveBroker] = {}  # broker address
        self._filters: dict[str, list[str]] = {}  # broker address
        self._mappings: dict[str, dict[str, TopicQueueMapping]] = {}  # static topic, broker name

    def count_brokers(self) -> int:
        """How many brokers are registered now."""
        return len(self._live)

    # ---- requests of brokers

    def register_in_steps(
        self,
        identity: BrokerIdentity,
        wrapper: TopicConfigSerializeWrapper,
        *,
        ha_address: str = "",
        filter_servers: list[str] | None = None,
        connection: object = None,
        lifetime: float | None = None,
        zone: str | None = None,
        acting_master: bool | None = None,
        drop_missing: bool = False,
    ) -> Generator[None, None, Registration]:
        """Register a broker, or renew its registration. ``connection`` is the object for :meth:`remove_connection`;
        ``lifetime`` in seconds overrides the expiry. A master's topics are stored if their version has changed, or if
        the broker or the topic is new here. Topics that are missing in ``wrapper`` stay, unless ``drop_missing``.

        ``acting_master`` is None for brokers without the feature (4.x). Otherwise the slave with the lowest id
        registers topics too; if ``acting_master`` is true, they lose their write permission.

        If another address has the broker's name and id, and a higher state version (a 5.x controller elected it), the
        registration is ignored. :class:`RemoteFault` (code 1) beyond the limits.

        It yields where other connections may be served. Run one at a time for each broker name: if the last broker of
        the name is removed meanwhile, the remaining topics are not stored.
        """
        yield from check_names(identity, ha_address, wrapper, filter_servers or [], zone)
        lowest = min(self.member_group(identity.name), default=None)
        known = self._live.get(identity.address)
        if known is not None and known.identity != identity:
            # The same address with another id or name, for example after a promotion.
            self._remove(known.identity, notify=False)
            known = None
        try:
            check_rooms(identity, self._live, self._queues, self._mappings, wrapper)
        except RemoteFault:
            self.renew(identity.address)  # a broker keeps the topics that it has when another one does not fit
            raise
        holder = self._holder(identity)
        if holder is not None and _state(holder.data_version) > _state(wrapper.data_version):
            self._live.pop(identity.address, None)
            return Registration()
        broker, first = self._take_broker(identity, zone, bool(acting_master))
        lifetime = self._expiry if lifetime is None else lifetime
        self._live[identity.address] = LiveBroker(
            identity, self._clock() + lifetime, lifetime, wrapper.data_version, ha_address, connection
        )
        self._take_filters(identity.address, filter_servers)
        if lowest is not None and identity.broker_id < lowest:
            self._changes.minimum_changed(_came(broker, identity, ha_address))
        prime = acting_master is not None and identity.broker_id == min(broker.broker_addrs)
        if identity.broker_id == MASTER_ID or prime:
            changed = first or known is None or known.data_version != wrapper.data_version
            mask = ~PERM_WRITE if acting_master and identity.broker_id != MASTER_ID else ALL_PERMS
            if drop_missing and not wrapper.topic_queue_mapping_info_map:
                self._drop_topics(identity.name, wrapper.topic_config_table.keys())
            yield from self._take_topics(broker, wrapper.topic_config_table, changed, mask)
            if changed and self._brokers.get(identity.name) is broker:
                self._take_mappings(identity.name, wrapper.topic_queue_mapping_info_map or {})
        replaced = None if holder is None else holder.identity.address
        return Registration(*self._master_of(identity, broker), replaced)

    register = in_one_go(register_in_steps)

    def register_topic(self, topic: str, queues: Iterable[QueueData]) -> bool:
        """Store the queues of one topic; False, without a change, if one of their brokers is unknown.
        :class:`RemoteFault` (code 1) beyond the limits."""
        rows = list(queues)
        check_lengths((topic,))
        if not rows or any(row.broker_name not in self._brokers for row in rows):
            return False
        check_new(self._queues, (topic,))
        self._queues.setdefault(topic, {}).update({row.broker_name: row for row in rows})
        self._changes.topic_changed(topic)
        return True

    def unregister(self, identity: BrokerIdentity) -> bool:
        """Remove a broker, and its name with all queues if no other broker has it. Returns whether it was
        registered.

        If another name is registered at its address, nothing is removed. RocketMQ keeps that name's route too, but
        forgets when it expires."""
        return self.name_at(identity.address) in (None, identity.name) and self._remove(identity)

    def renew(self, address: str) -> bool:
        """Record a heartbeat; returns whether the broker is registered."""
        live = self._live.get(address)
        if live is not None:
            live.deadline = self._clock() + live.lifetime
        return live is not None

    def name_at(self, address: str) -> str | None:
        """The name of the broker that is registered at ``address``."""
        live = self._live.get(address)
        return None if live is None else live.identity.name

    def data_version(self, address: str) -> DataVersion | None:
        """The version of the topics that the broker at ``address`` registered last."""
        live = self._live.get(address)
        return None if live is None else live.data_version

    def expire(self) -> list[LiveBroker]:
        """Remove expired brokers and return them."""
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

    # ---- queries of clients and administrators

    def route(self, topic: str) -> TopicRouteData | None:
        """The route of ``topic``, or None. ``broker_datas`` omits broker names without a live broker."""
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
        mappings = self._mappings.get(topic)
        return TopicRouteData(list(queues.values()), brokers, filters, topic_queue_mapping_by_broker=mappings)

    def cluster_info(self) -> ClusterInfo:
        """All brokers and clusters."""
        return ClusterInfo(dict(self._brokers), {cluster: list(names) for cluster, names in self._clusters.items()})

    def member_group(self, name: str) -> dict[int, str]:
        """The addresses of the brokers of one name, by id. The cluster does not matter, as in RocketMQ."""
        broker = self._brokers.get(name)
        return {} if broker is None else dict(broker.broker_addrs)

    def topics(self) -> TopicList:
        """All topics."""
        return TopicList(list(self._queues))

    def topics_by_cluster(self, cluster: str) -> TopicList:
        """The topics of all brokers of ``cluster``."""
        names = self._clusters.get(cluster, {})
        return TopicList([topic for topic, queues in self._queues.items() if not names.keys().isdisjoint(queues)])

    def system_topics(self) -> TopicList:
        """The names of clusters and brokers, which are topics too, and the address of any broker."""
        names = [name for cluster, brokers in self._clusters.items() for name in (cluster, *brokers)]
        return TopicList(names, next(iter(self._live), None))

    def topics_with_flag(self, wanted: int, unwanted: int = 0) -> TopicList:
        """The topics whose system flag on any one broker has all bits of ``wanted`` and none of ``unwanted``."""
        flags = {topic: next(iter(queues.values())).topic_sys_flag for topic, queues in self._queues.items() if queues}
        return TopicList([topic for topic, flag in flags.items() if flag & wanted == wanted and not flag & unwanted])

    # ---- changes by administrators

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Remove ``topic`` of the brokers of ``cluster``, or of all brokers."""
        queues = self._queues.get(topic, {})
        for name in list(self._clusters.get(cluster, {}) if cluster else queues):
            queues.pop(name, None)
        if not queues:
            self._queues.pop(topic, None)
        self._changes.topic_changed(topic)

    def wipe_write_perm(self, name: str) -> int:
        """Remove the write permission of all topics of a broker name until it registers a change; returns their
        number."""
        return self._set_perm(name, lambda perm: perm & ~PERM_WRITE)

    def add_write_perm(self, name: str) -> int:
        """Make all topics of a broker name readable and writable; returns their number."""
        return self._set_perm(name, lambda _: PERM_READ | PERM_WRITE)

    # ---- internal: additions

    def _holder(self, identity: BrokerIdentity) -> LiveBroker | None:
        """The live broker with the name and id of ``identity`` at another address."""
        address = self.member_group(identity.name).get(identity.broker_id)
        return None if address is None or address == identity.address else self._live.get(address)

    def _take_broker(self, identity: BrokerIdentity, zone: str | None, acting: bool) -> tuple[BrokerData, bool]:
        """Add the broker's address to the row of its name. Returns the row, and whether the id is new there."""
        self._clusters.setdefault(identity.cluster, {})[identity.name] = None
        broker = self._brokers.setdefault(identity.name, BrokerData(identity.cluster, identity.name))
        address, first = broker.broker_addrs.get(identity.broker_id), identity.broker_id not in broker.broker_addrs
        if (address, broker.zone_name, bool(broker.enable_acting_master)) != (identity.address, zone, acting):
            broker.broker_addrs[identity.broker_id] = identity.address
            broker.zone_name = zone
            broker.enable_acting_master = acting or None  # a missing field means false, for 4.x too
            self._changes.brokers_changed()
        return broker, first

    def _take_topics(
        self, broker: BrokerData, topics: dict[str, TopicConfig], changed: bool, mask: int
    ) -> Generator[None, None, None]:
        name = broker.broker_name
        for number, (key, topic) in enumerate(topics.items(), start=1):
            topic_name = topic.topic_name or key
            queues = self._queues.setdefault(topic_name, {})
            if changed or name not in queues:
                row = QueueData(
                    name, topic.read_queue_nums, topic.write_queue_nums, topic.perm & mask, topic.topic_sys_flag
                )
                if queues.get(name) != row:
                    queues[name] = row
                    self._changes.topic_changed(topic_name)
            if number % STEP_TOPICS == 0:
                yield
                if self._brokers.get(name) is not broker:
                    return

    def _take_mappings(self, name: str, mappings: dict[str, TopicQueueMapping]) -> None:
        """Store the mappings of the broker name. Those of other names are ignored: RocketMQ's nameserver stores them,
        but its brokers have none (``TopicQueueMappingManager`` asserts it)."""
        for topic, mapping in mappings.items():
            if mapping.bname == name:
                self._mappings.setdefault(topic, {})[name] = mapping
                self._changes.topic_changed(topic)

    def _take_filters(self, address: str, filter_servers: list[str] | None) -> None:
        if filter_servers is not None and filter_servers != self._filters.get(address, []):
            if filter_servers:
                self._filters[address] = filter_servers
            else:
                del self._filters[address]
            self._changes.brokers_changed()

    def _master_of(self, identity: BrokerIdentity, broker: BrokerData) -> tuple[str | None, str | None]:
        address = None if identity.broker_id == MASTER_ID else broker.broker_addrs.get(MASTER_ID)
        live = None if address is None else self._live.get(address)
        return (None, None) if live is None else (address, live.ha_address)

    # ---- internal: removals

    def _remove(self, identity: BrokerIdentity, notify: bool = True) -> bool:
        live = self._live.pop(identity.address, None)
        self._filters.pop(identity.address, None)
        broker = self._brokers.get(identity.name)
        if broker is None:
            return live is not None
        lowest = min(broker.broker_addrs)
        mine = [number for number, address in broker.broker_addrs.items() if address == identity.address]
        for number in mine:
            del broker.broker_addrs[number]
        if not broker.broker_addrs:
            self._remove_name(broker)
        elif lowest in mine:
            if broker.enable_acting_master:
                self._set_perm(identity.name, lambda perm: perm & ~PERM_WRITE)  # no broker accepts messages now
            if notify:
                self._changes.minimum_changed(_left(broker, identity.address))
        if mine:
            self._changes.brokers_changed()
        return bool(mine) or live is not None

    def _remove_name(self, broker: BrokerData) -> None:
        del self._brokers[broker.broker_name]
        for cluster in [cluster for cluster, names in self._clusters.items() if broker.broker_name in names]:
            del self._clusters[cluster][broker.broker_name]
            if not self._clusters[cluster]:
                del self._clusters[cluster]
        self._drop_topics(broker.broker_name, ())
        for topic in [topic for topic, rows in self._mappings.items() if broker.broker_name in rows]:
            del self._mappings[topic][broker.broker_name]
            if not self._mappings[topic]:
                del self._mappings[topic]

    def _drop_topics(self, name: str, kept: Iterable[str]) -> None:
        """Remove the queues of the broker name for all topics except those ``kept``."""
        spared = frozenset(kept)
        for topic in [topic for topic, queues in self._queues.items() if name in queues and topic not in spared]:
            del self._queues[topic][name]
            if not self._queues[topic]:
                del self._queues[topic]
            self._changes.topic_changed(topic)

    def _set_perm(self, name: str, change: Callable[[int], int]) -> int:
        mine = [(topic, queues) for topic, queues in self._queues.items() if name in queues]
        for topic, queues in mine:
            queues[name] = msgspec.structs.replace(queues[name], perm=change(queues[name].perm))
            self._changes.topic_changed(topic)
        return len(mine)


def _state(version: DataVersion) -> int:
    return version.state_version or 0


def _came(broker: BrokerData, identity: BrokerIdentity, ha_address: str) -> MinimumChange:
    """A broker with the lowest id was added: notify the others, or the broker itself if it is alone."""
    lowest = min(broker.broker_addrs)
    others = [address for number, address in broker.broker_addrs.items() if number != lowest]
    listeners = tuple(others) or (identity.address,)
    acting = bool(broker.enable_acting_master)
    return MinimumChange(
        broker.broker_name, lowest, broker.broker_addrs[lowest], listeners, ha_address=ha_address, acting=acting
    )


def _left(broker: BrokerData, address: str) -> MinimumChange:
    """The broker with the lowest id was removed: notify the remaining ones."""
    lowest = min(broker.broker_addrs)
    listeners = tuple(broker.broker_addrs.values())
    acting = bool(broker.enable_acting_master)
    return MinimumChange(
        broker.broker_name, lowest, broker.broker_addrs[lowest], listeners, left=address, acting=acting
    )

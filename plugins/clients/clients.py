"""The members of groups: they join with a heartbeat, and leave by unregistering, by disconnecting, or by silence.

Source: RocketMQ 4.9.7 ``ClientManageProcessor``, ``ConsumerManager``, ``DefaultConsumerIdsChangeListener``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import structlog

from gantrymq.plugins.clients.config import ClientsConfig
from gantrymq.plugins.clients.groups import ConsumerGroup, Group, Member
from gantrymq.plugins.clients.live_groups import G, LiveGroups
from gantrymq.plugins.clients.producerids import ProducerIds
from gantrymq.remoting.bodies.clients import ConsumerData, SubscriptionData
from gantrymq.remoting.codes import ONEWAY_FLAG, RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.headers.groups import ConsumerGroupHeader

if TYPE_CHECKING:
    from gantrymq.kernel.env import Env
    from gantrymq.kernel.network.connection import Connection

log = structlog.get_logger("gantrymq.clients")

MEMBER_BYTES = 512
"""The approximate memory of a member of a group besides its subscriptions."""
SUBSCRIPTION_BYTES = 100
"""The approximate memory of a subscription besides its strings, and of a tag besides its characters."""

_Membership = tuple[int, str, str]
"""A connection's id, a group, and ``consumer`` or ``producer``."""


class Clients:
    """Provides ``ConsumerGroups``, ``ProducerGroups``. ``changed``: groups whose members must be notified."""

    def __init__(self, env: Env, config: ClientsConfig) -> None:
        self.consumers = LiveGroups(ConsumerGroup, config.max_groups)
        self.producers = LiveGroups(Group, config.max_groups)
        self._producer_ids = ProducerIds()
        self.changed: dict[str, None] = {}
        self.updated: dict[str, None] | None = None
        """Groups whose members or subscriptions changed, for the hook ``groups_changed``; None if no plugin has it."""
        self._env = env
        self._config = config
        self._opaque = 0
        self._kept: dict[_Membership, int] = {}
        self._kept_bytes = 0

    def reconfigure(self, config: ClientsConfig) -> None:
        """Apply other settings from now on."""
        self._config = config

    def groups(self) -> list[str]:
        """Return the groups with a connected member."""
        return list(self.consumers.groups)

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """Return the group's subscription to ``topic``."""
        found = self.consumers.groups.get(group)
        return None if found is None else found.subscription(topic)

    def message_model(self, group: str) -> str | None:
        """``CLUSTERING`` or ``BROADCASTING``; None if the group has no connected member."""
        found = self.consumers.groups.get(group)
        return None if found is None else found.message_model

    def client_ids(self, group: str) -> list[str]:
        """Return the ids of the group's members."""
        found = self.consumers.groups.get(group)
        return [] if found is None else found.client_ids()

    def members_of(self, group: str) -> list[Member]:
        """Return the group's members."""
        found = self.consumers.groups.get(group)
        return [] if found is None else list(found.members.values())

    def subscriptions_of(self, group: str) -> Mapping[str, SubscriptionData]:
        """Return the group's subscriptions by topic."""
        found = self.consumers.groups.get(group)
        return {} if found is None else found.subscriptions

    def groups_of(self, topic: str) -> list[str]:
        """Return the live groups that subscribe to ``topic``."""
        return [name for name, group in self.consumers.groups.items() if group.subscription(topic)]

    def producers_of(self, group: str) -> list[Member]:
        """Return the members of the producer group."""
        found = self.producers.groups.get(group)
        return [] if found is None else list(found.members.values())

    def connection_of(self, client_id: str) -> Connection | None:
        """Return the connection of the producer with this client id, the newest one if it has several."""
        return self._producer_ids.find(client_id)

    def member(self, connection: Connection, client_id: str, language: str = "OTHER", version: int = 0) -> Member:
        """Return a client with a new last-seen time."""
        env = self._env
        return Member(connection, client_id, env.monotonic(), language, version, env.wall_ms())

    def join_producers(self, member: Member, group: str) -> None:
        """Process a producer's heartbeat."""
        joined = self._join(self.producers, (member.connection.id, group, "producer"), None)
        joined.members[member.connection.id] = member
        self._producer_ids.record_heartbeat(member.client_id, member.connection)

    def join_consumers(
        self, member: Member, data: ConsumerData, size: int, *, notify: bool, keep_subscriptions: bool
    ) -> None:
        """Process a consumer's heartbeat. ``size``: the :func:`subscription_bytes` of its subscriptions together;
        ``notify``: whether the group's members are notified of changes."""
        client_id, membership = member.client_id, (member.connection.id, data.group_name, "consumer")
        group = self._join(self.consumers, membership, None if keep_subscriptions else size)
        group.notify = notify
        differed, generation = group.differs, group.generation
        if group.update(member, data, keep_subscriptions):
            log.info("consumer_group_changed", group=group.name, members=len(group.members), client_id=client_id)
            self.changed[group.name] = None
            self._note(group.name)
        elif group.generation != generation:
            self._note(group.name)
        if group.differs and not differed:
            log.warning(
                "group_subscriptions_differ",
                group=group.name,
                client_id=client_id,
                advice="members of one group must subscribe to the same topics with the same expressions",
            )

    def leave(self, connection: Connection, producer_group: str | None, consumer_group: str | None) -> None:
        """Remove the client on this connection from these groups."""
        if producer_group is not None:
            self.producers.leave(connection.id, producer_group)
            self._forget((connection.id, producer_group, "producer"))
            if not self.producers.has(connection.id):
                self._producer_ids.drop(connection)
        if consumer_group is not None and self.consumers.leave(connection.id, consumer_group):
            self._forget((connection.id, consumer_group, "consumer"))
            self._left(consumer_group)

    def drop(self, connections: Iterable[Connection]) -> None:
        """Remove closed connections from their groups."""
        for connection in connections:
            for name in self.producers.leave_all(connection.id):
                self._forget((connection.id, name, "producer"))
            self._producer_ids.drop(connection)
            for name in self.consumers.leave_all(connection.id):
                self._forget((connection.id, name, "consumer"))
                self._left(name)

    def disconnect(self, client_id: str) -> list[Connection]:
        """Close all connections of the client, and remove them from their groups; returns them.

        The client may connect again.
        """
        both: tuple[LiveGroups[Any], ...] = (self.consumers, self.producers)
        found: dict[int, Connection] = {
            member.connection.id: member.connection
            for live_groups in both
            for group in live_groups.groups.values()
            for member in group.members.values()
            if member.client_id == client_id
        }
        for connection in found.values():
            log.info("client_disconnected", client_id=client_id, peer=connection.peer)
            if not connection.closed:
                connection.close("an administrator disconnected the client")
        self.drop(found.values())
        return list(found.values())

    def expire(self) -> None:
        """Drop clients that have been silent for too long, and close their connections."""
        moment = self._env.monotonic() - self._config.expire_after
        for connection in self.consumers.silent_since(moment) + self.producers.silent_since(moment):
            if not connection.closed:
                log.warning("client_expired", peer=connection.peer, after_s=self._config.expire_after)
                connection.close(f"no heartbeat for {self._config.expire_after:g} s")
            self.drop([connection])

    def notify_changes(self) -> None:
        """Notify each member of the groups that changed since the last call, once per group."""
        changed, self.changed = self.changed, {}
        for name in changed:
            group = self.consumers.groups.get(name)
            if group is None or not group.notify or not self._config.notify:
                continue
            ext = ConsumerGroupHeader(consumer_group=name).to_ext()
            for member in group.members.values():
                self._opaque = self._opaque + 1 & 0x7FFFFFFF
                member.connection.send(
                    Command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ext, opaque=self._opaque, flag=ONEWAY_FLAG)
                )

    def take_updated(self) -> list[str]:
        """The groups whose members or subscriptions changed since the last call."""
        if not self.updated:
            return []
        names = list(self.updated)
        self.updated.clear()
        return names

    def _note(self, group: str) -> None:
        if self.updated is not None:
            self.updated[group] = None

    def _join(self, live_groups: LiveGroups[G], membership: _Membership, subscriptions: int | None) -> G:
        """Count the memory of a member, and let it join its group. ``subscriptions``: the bytes of its subscriptions;
        None leaves a known member's as they are."""
        if subscriptions is not None or membership not in self._kept:
            self._keep(membership, subscriptions or 0)
        connection_id, group, _ = membership
        try:
            return live_groups.join(connection_id, group)
        except RemoteFault:
            self._forget(membership)
            raise

    def _keep(self, membership: _Membership, subscriptions: int) -> None:
        """Count the memory of a member; :class:`RemoteFault` (code 1) if it exceeds the limit. ``subscriptions``: the
        bytes of its subscriptions."""
        size = MEMBER_BYTES + subscriptions
        total = self._kept_bytes - self._kept.get(membership, 0) + size
        if total > self._config.max_kept_bytes:
            raise RemoteFault(
                ResponseCode.SYSTEM_ERROR,
                f"the {membership[2]} of group {membership[1]!r} is refused: all members together may have "
                f"{self._config.max_kept_bytes} bytes (plugin.clients.max_kept_bytes)",
            )
        self._kept[membership] = size
        self._kept_bytes = total

    def _forget(self, membership: _Membership) -> None:
        self._kept_bytes -= self._kept.pop(membership, 0)

    def _left(self, name: str) -> None:
        self._note(name)
        group = self.consumers.groups.get(name)
        log.info("consumer_group_changed", group=name, members=len(group.members) if group else 0)
        if group is not None:
            self.changed[name] = None


def subscription_bytes(subscription: SubscriptionData) -> int:
    """Return the approximate memory of a subscription."""
    tags = sum(map(len, subscription.tags_set)) + SUBSCRIPTION_BYTES * (
        len(subscription.tags_set) + len(subscription.code_set)
    )
    strings = len(subscription.topic) + len(subscription.sub_string) + len(subscription.expression_type)
    return SUBSCRIPTION_BYTES + strings + tags

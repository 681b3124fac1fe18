"""The live members of consumer groups and of producer groups, by connection.

Source: RocketMQ 4.9.7 ``ConsumerManager``, ``ConsumerGroupInfo``, ``ProducerManager``. There is one difference: in
RocketMQ the last heartbeat replaces the subscriptions of the whole group, so members with different subscriptions
replace each other's in turn. In GantryMQ a group has the subscriptions of all its members, and the newer of two
subscriptions to the same topic is valid.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs

from gantrymq.remoting.bodies.clients import ConsumerData, SubscriptionData
from gantrymq.remoting.names import is_retry_topic

if TYPE_CHECKING:
    from gantrymq.kernel.network.connection import Connection


@attrs.define(eq=False)
class Member:
    """One client in one group. ``seen``: its last heartbeat, on the clock of ``env.monotonic()``."""

    connection: Connection
    client_id: str
    seen: float
    language: str = "OTHER"
    version: int = 0
    heard_ms: int = 0
    """Time of the last heartbeat in ms of the wall clock, for administrators."""
    subscriptions: Mapping[str, SubscriptionData] = attrs.field(factory=dict)
    subscription_keys: frozenset[tuple[str, str, str]] = frozenset()
    """The subscriptions in a comparable form, without retry topics, which every group has."""
    versions: Mapping[str, tuple[str, str, int, bool]] = attrs.field(factory=dict)
    """The fields that are compared with the next heartbeat: tags follow from the expression, and comparing many takes
    long."""

    def subscribe(self, subscriptions: Mapping[str, SubscriptionData]) -> None:
        """Set the member's subscriptions by topic."""
        self.subscriptions = subscriptions
        self.versions = {
            topic: (wish.expression_type, wish.sub_string, wish.sub_version, wish.class_filter_mode)
            for topic, wish in subscriptions.items()
        }
        self.subscription_keys = frozenset(
            (topic, wish.expression_type, wish.sub_string)
            for topic, wish in subscriptions.items()
            if not is_retry_topic(topic)
        )


class Group:
    """The members of a group, by connection id."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.members: dict[int, Member] = {}

    def remove(self, connection_id: int) -> bool:
        """Remove the member; returns whether it was in the group."""
        return self.members.pop(connection_id, None) is not None


class ConsumerGroup(Group):
    """The members of a consumer group and the union of their subscriptions."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.message_model = ""
        self.consume_type = ""
        self.consume_from_where = ""
        self.notify = True
        self.generation = 0
        """Counts changes of the group's subscriptions."""
        self._merged: dict[str, SubscriptionData] = {}
        self._unsettled: set[str] = set()
        """Topics whose newest subscription was removed: the next query finds the members' present subscription.
        Recomputing a thousand topics each time one of a thousand members leaves would take minutes when all leave."""
        self._subscription_keys: Counter[frozenset[tuple[str, str, str]]] = Counter()

    @property
    def differs(self) -> bool:
        """Whether the members' subscriptions differ: each member then gets only a part of the messages that it
        subscribed to."""
        return len(self._subscription_keys) > 1

    @property
    def subscriptions(self) -> dict[str, SubscriptionData]:
        """The group's subscriptions by topic, as a copy."""
        for topic in list(self._unsettled):
            self._settle(topic)
        return dict(self._merged)

    def subscription(self, topic: str) -> SubscriptionData | None:
        """Return the group's subscription to the topic."""
        if topic in self._unsettled:
            self._settle(topic)
        return self._merged.get(topic)

    def update(self, member: Member, data: ConsumerData, keep_subscriptions: bool) -> bool:
        """Process a member's heartbeat; returns whether to notify the other members.

        ``keep_subscriptions``: the heartbeat has none (5.x), so the known ones remain.
        """
        known = self.members.get(member.connection.id)
        if not keep_subscriptions:
            member.subscribe({wish.topic: wish for wish in data.subscription_data_set})
        elif known is not None:
            member.subscribe(known.subscriptions)
        self.members[member.connection.id] = member
        self.message_model = data.message_model
        self.consume_type = data.consume_type
        self.consume_from_where = data.consume_from_where
        changed = known is None or known.client_id != member.client_id
        if known is None or known.versions != member.versions:
            changed |= self._merge({} if known is None else known.subscriptions, member.subscriptions)
            if known is not None:
                self._forget_keys(known)
            self._subscription_keys[member.subscription_keys] += 1
        else:
            member.subscriptions, member.subscription_keys = (
                known.subscriptions,
                known.subscription_keys,
            )  # one copy in memory
        return changed

    def remove(self, connection_id: int) -> bool:
        known = self.members.get(connection_id)
        if known is None:
            return False
        super().remove(connection_id)
        self._merge(known.subscriptions, {})
        self._forget_keys(known)
        return True

    def client_ids(self) -> list[str]:
        """Return the members' client ids without duplicates, in the order in which they joined."""
        return list(dict.fromkeys(member.client_id for member in self.members.values()))

    def _merge(self, before: Mapping[str, SubscriptionData], now: Mapping[str, SubscriptionData]) -> bool:
        """Change a member's subscriptions; returns whether topics were added or removed for it or for the group."""
        merged = self._merged
        self.generation += 1
        changed = False
        for topic, wish in now.items():
            known = merged.get(topic)
            if known is None:
                merged[topic] = wish
                changed = True
            elif wish.sub_version >= known.sub_version and topic not in self._unsettled:
                merged[topic] = wish
            elif known is before.get(topic):
                self._unsettled.add(topic)
        for topic, wish in before.items():
            if topic not in now:
                changed = True
                if merged.get(topic) is wish:
                    self._unsettled.add(topic)
        return changed

    def _settle(self, topic: str) -> None:
        self._unsettled.discard(topic)
        newest: SubscriptionData | None = None
        for member in self.members.values():
            wish = member.subscriptions.get(topic)
            if wish is not None and (newest is None or wish.sub_version >= newest.sub_version):
                newest = wish
        if newest is None:
            self._merged.pop(topic, None)
        else:
            self._merged[topic] = newest

    def _forget_keys(self, member: Member) -> None:
        self._subscription_keys[member.subscription_keys] -= 1
        if not self._subscription_keys[member.subscription_keys]:
            del self._subscription_keys[member.subscription_keys]

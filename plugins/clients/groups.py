"""The live members of consumer groups and of producer groups, by connection.

Source: RocketMQ 4.9.7 ``ConsumerManager``, ``ConsumerGroupInfo``, ``ProducerManager``. One thing differs: there the
last heartbeat replaces the whole group's subscriptions, so that members which differ take them from each other in
turns. Here a group wants what any of its members wants, and of two wishes for one topic the newer one counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs

from gantrymq.remoting.bodies import ConsumerData, SubscriptionData
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
    """When the last heartbeat came, in ms of the wall clock: administrators are shown it."""
    subscriptions: Mapping[str, SubscriptionData] = attrs.field(factory=dict)
    wishes: frozenset[tuple[str, str, str]] = frozenset()
    """The subscriptions in a form that can be compared. Retry topics say nothing of their own."""
    versions: Mapping[str, tuple[str, str, int, bool]] = attrs.field(factory=dict)
    """What is compared with the next heartbeat: tags follow from the expression, and comparing many takes long."""

    def subscribe(self, subscriptions: Mapping[str, SubscriptionData]) -> None:
        """What it wants from now on, by topic."""
        self.subscriptions = subscriptions
        self.versions = {
            topic: (wish.expression_type, wish.sub_string, wish.sub_version, wish.class_filter_mode)
            for topic, wish in subscriptions.items()
        }
        self.wishes = frozenset(
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
        """Take the member out; returns whether it was there."""
        return self.members.pop(connection_id, None) is not None


class ConsumerGroup(Group):
    """The members of a consumer group and what they want together."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.message_model = ""
        self.consume_type = ""
        self.consume_from_where = ""
        self.notify = True
        self.subscriptions: dict[str, SubscriptionData] = {}
        self.differs = False
        """Whether members want different things: each gets only a part of the messages of what it wants."""

    def update(self, member: Member, data: ConsumerData, keep_subscriptions: bool) -> bool:
        """Take a member's heartbeat; returns whether other members should know.

        ``keep_subscriptions``: the heartbeat says nothing of them (5.x), the ones known stay.
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
            changed |= self._merge()
        else:
            member.subscriptions, member.wishes = known.subscriptions, known.wishes  # one copy in memory
        return changed

    def remove(self, connection_id: int) -> bool:
        removed = super().remove(connection_id)
        if removed:
            self._merge()
        return removed

    def client_ids(self) -> list[str]:
        """The members' client ids, each once, in the order in which they came."""
        return list(dict.fromkeys(member.client_id for member in self.members.values()))

    def _merge(self) -> bool:
        merged: dict[str, SubscriptionData] = {}
        for member in self.members.values():
            for topic, wish in member.subscriptions.items():
                if topic not in merged or wish.sub_version >= merged[topic].sub_version:
                    merged[topic] = wish
        changed = merged.keys() != self.subscriptions.keys()
        self.subscriptions = merged
        self.differs = len({member.wishes for member in self.members.values()}) > 1
        return changed

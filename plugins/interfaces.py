"""The protocols of the objects that plugins offer each other.

A plugin never imports a sibling: it asks the registry (``broker.registry``) for a protocol of this module, and whoever
provides it answers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from gantrymq.remoting.bodies.clients import SubscriptionData
from gantrymq.remoting.bodies.groups import SubscriptionGroupConfig
from gantrymq.remoting.bodies.topics import TopicConfig

if TYPE_CHECKING:
    from gantrymq.kernel.network.connection import Connection
    from gantrymq.remoting.epoch import Epoch
    from gantrymq.remoting.headers.send import SendMessageHeader


S = TypeVar("S")


class TopicTable(Protocol):
    """The topics of this broker (plugin ``topics``)."""

    @property
    def broker_perm(self) -> int:
        """What this broker lets clients do at all: ``PERM_READ``, ``PERM_WRITE``, both."""

    def get(self, topic: str) -> TopicConfig | None:
        """The topic's configuration, or None."""

    def for_send(
        self, topic: str, default_topic: str, default_queues: int, unit_mode: bool = False
    ) -> TopicConfig | None:
        """As ``get``, and created on first use when ``default_topic`` allows it (or it is a retry topic).

        The sender's ``unit_mode`` marks what is created.

        ``RemoteFault`` for an illegal name, for the retry topic of an unknown group, for one topic too many.
        """

    def ensure(self, config: TopicConfig) -> TopicConfig:
        """Create the topic unless it exists; returns what is there now. ``RemoteFault`` as ``for_send``."""

    def refuses_sends(self, topic: str) -> bool:
        """Whether clients may not send to this (system) topic."""

    def names(self) -> list[str]:
        """The topics that there are."""

    def set_ordered(self, topics: Collection[str]) -> None:
        """These are the ordered topics, and no others: ``order`` in their configurations."""

    def adopt(self, body: bytes, log_end: int = 0) -> bool:
        """Have a master's topics, from its answer to GET_ALL_TOPIC_CONFIG; False when they were known already.

        ``log_end``: where this log ended when the master was asked. Messages before it, of topics that were deleted
        there, are deleted here too.
        """


class GroupTable(Protocol):
    """The consumer groups of this broker (plugin ``topics``)."""

    def find(self, group: str) -> SubscriptionGroupConfig | None:
        """The group's configuration, created on first use where that is allowed."""

    def names(self) -> list[str]:
        """The groups that there are."""

    def adopt(self, body: bytes) -> bool:
        """Have a master's groups, from its answer to GET_ALL_SUBSCRIPTIONGROUP_CONFIG; False when they were known."""


class GroupMember(Protocol):
    """One client in one consumer group; ``version`` is RocketMQ's ordinal of the client library."""

    connection: Connection
    client_id: str
    version: int


class ConsumerGroups(Protocol):
    """The live consumers (plugin ``clients``)."""

    @property
    def changes(self) -> int:
        """How often subscriptions changed, or members left: as long as it stays, nothing did."""

    def groups(self) -> list[str]:
        """The groups that have a member here."""

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """What the group last said it wants of ``topic``."""

    def message_model(self, group: str) -> str | None:
        """``CLUSTERING`` or ``BROADCASTING``; None when nobody of the group is here."""

    def client_ids(self, group: str) -> list[str]:
        """The ids of the group's members."""

    def members_of(self, group: str) -> Sequence[GroupMember]:
        """The group's members, by whose connections they can be asked."""

    def subscriptions_of(self, group: str) -> Mapping[str, SubscriptionData]:
        """What the group wants, by topic; empty when nobody of it is here."""

    def groups_of(self, topic: str) -> list[str]:
        """The live groups that subscribe to ``topic``."""


class QueueLocks(Protocol):
    """Which member of a group with orderly consumers has which queue (plugin ``locks``)."""

    def member_left(self, group: str, client_id: str, connection_id: int) -> None:
        """The client unregistered from the consumer group over this connection: it gives its queues back."""


class ProducerGroups(Protocol):
    """The live producers (plugin ``clients``)."""

    def producers_of(self, group: str) -> Sequence[GroupMember]:
        """The members of the producer group ``group``, by whose connections they can be asked."""

    def connection_of(self, client_id: str) -> Connection | None:
        """The connection of the producer with this client id, the newest one if it has several."""


class SendRules(Protocol):
    """What a message must be that a client sends, and what each answer to it says (plugin ``produce``)."""

    @property
    def answer_fields(self) -> Mapping[str, str]:
        """The header fields that every answer to a sender has: MSG_REGION and TRACE_ON. Not to be changed."""

    def check_topic(self, header: SendMessageHeader) -> TopicConfig:
        """The message's topic, created on first use where that is allowed.

        ``RemoteFault`` with RocketMQ's code when clients may not send to it, or not to this queue.
        """

    def traits_of(self, properties: bytes) -> int:
        """What the encoded properties ask for beyond storing: bits of ``batch.Trait``."""


class ConsumerOffsets(Protocol):
    """How far each group has consumed (plugin ``offsets``)."""

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Note that the group goes on at ``offset``."""

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        """Where the group goes on, or None when it never committed."""

    def queues_of(self, group: str, topic: str) -> Mapping[int, int]:
        """Where the group goes on, by queue; empty when it never committed. Not to be changed."""

    def topics_of(self, group: str) -> list[str]:
        """The topics in which the group has committed."""

    def groups_of(self, topic: str) -> list[str]:
        """The groups that have committed in ``topic``."""

    def forget_group(self, group: str) -> None:
        """The group is gone: it goes on nowhere."""

    def forget_topic(self, topic: str) -> None:
        """The topic is gone: no group goes on in it, should the name come back."""


class LevelPositions(Protocol):
    """How far the delay levels are delivered (plugin ``delay``)."""

    def adopt(self, body: bytes) -> None:
        """On a slave: they are as far as its master says, in its answer to GET_ALL_DELAY_OFFSET."""


class RouteChanges(Protocol):
    """Who tells the nameservers (plugin ``register``)."""

    def topic_changed(self, topic: str) -> None:
        """The topic was created or changed: routes should know soon."""


class Registration(Protocol):
    """Whether the nameservers know this broker (plugin ``register``)."""

    async def wait_first(self, timeout: float) -> bool:
        """Wait until each nameserver was tried once, ``timeout`` seconds at most; whether any knows this broker."""


class Replication(Protocol):
    """Who keeps copies on slaves, or is one (plugin ``ha``)."""

    @property
    def ha_address(self) -> str:
        """Where slaves find this broker's log; empty on a slave."""

    @property
    def epoch(self) -> Epoch:
        """Of which epoch this broker is the master; of a slave the highest that it knows."""

    @property
    def fenced(self) -> str:
        """Why this master may not be one any more, since another was promoted; empty while it may."""

    def master_is(self, broker: str, ha: str) -> None:
        """A nameserver says where the master serves clients, and where slaves find its log; empty: it knows none."""

    def learn_epoch(self, epoch: Epoch, source: str) -> None:
        """``source``, a nameserver or a broker of this name, says that ``epoch`` has begun."""

    @property
    def beat(self) -> float:
        """How often the nameservers are to be asked for the epoch, in seconds."""

    @property
    def has_lease(self) -> bool:
        """Whether this broker has heard from anybody lately who would know of a promotion."""

    def nameserver_answered(self, asked_at: float) -> None:
        """A nameserver has answered what was asked at this time of the monotonic clock; it knows of no other master."""

    def send_epoch(self, address: str) -> None:
        """Tell the broker of this name at ``address`` of this master's epoch, soon."""


class MessageIndex(Protocol):
    """Finds messages by key (plugin ``index``)."""

    def find(self, topic: str, key: str, begin: int, end: int) -> Iterator[int]:
        """Log offsets, newest first, of messages that may have ``key``, stored from ``begin`` to ``end``, each once.

        Times are ms since 1970. They are hints: the caller looks at the message. Bounded work; from any thread.
        """

    def last(self) -> tuple[int, int]:
        """Store timestamp (ms) and log offset of the newest message that has a key; zeros without one."""

    async def wait_level(self) -> None:
        """Wait until no message is missing that was dispatched before."""


class Statistics(Protocol):
    """What is counted (plugin ``stats``). Names and keys are RocketMQ's: ``Stats``, ``BrokerStatsManager``."""

    def add(self, name: str, key: str, value: int, times: int = 1) -> None:
        """Count ``value`` that came in ``times`` events, under ``key`` of the statistic ``name``."""

    def pulled(self, group: str, topic: str, queue_id: int, messages: int, size: int) -> None:
        """A pull was answered with ``messages`` messages of ``size`` bytes; 0 messages: it found nothing."""

    def waited(self, group: str, topic: str, queue_id: int, seconds: float) -> None:
        """A pull was answered so much later than it came: its messages came from the disk, or others had their turn."""

    def consume_tps(self, group: str, topic: str) -> float:
        """Messages a second that the group got of the topic, over the last minute."""


class LiveSettings(Protocol):
    """What administrators may change while the broker runs (plugin ``admin``)."""

    def update(self, body: bytes) -> list[str]:
        """Put what ``body`` (properties) says in force and keep it, as for an administrator; what has changed.

        ``RemoteFault`` (code 1) for what is not allowed; then nothing has changed.
        """

    def allow(self, section: str, current: S, keys: Collection[str], change: Callable[[S], None]) -> None:
        """They may change these ``keys`` of the section (``plugin.topics``), whose values are ``current`` (attrs).

        A change is checked like one in the file; ``change`` then puts the section's new values in force, or refuses
        them with a ``RemoteFault``.
        """


class Retention(Protocol):
    """Who deletes what is too old."""

    def delete_expired(self) -> None:
        """Delete now what would be deleted at the hour set for it."""

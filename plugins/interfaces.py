"""The protocols of the objects that plugins offer each other.

A plugin never imports another plugin: it requests a protocol of this module from the registry (``broker.registry``) and
gets the object of the plugin that provides it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from gantrymq.remoting.bodies.clients import SubscriptionData
from gantrymq.remoting.bodies.groups import SubscriptionGroupConfig
from gantrymq.remoting.bodies.topics import TopicConfig

if TYPE_CHECKING:
    from ssl import SSLContext

    from trio import SocketStream

    from gantrymq.kernel.config.sections import Config
    from gantrymq.kernel.metrics import Metrics
    from gantrymq.kernel.network.connection import Connection
    from gantrymq.remoting.epoch import Epoch
    from gantrymq.remoting.headers.send import SendMessageHeader


S = TypeVar("S")


class TopicTable(Protocol):
    """The topics of this broker (plugin ``topics``)."""

    @property
    def broker_perm(self) -> int:
        """The permission of this broker for clients: ``PERM_READ``, ``PERM_WRITE``, or both."""

    def get(self, topic: str) -> TopicConfig | None:
        """Return the topic's configuration, or None."""

    def for_send(
        self, topic: str, default_topic: str, default_queues: int, unit_mode: bool = False
    ) -> TopicConfig | None:
        """As ``get``, but created on first use if ``default_topic`` allows it (or it is a retry topic).

        The sender's ``unit_mode`` marks what is created.

        ``RemoteFault`` for an illegal name, for the retry topic of an unknown group, and beyond the limit of topics.
        """

    def ensure(self, config: TopicConfig) -> TopicConfig:
        """Create the topic unless it exists; returns its configuration. ``RemoteFault`` as ``for_send``."""

    def ensure_queues(self, config: TopicConfig) -> TopicConfig:
        """As ``ensure``; an existing topic with fewer queues gets those that it lacks, and keeps everything else."""

    def watch_created(self, listener: Callable[[TopicConfig], None]) -> None:
        """Call ``listener`` with each topic that its first message creates from now on, but not with retry topics."""

    def refuses_sends(self, topic: str) -> bool:
        """Return whether clients may not send to this topic: a system topic, or one that a plugin has reserved."""

    def reserve(self, topic: str) -> None:
        """Refuse messages of clients for a topic to which only its plugin writes, and its deletion; call it while
        plugins register."""

    def names(self) -> list[str]:
        """Return the names of all topics."""

    def set_ordered(self, topics: Collection[str]) -> None:
        """Set the ordered topics (``order`` in their configurations); all others are not ordered."""

    def adopt(self, body: bytes, log_end: int = 0) -> bool:
        """Adopt a master's topics from its response to GET_ALL_TOPIC_CONFIG; False if they were known already.

        ``log_end``: the end of this log at the time of the request. Messages before it, of topics that the master has
        deleted, are deleted here too, and so are the groups' offsets in these topics.
        """


class GroupTable(Protocol):
    """The consumer groups of this broker (plugin ``topics``)."""

    def find(self, group: str) -> SubscriptionGroupConfig | None:
        """Return the group's configuration, created on first use if that is allowed."""

    def names(self) -> list[str]:
        """Return the names of all groups."""

    def adopt(self, body: bytes) -> bool:
        """Adopt a master's groups from its response to GET_ALL_SUBSCRIPTIONGROUP_CONFIG; False if they were known
        already."""


class GroupMember(Protocol):
    """One client in one consumer group; ``version`` is RocketMQ's ordinal of the client library."""

    connection: Connection
    client_id: str
    version: int


class ConsumerGroups(Protocol):
    """The live consumers (plugin ``clients``)."""

    def groups(self) -> list[str]:
        """Return the groups with a connected member."""

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """Return the group's newest subscription to ``topic``."""

    def message_model(self, group: str) -> str | None:
        """``CLUSTERING`` or ``BROADCASTING``; None if the group has no connected member."""

    def client_ids(self, group: str) -> list[str]:
        """Return the ids of the group's members."""

    def members_of(self, group: str) -> Sequence[GroupMember]:
        """Return the group's members with their connections."""

    def subscriptions_of(self, group: str) -> Mapping[str, SubscriptionData]:
        """Return the group's subscriptions by topic; empty if it has no connected member."""

    def groups_of(self, topic: str) -> list[str]:
        """Return the live groups that subscribe to ``topic``."""


class QueueLocks(Protocol):
    """The queue locks of orderly consumers (plugin ``locks``)."""

    def member_left(self, group: str, client_id: str, connection_id: int) -> None:
        """The client unregistered from the consumer group over this connection: release its locks."""


class ProducerGroups(Protocol):
    """The live producers (plugin ``clients``)."""

    def producers_of(self, group: str) -> Sequence[GroupMember]:
        """Return the members of the producer group ``group`` with their connections."""

    def connection_of(self, client_id: str) -> Connection | None:
        """Return the connection of the producer with this client id, the newest one if it has several."""


class SendRules(Protocol):
    """The rules for messages from clients, and the fields of their responses (plugin ``produce``)."""

    @property
    def response_fields(self) -> Mapping[str, str]:
        """The header fields of every response to a sender: MSG_REGION and TRACE_ON. Do not change them."""

    def check_topic(self, header: SendMessageHeader) -> TopicConfig:
        """Return the message's topic, created on first use if that is allowed.

        ``RemoteFault`` with RocketMQ's code if clients may not send to it, or not to this queue.
        """

    def traits_of(self, properties: bytes) -> int:
        """Return the traits that the encoded properties request: bits of ``batch.Trait``."""


class ConsumerOffsets(Protocol):
    """The offsets of consumer groups (plugin ``offsets``)."""

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set the group's offset."""

    def check_room(self, group: str, topic: str) -> None:
        """``RemoteFault`` if this is a new pair beyond the limit, whose offsets are not stored."""

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the group's offset, or None if it never committed."""

    def queues_of(self, group: str, topic: str) -> Mapping[int, int]:
        """Return the group's offsets by queue; empty if it never committed. Do not change the result."""

    def topics_of(self, group: str) -> list[str]:
        """Return the topics in which the group has committed offsets."""

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have committed offsets in ``topic``; takes as long as :meth:`pairs`."""

    def pairs(self) -> Collection[tuple[str, str]]:
        """Return every pair of topic and group with an offset."""

    def forget(self, group: str, topic: str) -> None:
        """Remove the group's offsets in the topic."""

    def forget_group(self, group: str) -> None:
        """Remove the offsets of a deleted group."""

    def forget_topic(self, topic: str) -> None:
        """Remove the offsets in a deleted topic, in case the name is used again."""


class LevelPositions(Protocol):
    """The delivered offsets of the delay levels (plugin ``delay``)."""

    def adopt(self, body: bytes) -> None:
        """On a slave: adopt the master's offsets from its response to GET_ALL_DELAY_OFFSET."""

    def report(self) -> bytes:
        """Return the body of a response to GET_ALL_DELAY_OFFSET."""

    def set_back(self, table: Mapping[int, int]) -> None:
        """Before the first delivery: set each level's offset to that in ``table``, or to 0, if it is higher."""


class TimerProgress(Protocol):
    """The progress of the master's timer, on a slave (plugin ``delay``)."""

    def adopt_timer(self, body: bytes, log_end: int) -> None:
        """Adopt the master's response to GET_TIMER_CHECK_POINT.

        ``log_end``: an offset before which the log has every delivery that the checkpoint counts. This broker's log
        must be equal to the master's and durable up to there. :class:`RemoteFault` for an invalid body.
        """


class Registration(Protocol):
    """Whether the nameservers know this broker and its topics (plugin ``register``)."""

    async def wait_first(self, timeout: float) -> bool:
        """Wait until each nameserver was tried once, at most ``timeout`` seconds; returns whether any has registered
        this broker."""

    async def wait_current(self, timeout: float) -> None:
        """Wait until each nameserver with which this broker is registered has its topics as they are now, at most
        ``timeout`` seconds."""


class Replication(Protocol):
    """The replication of this broker (plugin ``ha``)."""

    @property
    def ha_address(self) -> str:
        """Where slaves find this broker's log; empty on a slave."""

    @property
    def epoch(self) -> Epoch:
        """The epoch of this master; on a slave the highest known epoch."""

    @property
    def fenced(self) -> str:
        """Why this master is fenced, since another one was promoted; empty while it is not."""

    @property
    def returns_as_slave(self) -> bool:
        """Whether this master starts again as a slave by itself when it is fenced."""

    def master_is(self, broker: str, ha: str) -> None:
        """A nameserver says where the master serves clients, and where slaves find its log; empty: it knows none."""

    def learn_epoch(self, epoch: Epoch, source: str) -> None:
        """``source``, a nameserver or a broker of this name, says that ``epoch`` has begun."""

    @property
    def epoch_query_interval(self) -> float:
        """The interval in which the nameservers are queried for the epoch, in seconds."""

    @property
    def has_lease(self) -> bool:
        """Whether the lease of this master is valid: one that would know of a promotion has responded lately."""

    def nameserver_answered(self, asked_at: float) -> None:
        """A nameserver has answered what was asked at this time of the monotonic clock; it knows of no other master."""

    def send_epoch(self, address: str) -> None:
        """Tell the broker of this name at ``address`` of this master's epoch, soon."""


class MessageIndex(Protocol):
    """Finds messages by key (plugin ``index``)."""

    def find(self, topic: str, key: str, begin: int, end: int) -> Iterator[int]:
        """Distinct log offsets, newest first, of messages that may have ``key`` and were stored from ``begin`` to
        ``end``.

        Times are ms since 1970. Results are hints: the caller must check the message. The work is limited; any thread
        may call it.
        """

    def last(self) -> tuple[int, int]:
        """Store timestamp (ms) and log offset of the newest message with a key; zeros without one."""

    async def wait_caught_up(self) -> None:
        """Wait until all messages that were dispatched before are in the index."""


class Statistics(Protocol):
    """Statistics (plugin ``stats``). Names and keys are RocketMQ's: ``Stats``, ``BrokerStatsManager``."""

    def add(self, name: str, key: str, value: int, times: int = 1) -> None:
        """Count ``value`` from ``times`` events under ``key`` of the statistic ``name``."""

    def pulled(self, group: str, topic: str, queue_id: int, messages: int, size: int, next_offset: int = -1) -> None:
        """A pull was answered with ``messages`` messages of ``size`` bytes; 0 messages: it found nothing.

        ``next_offset``: where the group continues in the queue; -1 if that is not known.
        """

    def pulled_to(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return where the group continues in the queue after its last pull that found messages.

        None if it has pulled none since the broker's start, or too many others have since.
        """

    def waited(self, group: str, topic: str, queue_id: int, seconds: float) -> None:
        """A pull was answered this much later than it arrived, because its messages were on the disk or others had
        their turn."""

    def consume_tps(self, group: str, topic: str) -> float:
        """Messages per second that the group got from the topic, over the last minute."""


class LiveSettings(Protocol):
    """Settings that administrators can change while the broker runs (plugin ``admin``)."""

    def update(self, body: bytes) -> list[str]:
        """Apply and store the settings in ``body`` (properties), as for an administrator.

        Returns the names of the settings that have changed.

        ``RemoteFault`` (code 1) for a change that is not allowed; then nothing has changed.
        """

    def reload(self, config: Config) -> tuple[list[str], list[str]]:
        """Apply the settings of ``config`` that differ and may change now.

        Returns their names, and the names of the other settings that differ, which need a restart. ``RemoteFault``
        (code 1) if a plugin refuses a value; then nothing has changed.
        """

    def allow(
        self,
        section: str,
        current: S,
        keys: Collection[str],
        change: Callable[[S], None],
        check: Callable[[S], Awaitable[None]] | None = None,
    ) -> None:
        """Allow administrators to change these ``keys`` of the section (``plugin.topics``).

        ``current`` has the values of the section (attrs).

        A change is validated like a value in the file; ``change`` then applies the section's new values, or refuses
        them with a ``RemoteFault``. Before that, a request waits for ``check``, which may refuse them too.
        """


class Health(Protocol):
    """The state of the broker for load balancers, systemd and people (plugin ``http``)."""

    def add(self, name: str, condition: Callable[[], str]) -> None:
        """Add a condition under which clients cannot work with this broker: ``condition`` returns the reason, or an
        empty text. It is called for each request, so it must be quick."""

    def not_alive(self) -> dict[str, str]:
        """Return the reasons, by name, that only a restart of the process removes; empty while it works."""

    def not_ready(self) -> dict[str, str]:
        """Return the reasons, by name, for which clients cannot work with this broker; those of :meth:`not_alive`
        too."""

    def degraded(self) -> dict[str, str]:
        """Return what does not work although clients can work with this broker, by name."""


class HttpPages(Protocol):
    """The pages at the address of the plugin ``http``."""

    @property
    def address(self) -> str:
        """Where the pages are served, ``host:port``; empty while they are not."""

    def add(self, path: str, page: Callable[[str], Awaitable[tuple[int, str, bytes]]]) -> None:
        """Add a page. ``page`` takes the header ``Accept`` of a request; it returns status, media type and body."""


class EncryptedStream(Protocol):
    """A stream of :class:`Encryption`; it also has the methods of trio's streams."""

    @property
    def is_plain(self) -> bool:
        """Whether the peer's first byte was plain text; then the stream that was given may be used as well."""

    @property
    def refused(self) -> str:
        """Why the connection ended before its first byte, if TLS was the reason."""

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Receive bytes as trio's streams do. The first call also does the handshake."""

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes as trio's streams do; only after bytes were received."""

    async def send_eof(self) -> None:
        """Let the peer know that nothing more follows."""

    async def aclose(self) -> None:
        """Close the connection."""


class Encryption(Protocol):
    """TLS for ports of other plugins (plugin ``tls``); without a provider they speak plain text."""

    def wrap(self, stream: SocketStream, port: str) -> EncryptedStream | None:
        """The stream to use for an accepted connection, None if the port speaks plain text.

        ``port``: what the log calls it. Plain text or TLS as the peer's first byte and ``plugin.tls.mode`` say; the
        peer must send first. ``OSError`` if the peer has reset the connection.
        """

    def encrypts(self, port: str) -> bool:
        """Whether the port serves TLS; with ``plugin.tls.mode = "permissive"`` plain connections too."""

    def client_context(self) -> SSLContext | None:
        """The context for connections to other brokers; None: they are plain."""


class FurtherMetrics(Protocol):
    """Metrics of what runs beside the broker in its process: the nameserver of ``gantrymq serve``."""

    def collect_metrics(self, metrics: Metrics) -> None:
        """As the hook ``collect_metrics``."""


class RefusalLog(Protocol):
    """A record of connections that were refused before their first request (plugin ``audit``)."""

    def connection_refused(self, request: str, address: str, port: str, reason: str) -> None:
        """Record a refusal; equal ones are merged, so it may be called often.

        ``request``: ``TLS_HANDSHAKE`` or ``SLAVE_CONNECTION`` (:mod:`gantrymq.remoting.audit_events`). ``address``:
        ``host:port`` of the peer. ``port``: what the log calls the port. ``reason``: a text without secrets.
        """


class Retention(Protocol):
    """Deletion of expired messages."""

    def delete_expired(self) -> None:
        """Delete now what would be deleted at the configured hour."""

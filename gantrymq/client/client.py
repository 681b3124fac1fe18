"""A client of one cluster: its connections, routes and heartbeats, and the producers and consumers that share them."""

from __future__ import annotations

import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import cached_property
from typing import Any, Final, Literal, Unpack, overload

import attrs

from gantrymq.client.accumulator import BATCH_BYTES, BUFFER_BYTES, Accumulator
from gantrymq.client.admin import Admin
from gantrymq.client.cluster import Cluster
from gantrymq.client.connect_options import ConnectOptions
from gantrymq.client.consumer import Consumer
from gantrymq.client.intercepted import (
    InterceptedConsumer,
    InterceptedProducer,
    InterceptedTransactionalProducer,
    Outbound,
)
from gantrymq.client.interceptors import Interceptor, Interceptors
from gantrymq.client.lifetime import Lifetime
from gantrymq.client.message_trace import MessageTrace, trace_of
from gantrymq.client.namespace import plain_topics
from gantrymq.client.options import (
    ConsumeOptions,
    ConsumerOptions,
    ConsumerSettings,
    R,
    ReaderSettings,
    ReadOptions,
    Topics,
    WorkerSettings,
    WorkOptions,
    lists_options,
)
from gantrymq.client.producer import SEND_RETRIES, SEND_TIMEOUT_SECONDS, Producer
from gantrymq.client.reader import Reader, make_reader
from gantrymq.client.sender import Sender
from gantrymq.client.serializers import DeserializerChoice, SerializerChoice, TypedDeserializer, V, serializer_of
from gantrymq.client.transactions import (
    CHECKS_AT_ONCE,
    Check,
    Local,
    TransactionalProducer,
)
from gantrymq.client.worker import Handler, Worker, message_class
from gantrymq.message import DeliveredRecord, ReceivedMessage
from gantrymq.remoting.tasks import hosted_tasks

DEFAULT_PRODUCER_GROUP: Final = "GANTRYMQ_PRODUCER"


class Client(Lifetime):
    """The client that :func:`connect` returns: it makes producers, consumers and readers, and ends those that are left.

    Before its block begins and after it has ended all calls raise :class:`ClientClosed`.
    """

    def __init__(
        self, options: ConnectOptions, interceptors: Sequence[Interceptor] = (), trace: MessageTrace | None = None
    ) -> None:
        if not isinstance(options, ConnectOptions):
            raise TypeError("gantrymq.connect() makes clients: async with gantrymq.connect('127.0.0.1:9876') as client")
        super().__init__("client")
        self._options = options
        self._trace = trace
        members = interceptors if trace is None else (*interceptors, trace)
        self._interceptors = Interceptors(members) if members else None
        self._running: Cluster | None = None
        self._ends_first: set[Lifetime] = set()
        self._workers: set[Worker[Any]] = set()

    @property
    def _cluster(self) -> Cluster:
        if self._running is None:
            raise self._closed_error()
        return self._running

    @cached_property
    def admin(self) -> Admin:
        """The administrative requests of this client."""
        return Admin(self._cluster)

    @property
    def client_id(self) -> str:
        """The id under which brokers know this client."""
        return self._cluster.client_id

    def producer(
        self,
        group: str = DEFAULT_PRODUCER_GROUP,
        *,
        timeout: float = SEND_TIMEOUT_SECONDS,
        retries: int = SEND_RETRIES,
        retry_when_not_stored: bool = False,
        linger: float = 0.0,
        batch_bytes: int = BATCH_BYTES,
        buffer_bytes: int = BUFFER_BYTES,
        serializer: SerializerChoice | None = None,
    ) -> Producer:
        """Return a producer of the producer group ``group``. The end of its block sends all enqueued messages.

        - ``timeout`` (seconds): the bound of one send with all its attempts. ``retries``: how many attempts may follow
          the first one.
        - ``retry_when_not_stored``: a message whose status is not OK is sent to another broker as well, if there is
          one.
        - ``linger`` (seconds): how long an enqueued message waits for others of its queue, until their batch has
          ``batch_bytes``, 1 to 4,194,304.
        - ``buffer_bytes``: the limit of enqueued messages without an acknowledgment, each of which counts 256 bytes
          beside its size; ``enqueue`` waits while the buffer is full.
        - ``serializer``: makes bodies of objects: ``"str"``, ``"json"``, ``"msgpack"`` or a function. Without it bodies
          are bytes.

        Raises ValueError for an invalid ``timeout``, ``linger``, ``batch_bytes``, ``buffer_bytes`` or ``serializer``.
        The beginning of the block raises :class:`InvalidName` for the group.
        """
        sender = Sender(self._cluster, self._real_group(group), timeout, retries, retry_when_not_stored)
        accumulator = Accumulator(sender, self._cluster.connections.loop, linger, batch_bytes, buffer_bytes)
        outbound = self._outbound(sender.group, serializer)
        if outbound is None:
            return Producer(self._cluster, sender, accumulator).ends_with(self._ends_first)
        return InterceptedProducer(self._cluster, sender, accumulator, outbound).ends_with(self._ends_first)

    def _outbound(self, group: str, serializer: SerializerChoice | None) -> Outbound | None:
        serialize = None if serializer is None else serializer_of(serializer)
        if serialize is None and self._interceptors is None:
            return None
        return Outbound(self._cluster, group, serialize, self._interceptors)

    def transactional_producer(
        self,
        group: str,
        *,
        check: Check,
        local: Local | None = None,
        topics: Iterable[str] = (),
        timeout: float = SEND_TIMEOUT_SECONDS,
        retries: int = SEND_RETRIES,
        checks_at_once: int = CHECKS_AT_ONCE,
        serializer: SerializerChoice | None = None,
    ) -> TransactionalProducer:
        """Return a producer of messages that consumers see only when the local branch of their transaction succeeded.

        ``local`` is the branch of sends that give none of their own. ``check`` is called with the half message when a
        broker checks back with the producer group ``group``: after a producer died, or with an UNKNOWN outcome; at most
        ``checks_at_once`` run at the same time, and 2,000 more wait. Both are functions or coroutine functions that
        return an :class:`Outcome`. The brokers of ``topics`` can check back before the first send. ``timeout``
        (seconds), ``retries`` and ``serializer`` are those of :meth:`producer`; the branch gets a message as it was
        given.

        Raises ValueError for an invalid ``timeout`` or ``serializer``. The beginning of the block raises
        :class:`InvalidName` for the group, and :class:`GantryError` when this client already has a transactional
        producer of that group.
        """
        sender = Sender(self._cluster, self._real_group(group), timeout, retries)
        outbound = self._outbound(sender.group, serializer)
        if outbound is None:
            opened = TransactionalProducer(self._cluster, sender, local, check, topics, checks_at_once)
        else:
            opened = InterceptedTransactionalProducer(self._cluster, sender, local, check, topics, checks_at_once)
            opened.outbound = outbound
        return opened.ends_with(self._ends_first)

    @overload
    def consumer(
        self, topics: Topics, group: str, *, deserializer: Literal["str"], **options: Unpack[ConsumeOptions]
    ) -> Consumer[ReceivedMessage[str]]: ...
    @overload
    def consumer(
        self, topics: Topics, group: str, *, deserializer: TypedDeserializer[V], **options: Unpack[ConsumeOptions]
    ) -> Consumer[ReceivedMessage[V]]: ...
    @overload
    def consumer(
        self,
        topics: Topics,
        group: str,
        *,
        deserializer: DeserializerChoice | None = None,
        **options: Unpack[ConsumeOptions],
    ) -> Consumer[ReceivedMessage]: ...
    @lists_options
    def consumer(
        self,
        topics: Topics,
        group: str,
        *,
        deserializer: DeserializerChoice | None = None,
        **options: Unpack[ConsumeOptions],
    ) -> Consumer[ReceivedMessage]:
        """Return a member of the consumer group ``group``, which it is from the beginning to the end of its block.

        ``topics`` is one topic, several, or a mapping of topics to tags or :class:`Sql`. ``tags`` selects by tag
        (``"a || b"``) or by :class:`Sql`; every member of a group must give the same. ``start`` counts only where
        the group has no offset yet: ``"last"`` is the next message to come, ``"first"`` the oldest one.

        - ``ordered``: the messages of a queue are delivered one at a time, the next when the one before is settled, and
          no other member has the queue meanwhile; ``retry`` pauses the queue for a second. With ``"key"`` the unit is
          not the queue but the ``order_key``.
        - ``broadcast``: every member gets every message; offsets are in ``offsets_file`` on this machine, by default
          ``.rocketmq_offsets/ADDRESS@DEFAULT[@UNIT]/GROUP/offsets.json`` in the user's home, as with RocketMQ's
          clients.
        - ``max_retries``: how often a message is redelivered before it is a dead letter; without it the group's
          configuration decides (16), and with ``ordered`` there is no limit.
        - ``pull_batch``: messages of one request, 1 to 1,024. ``prefetch``: outstanding messages of a queue, 1 to
          65,535, without it 1,000; the last request may exceed it by one batch, and asks for no more than ``prefetch``.
        - ``consume_timeout`` (seconds, or a timedelta): a message that the application has had for so long is returned
          for redelivery; without it there is no limit. Not with ``ordered`` or ``broadcast``.
        - ``allocation``: how the group shares queues out: ``"average"``, ``"circle"``, ``"consistent_hash"``, or one of
          ``gantrymq.client.allocation``; every member must have the same.
        - ``on_assigned``, ``on_revoked``: called with queues that have come, or are about to go; what is acknowledged
          in ``on_revoked`` counts. Functions or coroutine functions.
        - ``deserializer``: what makes :attr:`ReceivedMessage.value` of a body: ``"str"``, ``"json"``, ``"msgpack"``, a
          type to decode the JSON bodies into, or a function. A message whose body it cannot read is never given out: it
          becomes a dead letter, or with ``bad_bodies="retry"`` is redelivered, as after ``retry()``. If the body's
          compressor is not installed, the iteration raises :class:`CompressorMissing`, and the message is not done.

        Raises :class:`InvalidName` for a topic, the group or a subscription, ValueError for an invalid option, and
        TypeError for an unknown one. The beginning of the block raises :class:`GantryError` when this client already
        has a consumer of that group or cannot read the ``offsets_file``, :class:`InvalidName` when a broker refuses an
        :class:`Sql`, :class:`AllocationFailed`, :class:`AccessDenied` and :class:`NotANameserver`; it does not raise
        other failures to reach brokers, which are logged and tried again.
        """
        settings = ConsumerSettings.checked(options, deserializer)
        return self.consumer_of(ReceivedMessage, topics, group, settings)

    def consumer_of(self, make: type[R], topics: Topics, group: str, settings: ConsumerSettings) -> Consumer[R]:
        """As :meth:`consumer`, with messages of the class ``make``."""
        return self._new_consumer(make, topics, group, settings).ends_with(self._ends_first)

    def _worker_of(
        self, make: type[R], handler: Callable[..., Any], topics: Topics, group: str, settings: WorkerSettings
    ) -> Worker[R]:
        """A worker for :meth:`_run_worker`, whose handler takes messages of the class ``make``."""
        return Worker(self._new_consumer(make, topics, group, settings.consumer), handler, settings)

    def _new_consumer(self, make: type[R], topics: Topics, group: str, settings: ConsumerSettings) -> Consumer[R]:
        now = int(time.time() * 1000)
        topics, group = plain_topics(self._cluster.namespace, topics), self._real_group(group)
        options = ConsumerOptions.checked(topics, group, make, now, settings)
        if settings.deserialize is None and self._interceptors is None:
            return Consumer(self._cluster, options)
        return InterceptedConsumer(self._cluster, options, self._interceptors)

    @lists_options
    async def run(
        self,
        handler: Handler,
        topics: Topics,
        group: str,
        *,
        deserializer: DeserializerChoice | None = None,
        signals: bool | None = None,
        **options: Unpack[WorkOptions],
    ) -> None:
        """Call ``handler`` with each message of ``topics``, as a member of ``group``, until SIGTERM or SIGINT.

        It handles ``concurrency`` messages, 1 to 1,000, at once. Plain functions run in threads, where the methods of
        the message block, as those of :class:`gantrymq.sync.ReceivedMessage`. A message is done when the handler
        returns. When it raises, the error is logged and the message is redelivered after the broker's delay,
        ``max_retries`` times, then it is a dead letter; with :class:`RetryLater` and :class:`DeadLetter` the handler
        chooses.

        With ``ordered=True`` the messages of a queue are handled one after another, with ``ordered="key"`` those of an
        ``order_key``; the other options, and ``deserializer``, are those of :meth:`consumer`.

        At the signal, or when another task closes the client, the worker takes no further message; running handlers get
        ``drain_timeout`` seconds, then it commits the offsets. Only the main thread gets signals. Without ``signals``
        the worker leaves them to the application, or its server, if that has a handler of SIGTERM
        (``signals_left_to_application``); with False always, with True never. Cancellation does not wait for handlers.

        Raises what :meth:`consumer` and the beginning of its block raise, and TypeError for a handler that is no
        function; later :class:`AccessDenied` when a broker refuses the client's credentials,
        :class:`CompressorMissing` when the compressor of a body is not installed, and :class:`ClientClosed` after an
        internal error of the client.
        """
        settings = WorkerSettings.checked(options, deserializer)
        worker = self._worker_of(message_class(handler), handler, topics, group, settings)
        await self._run_worker(worker, signals=signals)

    async def _run_worker(self, worker: Worker[R], *, signals: bool | None = False) -> None:
        """Run ``worker`` to its end, which comes at the latest when the client closes."""
        self._workers.add(worker)
        try:
            await worker.run(signals=signals)
        finally:
            self._workers.discard(worker)

    async def _close_workers(self) -> None:
        for worker in self._workers:
            worker.stop()
        for worker in list(self._workers):
            await worker.close()

    async def _close_all(self) -> None:
        """End what was started from this client: all of it, also when cancelled. Raises the first error."""
        failure: BaseException | None = None
        try:
            await self._close_workers()  # first, because handlers that are still running use the producers
        except BaseException as error:
            failure = error
        failure = await self._close_members() or failure
        if self._trace is not None:
            await self._trace.flush()
            failure = await self._close_members() or failure
        if failure is not None:
            raise failure

    async def _close_members(self) -> BaseException | None:
        """Close those without a block of their own that has ended, also those that start meanwhile. Returns the first
        error."""
        failure: BaseException | None = None
        while self._ends_first:
            member = next(iter(self._ends_first))
            try:
                await member.close()
            except BaseException as error:
                failure = failure or error
            self._ends_first.discard(member)  # also one that this task closes already, in whose callback it is
        return failure

    def _real_group(self, group: str) -> str:
        namespace = self._cluster.namespace
        return group if namespace is None or not isinstance(group, str) else namespace.group(group)

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[None]:
        """The connections stand for the length of the block."""
        async with hosted_tasks(lambda error: cluster.fail(error), lambda: cluster.connections.loop_ended()) as tasks:
            cluster = Cluster(tasks, self._options)
            try:
                await cluster.start()
                self._running = cluster
                if self._trace is not None:
                    self._trace.start(cluster)
                try:
                    yield
                finally:
                    await self._close_all()
            finally:
                await cluster.aclose()

    @overload
    def reader(
        self, topics: Topics, *, deserializer: Literal["str"], **options: Unpack[ReadOptions]
    ) -> Reader[DeliveredRecord[str]]: ...
    @overload
    def reader(
        self, topics: Topics, *, deserializer: TypedDeserializer[V], **options: Unpack[ReadOptions]
    ) -> Reader[DeliveredRecord[V]]: ...
    @overload
    def reader(
        self, topics: Topics, *, deserializer: DeserializerChoice | None = None, **options: Unpack[ReadOptions]
    ) -> Reader[DeliveredRecord]: ...
    @lists_options
    def reader(
        self, topics: Topics, *, deserializer: DeserializerChoice | None = None, **options: Unpack[ReadOptions]
    ) -> Reader[DeliveredRecord]:
        """Return a reader of all queues of ``topics``, from any position; it shares them with no other member.

        It begins where ``group`` has committed, else at ``start``: ``"first"`` is the oldest message, ``"last"`` the
        next one to come. With ``until="end"`` it ends at the last message that was there when it first polled.
        ``tags``, ``pull_batch`` and ``deserializer`` are those of :meth:`consumer`; a body that the deserializer cannot
        read makes ``message.value`` raise :class:`BodyError`.

        Raises :class:`InvalidName` for a topic, the group or a subscription, ValueError for an invalid option, and
        TypeError for an unknown one.
        """
        topics = plain_topics(self._cluster.namespace, topics)
        settings = ReaderSettings.checked(options, deserializer)
        if settings.group is not None:
            settings = attrs.evolve(settings, group=self._real_group(settings.group))
        return make_reader(self._cluster, DeliveredRecord, topics, settings).ends_with(self._ends_first)


def connect(
    nameservers: str | Sequence[str] | None = None,
    *,
    access_key: str | None = None,
    secret_key: str | None = None,
    security_token: str | None = None,
    tls: bool | ssl.SSLContext | Callable[[], ssl.SSLContext] = False,
    unit_name: str | None = None,
    namespace: str | None = None,
    namespace_v2: str | None = None,
    interceptors: Sequence[Interceptor] = (),
    trace: bool | str = False,
) -> Client:
    """Return a :class:`Client` of the cluster whose ``nameservers`` are at ``host:port[;host:port...]``.

    Without ``nameservers``, those of the environment variable NAMESRV_ADDR count. A URL with a path, such as
    ``http://host:8080/rocketmq/nsaddr``, is asked for their addresses when the client connects and every two minutes;
    with ``unit_name`` for those of a unit, which also becomes part of the client's id. Runs on trio and on asyncio.

    With ``access_key`` and ``secret_key`` (and ``security_token``, where a service gave one) every request is signed
    for brokers with access control. ``tls`` encrypts all connections: True checks servers' certificates against the
    machine's authorities; an ``ssl.SSLContext`` says what to trust instead. A function of a context is called for each
    new connection, so that a client that runs for long uses changed files.

    With ``namespace="eu"`` the topic ``orders`` is ``eu%orders`` at the brokers and ``orders`` again in what the client
    gives out; groups have the prefix as well, as with RocketMQ's clients. ``namespace_v2`` (``namespaceV2`` of their
    5.x) leaves names as they are and goes with each request, for services that understand it.

    ``interceptors`` are called around each message that producers send and consumers give out, see
    :class:`Interceptor`. With ``trace=True`` each of them is traced as RocketMQ's clients do, to the topic
    ``RMQ_SYS_TRACE_TOPIC``; ``trace="my-traces"`` names another topic.

    Use it in an ``async with`` block, or with ``await client.start()`` and ``await client.close()`` from any task, as
    its producers and consumers. It connects then, and its end closes the connections, after the producers and consumers
    that were started and have not ended. In another event loop than that of its start it raises :class:`ClientClosed`.

    Raises ValueError for a missing or invalid address, for only one of the two keys, and for an invalid ``tls``,
    ``unit_name``, ``namespace``, ``namespace_v2`` or ``trace``; TypeError for an interceptor that is none. The
    beginning of the block raises :class:`ConnectFailed` when no nameserver can be reached, and :class:`TlsFailed` when
    one can, but not by TLS.
    """
    options = ConnectOptions.checked(
        nameservers, access_key=access_key, secret_key=secret_key, security_token=security_token, tls=tls,
        unit_name=unit_name, namespace=namespace, namespace_v2=namespace_v2,
    )  # fmt: skip
    return Client(options, interceptors, trace_of(trace))

"""Bring prepared requests to brokers: choose a queue, send, and on some failures send again through another broker.

Source of the rules: RocketMQ 4.9.7 ``DefaultMQProducerImpl.sendDefaultImpl``.
"""

from __future__ import annotations

import itertools
import random
import secrets
from collections.abc import Callable, Coroutine, Sequence
from functools import lru_cache, partial
from typing import Any, Final

import anyio
import anyio.lowlevel

from gantrymq.client.cluster import Cluster
from gantrymq.client.connections import call
from gantrymq.client.errors import (
    AccessDenied,
    BrokerError,
    CallTimeout,
    ConnectError,
    ConnectFailed,
    GantryError,
    InvalidMessage,
    NoRoute,
    SendTimeout,
    UnsupportedByBroker,
)
from gantrymq.client.faults import Faults
from gantrymq.client.outgoing import Outgoing, PlainFrames, PlainRequest, Stored
from gantrymq.client.requests import reading
from gantrymq.client.window import Window
from gantrymq.message import MessageQueue, SendStatus
from gantrymq.remoting.channel import Channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.header import read_header
from gantrymq.remoting.headers.recall import RecallMessageHeader, RecallMessageResponse
from gantrymq.remoting.properties import MSG_REGION, java_hash
from gantrymq.remoting.tasks import within
from gantrymq.remoting.versions import FIRST_WITH_TIMES, version_name
from gantrymq.remoting.waiting import clock_of_loop

RETRIED_CODES: Final = frozenset({1, 2, 14, 16, 17, 204, 205})
"""Answers after which another broker is asked: SYSTEM_ERROR, SYSTEM_BUSY, SERVICE_NOT_AVAILABLE, NO_PERMISSION,
TOPIC_NOT_EXIST, NO_BUYER_ID, NOT_IN_CURRENT_UNIT (``retryResponseCodes`` of 5.x; 4.x lacks SYSTEM_BUSY)."""

QueueChoice = MessageQueue | int | Callable[[Sequence[MessageQueue]], MessageQueue]
"""A queue, its place among the topic's queues, which come in order of broker and queue id, or a function that picks one
of them."""
_Choose = Callable[[Sequence[MessageQueue], set[str]], MessageQueue]
"""Picks the queue of the next attempt, given the brokers that failed."""

RENEW_WAIT_S: Final = 1.0
"""The longest time that a send waits for a newer route, because the old one may do as well. It never waits longer than
half of its remaining time."""

FIRST_PAUSE_SECONDS: Final = 0.05
LONGEST_PAUSE_SECONDS: Final = 0.5
"""Between attempts, once all brokers of the topic have failed."""

IN_FLIGHT_MAX_MESSAGES: Final = 1024
"""Sends of one producer that are under way; more wait."""
IN_FLIGHT_MAX_BYTES: Final = 8 * 1024 * 1024


class Sender:
    """Sends for the producers of ``group``; ``timeout`` (seconds) bounds one send with all its ``retries``."""

    def __init__(
        self, cluster: Cluster, group: str, timeout: float, retries: int, retry_when_not_stored: bool = False
    ) -> None:
        if not isinstance(timeout, int | float):
            raise ValueError(f"timeout is a number of seconds, not {timeout!r}")
        self.group = group
        self._cluster = cluster
        self.timeout = timeout
        self._attempts = 1 + retries
        self._retry_when_not_stored = retry_when_not_stored
        self.window: Window = Window(IN_FLIGHT_MAX_MESSAGES, IN_FLIGHT_MAX_BYTES)
        """What is under way."""
        self._faults = Faults()
        self._frames = PlainFrames(group)
        self._now: Callable[[], float] | None = None
        self._turns: dict[str, itertools.count[int]] = {}
        self._unanswered: set[str] = set()
        """Topics with a send that got no answer, and none with one since: another broker may have the place of the one
        that hangs."""

    async def deliver(self, outgoing: Outgoing, choice: QueueChoice | None, timeout: float | None) -> Stored:
        """Send ``outgoing`` to the chosen queue, or to the next one with retries.

        Waits while too much is under way; the timeout counts from then on. Raises :class:`NoRoute`,
        :class:`SendTimeout`, and after the last attempt its :class:`BrokerError` or :class:`ConnectError`.
        """
        limit = self.timeout if timeout is None else timeout
        size = len(outgoing.body)
        if not self.window.admit(size):
            await self.window.enter(size)
        try:
            if choice is None:
                return await self.carry(outgoing, limit)
            queues = await self.queues_within(outgoing.topic, limit)
            return await self._deliver(
                outgoing, queues, lambda queues, _: self.pick(choice, queues), limit, 1, fixed=True
            )
        finally:
            self.window.leave(size)

    async def carry(self, outgoing: Outgoing, limit: float) -> Stored:
        """As :meth:`deliver` to the next queue, for what has its places in the window already."""
        queues = self._cluster.routes.known_publish_queues(outgoing.topic)
        if queues is None:
            queues = await self.queues_within(outgoing.topic, limit)
        if self._retry_when_not_stored:
            return await self._deliver_safely(outgoing, queues, None, limit)
        return await self._deliver(outgoing, queues, None, limit, self._attempts)

    async def deliver_to(self, outgoing: Outgoing, queue: MessageQueue, free: bool, limit: float) -> Stored:
        """As :meth:`deliver`, to ``queue``, with retries there; what is ``free`` may go to another broker."""

        def choose(queues: Sequence[MessageQueue], tried: set[str]) -> MessageQueue:
            if not free or not tried or (not _has_other(queues, tried, queue) and queue in queues):
                return queue
            return self._next_queue(outgoing.topic, queues, tried)

        if limit <= 0:
            raise SendTimeout(f"broker {queue.broker_name} took nothing since the message was enqueued")
        queues = await self.queues_within(outgoing.topic, limit)
        if free and self._retry_when_not_stored:
            return await self._deliver_safely(outgoing, queues, choose, limit)
        return await self._deliver(outgoing, queues, choose, limit, self._attempts, fixed=not free)

    async def queues_within(self, topic: str, limit: float) -> Sequence[MessageQueue]:
        """As :meth:`queues`; :class:`SendTimeout` after ``limit`` seconds."""
        queues = self._cluster.routes.known_publish_queues(topic)
        if queues is None:
            # thousands of tasks may be about to start, which takes seconds: the timeout begins behind them
            await anyio.lowlevel.checkpoint()
            try:
                queues = await within(limit, lambda: self.queues(topic))
            except TimeoutError:
                raise SendTimeout(f"no nameserver returned a route of '{topic}' within {limit:g} s") from None
        return queues

    async def _deliver_safely(
        self, outgoing: Outgoing, queues: Sequence[MessageQueue], choose: _Choose | None, limit: float
    ) -> Stored:
        """As :meth:`_deliver`; what a broker stored without its guarantee goes to another one as well."""
        deadline = anyio.current_time() + limit
        stored = await self._deliver(outgoing, queues, choose, limit, self._attempts)
        if stored.status is SendStatus.OK:
            return stored
        poor = {stored.broker_name}
        for attempt in range(1, self._attempts):
            others = [queue for queue in queues if queue.broker_name not in poor]
            if not others or anyio.current_time() >= deadline:
                break
            try:
                again = await self._deliver(
                    outgoing, others, None, deadline - anyio.current_time(), self._attempts - attempt
                )
            except GantryError:
                break  # it is stored, if not as safely as one would like
            if again.status is SendStatus.OK:
                return again
            poor.add(again.broker_name)
        return stored

    async def _deliver(
        self, outgoing: Outgoing, queues: Sequence[MessageQueue], choose: _Choose | None, limit: float, attempts: int,
        *, fixed: bool = False,
    ) -> Stored:  # fmt: skip
        """Send ``outgoing`` until an attempt succeeds, to queues that take turns where there is no ``choose``.

        ``fixed``: ``choose`` gives the same queue each time.
        """
        now = self._now = self._now or clock_of_loop()
        deadline = now() + limit
        if outgoing.topic in self._unanswered:
            queues = await self._renew(outgoing.topic, queues, deadline)
        tried: set[str] = set()
        pauses, maybe_stored = 0, False
        failure: Exception | None = None
        while True:
            target = self._next_queue(outgoing.topic, queues, tried) if choose is None else choose(queues, tried)
            until = deadline
            if not fixed and attempts > 1 and _has_other(queues, tried, target):
                until = now() + (deadline - now()) / attempts  # a broker that hangs must leave time for another one
            sent, address, needed, began = True, "", 0.0, now()
            try:
                address = self._cluster.routes.master(target)
                wait = self._cluster.silent_masters.begin(target, address)
                try:
                    channel = self._cluster.connections.open_one(address) or await self._open(address, until)
                    if outgoing.timed:
                        await self._check_timed(channel)
                    began = now()
                    answer = await channel.call(self._encoded(outgoing, target, channel), _some_time(until - began))
                finally:
                    self._cluster.silent_masters.end(wait)
                return self._stored(outgoing, target, answer, address)
            except BrokerError as error:
                failure = error
                if error.code not in RETRIED_CODES or isinstance(error, AccessDenied):
                    raise
                sent = error.code != ResponseCode.SYSTEM_BUSY  # the broker has not tried: wait until it takes some
                needed = now() - began
                if error.code == ResponseCode.SERVICE_NOT_AVAILABLE:  # as a fenced master answers
                    self._faults.failed(target.broker_name)
                    queues = await self._renew(outgoing.topic, queues, deadline)
            except (ConnectError, NoRoute, TimeoutError) as error:
                if failure is None or not isinstance(error, TimeoutError):  # what the deadline ends explains nothing
                    failure = error
                sent = not isinstance(error, ConnectFailed | NoRoute | TimeoutError)
                maybe_stored |= sent
                if self._cluster.routes.new_master(target.broker_name, address) is None:
                    self._faults.failed(target.broker_name)
                if isinstance(error, ConnectFailed | NoRoute):
                    queues = await self._renew(outgoing.topic, queues, deadline)
                elif isinstance(error, CallTimeout | TimeoutError):
                    self._unanswered.add(outgoing.topic)
            self._cluster.rare.warning(
                "send_failed", target.broker_name,
                topic=outgoing.topic, broker=target.broker_name, reason=str(failure),
            )  # fmt: skip
            attempts -= sent  # what no broker has tried to store may be tried until the deadline
            if anyio.current_time() < deadline and attempts:
                tried.add(target.broker_name)
                if not fixed and any(queue.broker_name not in tried for queue in queues):
                    continue
                await anyio.sleep(min(_pause(pauses), max(0.0, deadline - anyio.current_time())))
                pauses, tried = pauses + 1, {target.broker_name}
                if anyio.current_time() + needed < deadline:  # else the next attempt's end would hide this refusal
                    continue
            is_known = not maybe_stored and isinstance(failure, ConnectFailed | NoRoute | BrokerError)
            if is_known or anyio.current_time() < deadline:
                raise failure
            raise _timed_out(target, limit, failure, maybe_stored) from failure

    async def send_oneway(self, outgoing: Outgoing, choice: QueueChoice | None) -> None:
        """Send ``outgoing`` once; without an answer."""
        queues = await self.queues(outgoing.topic)
        target = self._next_queue(outgoing.topic, queues, set()) if choice is None else self.pick(choice, queues)
        channel = await self._cluster.broker(self._cluster.routes.master(target))
        if outgoing.timed:
            await self._check_timed(channel)
        await channel.send_oneway(outgoing.command(self.group, target))

    async def recall(self, topic: str, broker: str, handle: str) -> tuple[str, str | None]:
        """Take back the message of ``handle``, which waits at ``broker``: the message's id, and the broker's region."""
        address = self._cluster.routes.master(MessageQueue(topic=topic, broker_name=broker))
        header = RecallMessageHeader(producer_group=self.group, topic=topic, recall_handle=handle)
        channel = await self._cluster.broker(address)
        answer = await call(channel, Command(RequestCode.RECALL_MESSAGE, header.to_ext()), self.timeout)
        with reading(address):
            message_id = read_header(RecallMessageResponse, answer.ext).msg_id
        return message_id, (answer.ext or {}).get(MSG_REGION)

    def pick(self, choice: QueueChoice, queues: Sequence[MessageQueue]) -> MessageQueue:
        """The chosen one of a topic's ``queues``; :class:`InvalidMessage` if there is none, or for another topic's."""
        if isinstance(choice, int):
            if not 0 <= choice < len(queues):
                raise InvalidMessage(
                    f"topic {queues[0].topic} has no queue {choice}: {len(queues)} can be sent to, from 0 on"
                )
            return queues[choice]
        queue = choice if isinstance(choice, MessageQueue) else choice(queues)
        self.check_topic_of(queue, queues[0].topic)
        return queue

    def check_topic_of(self, queue: MessageQueue, topic: str) -> None:
        """:class:`InvalidMessage` if ``queue`` is one of another topic than ``topic``."""
        if queue.topic == topic:
            return
        namespace = self._cluster.namespace
        if namespace is None or namespace.topic(queue.topic) != namespace.topic(topic):
            raise InvalidMessage(
                f"queue {queue.queue_id} of {queue.broker_name} belongs to topic {queue.topic}, the message to topic "
                f"{topic}: choose one of the producer's queues({topic!r})"
            )

    def start_soon(self, work: Callable[..., Coroutine[Any, Any, None]], *arguments: object) -> None:
        """Run ``work`` in the background, until the client ends."""
        self._cluster.start_soon(work, *arguments)

    def is_usable(self, queue: MessageQueue) -> bool:
        """Whether the broker of ``queue`` has not failed lately."""
        return self._faults.is_usable(queue.broker_name)

    def first_turn(self, queues: Sequence[MessageQueue]) -> int:
        """Where to begin with ``queues``: not all producers begin with the same one."""
        return secrets.randbelow(len(queues))

    def report_lost(self, topic: str, messages: int, error: Exception) -> None:
        """Log that ``messages`` which were enqueued failed: perhaps no task awaits them."""
        self._cluster.rare.warning("enqueued_messages_failed", topic, topic=topic, messages=messages, reason=str(error))

    async def _renew(self, topic: str, queues: Sequence[MessageQueue], deadline: float) -> Sequence[MessageQueue]:
        """Ask where the brokers are now: another one may have the place of the master. Returns the topic's queues.

        They are the known ones where no nameserver answers soon: a nameserver that hangs must not stop sends to brokers
        that work.
        """
        with anyio.move_on_after(min(RENEW_WAIT_S, (deadline - anyio.current_time()) / 2)):
            await self._cluster.routes.renew(topic)
        return self._cluster.routes.known_publish_queues(topic) or queues

    def _stored(self, outgoing: Outgoing, target: MessageQueue, answer: Command, address: str) -> Stored:
        stored = outgoing.stored(target, answer, address)
        self._faults.worked(target.broker_name)
        self._cluster.rare.over("send_failed", target.broker_name)
        if self._unanswered:
            self._unanswered.discard(outgoing.topic)
        return stored

    def _encoded(self, outgoing: Outgoing, queue: MessageQueue, channel: Channel) -> Command | PlainRequest:
        if outgoing.is_plain and not channel.signs:
            return PlainRequest(outgoing, self._frames.template(outgoing.topic, queue))
        return outgoing.command(self.group, queue)

    async def _check_timed(self, channel: Channel) -> None:
        """Brokers of RocketMQ before 5.0 would deliver a timed message at once."""
        language, version = await self._cluster.peer(channel)
        if language == "JAVA" and version < FIRST_WITH_TIMES:
            raise UnsupportedByBroker(
                f"{channel.address} is RocketMQ {version_name(version)[1:].replace('_', '.')}, which delivers timed "
                "messages at once: give a delay_level instead of delay or deliver_at, or use a broker from 5.0 on"
            )

    async def _open(self, address: str, deadline: float) -> Channel:
        """A new connection; TimeoutError and :class:`ConnectFailed` where nothing was sent."""
        limit = max(0.0, deadline - anyio.current_time())
        try:
            return await within(limit, lambda: self._cluster.broker(address))
        except TimeoutError:
            raise TimeoutError(f"no connection to {address} within {limit:.3g} s") from None

    async def queues(self, topic: str) -> Sequence[MessageQueue]:
        """The queues that messages of ``topic`` can go to; :class:`NoRoute` when there is none."""
        queues = await self._cluster.routes.publish_queues(topic)
        if not queues:
            raise NoRoute(f"topic {topic} has no writable queue: no master that has it is up, or it is read-only")
        return queues

    def _next_queue(self, topic: str, queues: Sequence[MessageQueue], tried: set[str]) -> MessageQueue:
        turns = self._turns.get(topic)
        if turns is None:
            turns = self._turns[topic] = itertools.count(self.first_turn(queues))
        avoided: MessageQueue | None = None
        for _ in queues:
            queue = queues[next(turns) % len(queues)]
            if queue.broker_name in tried:
                continue
            if self._faults.is_usable(queue.broker_name):
                return queue
            avoided = avoided or queue
        return avoided or queues[next(turns) % len(queues)]


def _pause(before: int) -> float:
    """Seconds to wait before all brokers are tried again, after so many pauses ``before``."""
    pause: float = min(FIRST_PAUSE_SECONDS * 2**before, LONGEST_PAUSE_SECONDS)
    return pause * random.uniform(0.75, 1.25)  # noqa: S311 - so that not all senders come at once


def _some_time(left: float) -> float:
    """``left``, unless opening the connection or a pause of this process has used up the time of a send."""
    if left <= 0.0:
        raise TimeoutError("no time was left to send it")
    return left


def _timed_out(target: MessageQueue, limit: float, failure: Exception, maybe_stored: bool) -> SendTimeout:
    if not maybe_stored:
        return SendTimeout(
            f"the message for {target.topic} was not sent to broker {target.broker_name} within {limit:g} s: {failure}"
        )
    return SendTimeout(
        f"broker {target.broker_name} acknowledged nothing sent to {target.topic} within {limit:g} s: "
        f"it may be stored all the same ({failure})"
    )


def _has_other(queues: Sequence[MessageQueue], tried: set[str], target: MessageQueue) -> bool:
    # queues come in order of broker: where the first and the last have one name, all have it
    if queues[0].broker_name == queues[-1].broker_name:
        return False
    return any(queue.broker_name != target.broker_name and queue.broker_name not in tried for queue in queues)


def choose_queue(queue: QueueChoice | None, order_key: str | int | None) -> QueueChoice | None:
    """How the queue of a message is chosen; :class:`InvalidMessage` for two ways at once."""
    if order_key is None:
        return queue
    if queue is not None:
        raise InvalidMessage("give a queue or an order_key, not both")
    if isinstance(order_key, bool) or not isinstance(order_key, str | int):
        raise InvalidMessage(f"an order_key is a str or an int, not {type(order_key).__name__}")
    return partial(queue_of_key, java_hash_of(order_key))


def queue_of_key(code: int, queues: Sequence[MessageQueue]) -> MessageQueue:
    """The queue of an order key with this hash code, as Java's ``SelectMessageQueueByHash`` has it."""
    return queues[abs(code) % len(queues)]


@lru_cache(maxsize=4096)
def java_hash_of(key: str | int) -> int:
    """Java's ``hashCode`` of a String, of an Integer, and of a Long for what is longer."""
    if isinstance(key, str):
        return java_hash(key)
    if -(2**31) <= key < 2**31:
        return key
    if not -(2**63) <= key < 2**63:
        raise InvalidMessage(f"an order_key that is a number has 64 bits: give {key} as a str")
    folded = (key ^ (key >> 32 & 0xFFFFFFFF)) & 0xFFFFFFFF
    return folded - 2**32 if folded & 2**31 else folded

"""Send messages that only count once a piece of work of the producer's own has succeeded.

A half message is stored first, where no consumer sees it; then the local branch runs, and its outcome makes the message
visible or drops it. The broker checks back with a producer that sent no outcome. Source: RocketMQ 4.9.7
``DefaultMQProducerImpl`` (``sendMessageInTransaction``, ``endTransaction``, ``checkTransactionState``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from inspect import isawaitable
from traceback import format_exception_only
from typing import Any, Final, TypeVar

import anyio
import attrs
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from gantrymq.client.checks import check_group
from gantrymq.client.cluster import LEAVE_SECONDS, Cluster
from gantrymq.client.errors import BadResponse, GantryError, InvalidMessage
from gantrymq.client.lifetime import Lifetime
from gantrymq.client.outgoing import prepare_half
from gantrymq.client.producer import as_message
from gantrymq.client.routes import DEFAULT_TOPIC
from gantrymq.client.sender import QueueChoice, Sender, choose_queue
from gantrymq.message import DeliveredRecord, Message, Outcome, SendResult, SendStatus, TransactionResult
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.transactions import CheckTransactionHeader, EndTransactionHeader
from gantrymq.remoting.logs import LibraryLog
from gantrymq.remoting.tasks import foreign_cancellation_as_error, hosted_tasks

CHECKS_AT_ONCE: Final = 4
"""Questions of brokers that one producer answers at the same time."""
CHECKS_WAITING_MAX: Final = 2000
"""Questions that may wait for their turn (``checkRequestHoldMax``); more are dropped, and the broker asks again."""
REMARK_MAX_CHARACTERS: Final = 1000
"""The longest text of an error that the broker receives."""

_OFFSET_DIGITS: Final = 16

Local = Callable[[Message, str], Outcome | Awaitable[Outcome]]
"""The local branch: given the message and the transaction's id, does the work and returns its outcome."""
Check = Callable[[DeliveredRecord], Outcome | Awaitable[Outcome]]
"""Returns the outcome of an open transaction at a check-back; ``message_id`` is the transaction's id."""

B = TypeVar("B")
T = TypeVar("T")

log: LibraryLog = LibraryLog()


@attrs.frozen
class _Question:
    address: str
    header: CheckTransactionHeader
    record: DeliveredRecord


class TransactionalProducer(Lifetime):
    """Sends messages in transactions as a member of a producer group, and answers the check-backs of brokers."""

    def __init__(
        self,
        cluster: Cluster,
        sender: Sender,
        local: Local | None,
        check: Check,
        topics: Iterable[str],
        checks_at_once: int,
    ) -> None:
        """Brokers of ``topics``, and those that create topics, learn of it at once: they may have check-backs that an
        earlier member of the group has left open."""
        super().__init__(f"producer of group {sender.group}")
        self._topics = tuple(topics)
        self._checks_at_once = checks_at_once
        self.group: str = sender.group
        """The producer group, as brokers know it: with the client's namespace."""
        self._cluster = cluster
        self._sender = sender
        self._local = local
        self._check = check
        self._asking: MemoryObjectSendStream[_Question] | None = None
        self._closed = True

    async def send(
        self,
        message: Message | str,
        body: Any = None,
        *,
        local: Local | None = None,
        tags: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        queue: QueueChoice | None = None,
        timeout: float | None = None,
    ) -> TransactionResult:
        """Store a half message, run the local branch (``local``, else the producer's), send its outcome to the broker.

        The branch runs only when the status of the half message is OK; with any other status the transaction is rolled
        back. What the branch raises is logged and makes the outcome UNKNOWN: the broker asks ``check`` later.

        ``message``, ``body``, ``tags``, ``keys``, ``properties``, ``queue`` and ``timeout`` (seconds) are those of
        :meth:`gantrymq.Producer.send`, and so are the errors of the sending itself. :class:`InvalidMessage` also
        without a branch, and for a message with ``delay`` or ``deliver_at``.
        """
        branch = choose_branch(local, self._local)
        given = as_message(message, body, tags, keys, properties)
        half = await self.send_half(given, queue=queue, timeout=timeout)
        outcome: Outcome = Outcome.ROLLBACK
        error: Exception | None = None
        if half.status is SendStatus.OK:
            outcome, error = await self._run(
                "transaction_branch_failed", half.message_id, branch, given, half.message_id
            )
        await self.end(given, half, outcome, error)
        return TransactionResult(half, outcome, error)

    async def send_half(
        self, message: Message, *, queue: QueueChoice | None = None, timeout: float | None = None
    ) -> SendResult:
        """The first step alone: store ``message`` where no consumer sees it. :meth:`end` is the last step.

        For callers that run the branch themselves; it must not run unless the result's status is OK. Errors as in
        :meth:`send`.
        """
        self._ensure_open()
        outgoing = await prepare_half(message, self.group, self._cluster.unique_keys.next)
        choice = choose_queue(queue, message.order_key)
        return (await self._sender.deliver(outgoing, choice, timeout)).result(0)

    async def end(self, message: Message, half: SendResult, outcome: Outcome, error: Exception | None = None) -> None:
        """Send the ``outcome`` of ``message`` to the broker that stored it as ``half``; no answer is waited for.

        Raises nothing when the broker cannot be reached, or when the producer was closed while the branch ran: the
        broker asks for the outcome when it has waited long enough.
        """
        try:
            self._ensure_open()
            header = EndTransactionHeader(
                producer_group=self.group, tran_state_table_offset=half.queue_offset,
                commit_log_offset=_log_offset(half), commit_or_rollback=outcome.value, msg_id=half.message_id,
                transaction_id=half.message_id, topic=half.queue.topic,
            )  # fmt: skip
            address = self._cluster.routes.master(half.queue)
            self._ended(message, half.message_id, outcome, address, checked=False)
            await self._send_outcome(address, header, error)
            self._cluster.rare.over("transaction_end_failed", self.group, half.queue.broker_name)
        except GantryError as failure:
            self._end_failed(half.queue.broker_name, half.message_id, failure)

    def take_check(self, address: str, header: CheckTransactionHeader, record: DeliveredRecord) -> None:
        """Take the question of the broker at ``address`` about a half message; a task of the producer's answers it."""
        assert self._asking is not None  # it joins the group after it is there
        try:
            self._asking.send_nowait(_Question(address, header, record))
        except anyio.WouldBlock:
            self._cluster.rare.warning(
                "transaction_check_dropped", self.group, group=self.group, broker=address, waiting=CHECKS_WAITING_MAX
            )

    async def _answer_checks(self, asked: MemoryObjectReceiveStream[_Question]) -> None:
        """Answer the questions one after the other, until cancelled."""
        while True:
            await self._answer(await asked.receive())

    def _ensure_open(self) -> None:
        self._cluster.ensure_open()
        if self._closed:
            raise self._closed_error()

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[None]:
        """It can be asked by brokers for the length of the block."""
        cluster = self._cluster
        cluster.ensure_open()
        check_group(self.group)
        self._asking, asked = anyio.create_memory_object_stream[_Question](CHECKS_WAITING_MAX)
        with self._asking, asked:
            try:
                cluster.join_as_transactional(self.group, self)
                self._closed = False
                try:
                    # checks in work end before the brokers learn that this producer is gone
                    async with hosted_tasks(cluster.fail) as answering:
                        for _ in range(self._checks_at_once):
                            answering.start_soon(self._answer_checks, asked)
                        for topic in (*self._topics, DEFAULT_TOPIC):
                            await cluster.routes.learn(topic)
                        await cluster.heartbeat()
                        cluster.ensure_open()  # its tasks would outlive the client
                        yield
                finally:
                    with anyio.move_on_after(LEAVE_SECONDS, shield=True):
                        await cluster.leave_as_transactional(self.group)
            finally:
                self._closed = True

    async def _answer(self, question: _Question) -> None:
        record, asked = question.record, question.header
        outcome, error = await self._run("transaction_check_failed", record.message_id, self._check, record)
        header = EndTransactionHeader(
            producer_group=self.group, tran_state_table_offset=asked.tran_state_table_offset,
            commit_log_offset=asked.commit_log_offset, commit_or_rollback=outcome.value, from_transaction_check=True,
            msg_id=record.message_id, transaction_id=asked.transaction_id, topic=record.topic,
        )  # fmt: skip
        self._ended(record, record.message_id, outcome, question.address, checked=True)
        try:
            await self._send_outcome(question.address, header, error)
            self._cluster.rare.over("transaction_end_failed", self.group, question.address)
        except GantryError as failure:
            self._end_failed(question.address, record.message_id, failure)

    def _end_failed(self, broker: str, transaction: str, failure: GantryError) -> None:
        """``broker``: its name or its address."""
        self._cluster.rare.warning(
            "transaction_end_failed", self.group, broker,
            group=self.group, broker=broker, transaction=transaction, reason=str(failure),
        )  # fmt: skip

    def _ended(
        self, message: Message | DeliveredRecord, transaction_id: str, outcome: Outcome, broker: str, *, checked: bool
    ) -> None:
        """A transaction has its outcome. Producers with interceptors have a use for that."""

    async def _run(
        self, failed: str, transaction: str, work: Callable[..., Outcome | Awaitable[Outcome]], *arguments: object
    ) -> tuple[Outcome, Exception | None]:
        # What users' code does is not a reason for this side to fail: the broker asks again.
        try:
            with foreign_cancellation_as_error():
                outcome = work(*arguments)
                if isawaitable(outcome):
                    outcome = await outcome
            return checked_outcome(outcome), None
        except Exception as error:
            log.exception(failed, group=self.group, transaction=transaction)
            return Outcome.UNKNOWN, error

    async def _send_outcome(self, address: str, header: EndTransactionHeader, error: Exception | None) -> None:
        remark = None if error is None else "".join(format_exception_only(error)).strip()[:REMARK_MAX_CHARACTERS]
        channel = await self._cluster.broker(address)
        await channel.send_oneway(Command(RequestCode.END_TRANSACTION, header.to_ext(), remark=remark))


def in_thread(work: Callable[[T], Outcome], at_once: int) -> Callable[[T], Awaitable[Outcome]]:
    """``work`` that may block: called in a thread, up to ``at_once`` at a time, so that the event loop does not."""
    limiter: anyio.CapacityLimiter | None = None

    async def call(argument: T) -> Outcome:
        nonlocal limiter
        limiter = limiter or anyio.CapacityLimiter(at_once)
        return await anyio.to_thread.run_sync(work, argument, limiter=limiter)

    return call


def choose_branch(own: B | None, common: B | None) -> B:
    """The local branch of a send: its ``own``, else the ``common`` one; :class:`InvalidMessage` without either."""
    branch = own or common
    if branch is None:
        raise InvalidMessage("a transaction needs a local branch: give `local` here or to transactional_producer")
    return branch


def checked_outcome(outcome: object) -> Outcome:
    """What users' code returned, if it is an outcome; TypeError if not."""
    if isinstance(outcome, Outcome):
        return outcome
    raise TypeError(f"the outcome of a transaction is an Outcome, not {outcome!r}")


def _log_offset(half: SendResult) -> int:
    try:
        return int(half.offset_message_id[-_OFFSET_DIGITS:], 16)
    except ValueError:
        raise BadResponse(half.queue.broker_name, f"{half.offset_message_id!r} is not a message id") from None

"""Gather messages that several tasks send at the same time: those of one turn of the event loop share requests.

A batch costs the client and the broker little more than one message, and the broker stores its messages as it stores
single ones. Each send has a result or an error of its own. Messages with a queue, an order key or a time of delivery,
and those that are compressed, are not gathered. Java's clients do the same on request (``autoBatch`` of RocketMQ 5.1).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import anyio

from gantrymq.client.errors import AccessDenied, BrokerError, ClientClosed
from gantrymq.client.outgoing import from_rows
from gantrymq.client.sender import RETRIED_CODES, Sender
from gantrymq.message import SendResult
from gantrymq.remoting.waiting import Waiter, waiter_kind

GROUP_MAX_MESSAGES: Final = 32
"""The most messages of one request. More messages take several requests, to queues that take turns: the broker stores
one request while the client encodes the next."""
GROUP_MAX_BYTES: Final = 64 * 1024
IDLE_TASKS_MAX: Final = 8
"""Tasks that wait for a group to deliver; a new task for each group would cost more."""


class _Group:
    """Messages of one topic and timeout that leave in one request."""

    __slots__ = ("keys", "limit", "rows", "size", "topic", "waiters")

    def __init__(self, topic: str, limit: float) -> None:
        self.topic = topic
        self.limit = limit
        self.rows: list[bytes] = []
        self.size = 0
        self.keys: list[str] = []
        self.waiters: list[Waiter[SendResult | Exception]] = []

    def only(self, place: int, limit: float) -> _Group:
        """One of the messages in a group of its own."""
        group = _Group(self.topic, limit)
        group.rows, group.keys, group.waiters = [self.rows[place]], [self.keys[place]], [self.waiters[place]]
        return group

    def fail(self, error: Exception) -> None:
        """Those that have no result yet get ``error``."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(error)


class Gathering:
    """Gathers what the tasks of one producer send."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._open: dict[tuple[str, float], _Group] = {}
        """The groups that take further messages, until the next turn of the event loop."""
        self._idle: list[Waiter[_Group | None]] = []
        self._make_waiter: Callable[[], Waiter[SendResult | Exception]] | None = None
        self._closed = False

    async def send(self, topic: str, row: bytes, key: str, timeout: float | None) -> SendResult:
        """Send the message that ``row`` encodes to the next queue, with retries; errors as of :meth:`Sender.deliver`.

        Where the caller is cancelled, the message leaves all the same.
        """
        sender, size = self._sender, len(row)
        limit = sender.timeout if timeout is None else timeout
        window = sender.window
        if not window.admit(size):
            await window.enter(size)
        try:
            if self._closed:
                raise ClientClosed("the producer was closed while a message waited for its turn")
            group = self._open.get((topic, limit))
            if group is None or group.size + size > GROUP_MAX_BYTES or len(group.keys) >= GROUP_MAX_MESSAGES:
                group = self._begin(topic, limit)
            assert self._make_waiter is not None  # the first group has set it
            waiter = self._make_waiter()
            group.rows.append(row)
            group.size += size
            group.keys.append(key)
            group.waiters.append(waiter)
            result = await waiter
        finally:
            window.leave(size)
        if type(result) is SendResult:
            return result
        assert isinstance(result, Exception)  # it is the one or the other
        raise result.with_traceback(None)

    def close(self) -> None:
        """Let the tasks end that wait for work. What is under way is finished."""
        self._closed = True
        for waiter in self._idle:
            if not waiter.done():
                waiter.set_result(None)
        self._idle.clear()

    def _begin(self, topic: str, limit: float) -> _Group:
        if self._make_waiter is None:
            self._make_waiter = waiter_kind()
        group = _Group(topic, limit)
        if not self._hand_to_idle_task(group):
            self._sender.start_soon(self._deliver_groups, group)  # raises when the client has ended
        self._open[topic, limit] = group
        return group

    def _hand_to_idle_task(self, group: _Group) -> bool:
        while self._idle:
            waiter = self._idle.pop()
            if not waiter.done():
                waiter.set_result(group)
                return True
        return False

    async def _deliver_groups(self, first: _Group) -> None:
        group: _Group | None = first
        while group is not None:
            if self._open.get((group.topic, group.limit)) is group:
                del self._open[group.topic, group.limit]
            try:
                await self._deliver(group)
            except BaseException:
                group.fail(ClientClosed("the client was closed while it waited for the answer: it may be stored"))
                raise
            if self._closed or len(self._idle) >= IDLE_TASKS_MAX:
                return
            waiter: Waiter[_Group | None] = waiter_kind()()
            self._idle.append(waiter)
            group = await waiter

    async def _deliver(self, group: _Group) -> None:
        began = anyio.current_time()
        try:
            outgoing = await from_rows(group.topic, b"".join(group.rows), group.keys)
            stored = await self._sender.carry(outgoing, group.limit)
        except BrokerError as error:
            is_retried = error.code in RETRIED_CODES or isinstance(error, AccessDenied)
            if is_retried or len(group.keys) == 1:
                group.fail(error)
                return
        except Exception as error:
            group.fail(error)
            return
        else:
            for place, waiter in enumerate(group.waiters):
                if not waiter.done():
                    waiter.set_result(stored.result(place))
            return
        # the broker stores all messages of a batch or none: the one that it refuses must not fail the others
        limit = max(0.0, group.limit - (anyio.current_time() - began))
        async with anyio.create_task_group() as tasks:
            for place in range(len(group.keys)):
                tasks.start_soon(self._deliver, group.only(place, limit))

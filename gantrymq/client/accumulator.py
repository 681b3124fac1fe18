"""Gather messages into batches, one request in flight for each queue, with bounded memory.

The name is Kafka's. RocketMQ's protocol has no sequence numbers, so a queue's next batch leaves when the one before it
has its answer: that keeps the order, with retries as well.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, Final

import anyio
import anyio.lowlevel
import msgspec

from gantrymq.client.checks import BODY_MAX_BYTES
from gantrymq.client.errors import BrokerError, ClientClosed, ConnectError, GantryError, NoRoute, SendTimeout
from gantrymq.client.loop_guard import LoopGuard
from gantrymq.client.outgoing import Stored, from_rows, row_ends
from gantrymq.client.sender import Sender
from gantrymq.client.window import Window
from gantrymq.message import MessageQueue, SendResult
from gantrymq.remoting.codes import ResponseCode

BATCH_BYTES: Final = 64 * 1024
"""A batch is sent at this size at the latest; a larger message goes alone."""
BUFFER_BYTES: Final = 32 * 1024 * 1024
"""What may be enqueued and not answered; ``enqueue`` waits while it is full."""
MESSAGE_OVERHEAD_BYTES: Final = 256
"""Counts towards the buffer for each message, beside its bytes: the objects that stand for it."""
LANES_SCANNED: Final = 16
"""The most queues that are scanned for an idle one, for a batch that may go to any."""
LANES_KEPT: Final = 1024
"""Idle queues are forgotten beyond this number."""


class PendingSend(msgspec.Struct, eq=False):
    """A message that was enqueued. ``await`` returns its :class:`SendResult`, or raises what ``send`` would raise.

    It can be awaited any number of times, by several tasks, or not at all: the message is sent all the same.
    """

    _batch: Batch
    _place: int

    @property
    def message_id(self) -> str:
        """The client's id of the message."""
        return self._batch.keys[self._place]

    def __await__(self) -> Generator[Any, Any, SendResult]:
        return self._wait().__await__()

    @property
    def done(self) -> bool:
        """Whether the message is stored, or has failed."""
        return self._batch.finished

    def result(self) -> SendResult:
        """Return the result of a message that is :attr:`done`, or raise its error; call it only then."""
        return self._batch.result(self._place)

    def when_done(self, call: Callable[[PendingSend], None]) -> None:
        """Have ``call`` called with this, when it is :attr:`done`; at once if it is. It must not raise."""
        if self._batch.finished:
            call(self)
        else:
            self._batch.watch(partial(call, self))

    async def _wait(self) -> SendResult:
        await self._batch.wait()
        return self.result()


class Batch:
    """Messages of one topic that travel together, and what became of them."""

    __slots__ = (
        "_changed", "_ends", "_loop", "_outcomes", "_watchers", "created", "finished", "free", "keys", "rows", "sealed",
        "topic",
    )  # fmt: skip

    def __init__(self, topic: str, created: float, loop: LoopGuard) -> None:
        self.topic: str = topic
        self.created: float = created
        self._loop = loop
        self.rows: bytearray | bytes = bytearray()
        self.keys: list[str] = []
        self.free: bool = True
        """Whether all of its messages may go to any queue."""
        self.sealed: bool = False
        self.finished: bool = False
        self._changed: anyio.Event | None = None
        self._ends: list[int] = []
        self._outcomes: list[Stored | GantryError] = []
        self._watchers: list[Callable[[], None]] | None = None

    @property
    def cost(self) -> int:
        """What it takes of the buffer."""
        return len(self.rows) + MESSAGE_OVERHEAD_BYTES * len(self.keys)

    def add(self, row: bytes, key: str, *, free: bool) -> PendingSend:
        """Put a message at the end; ``free``: it may go to any queue."""
        keys = self.keys
        pending = PendingSend(self, len(keys))
        self.rows += row
        keys.append(key)
        if not free:
            self.free = False
        return pending

    @property
    def outcomes(self) -> list[Stored | GantryError]:
        """What became of its messages, in parts; complete when it is finished."""
        return self._outcomes

    def seal(self) -> None:
        """Take no more messages."""
        self.sealed = True
        self._change()

    def settle(self, end: int, outcome: Stored | GantryError) -> None:
        """The messages up to ``end`` that were not settled yet have this ``outcome``."""
        self._ends.append(end)
        self._outcomes.append(outcome)

    def finish(self) -> None:
        """All are settled."""
        self.finished = self.sealed = True
        self.rows = bytearray()
        self._change()
        if self._watchers is not None:
            for call in self._watchers:
                call()

    def watch(self, call: Callable[[], None]) -> None:
        """Have ``call`` called when it is finished."""
        if self._watchers is None:
            self._watchers = []
        self._watchers.append(call)

    async def wait(self) -> None:
        """Return when it is finished. :class:`ClientClosed` in another event loop, which would not hear of that."""
        self._loop.ensure()
        while not self.finished:
            await self._wait_change()

    async def wait_sealed(self) -> None:
        """Return when it takes no more messages."""
        while not self.sealed:
            await self._wait_change()

    def result(self, place: int) -> SendResult:
        """The result of one message; raises its error."""
        at = bisect_right(self._ends, place)
        outcome = self._outcomes[at]
        if isinstance(outcome, GantryError):
            raise outcome.with_traceback(None)
        return outcome.result(place - (self._ends[at - 1] if at else 0))

    async def _wait_change(self) -> None:
        if self._changed is None:
            self._changed = anyio.Event()
        await self._changed.wait()

    def _change(self) -> None:
        if self._changed is not None:
            self._changed.set()
            self._changed = None


class Lane:
    """What goes to one queue, in order: the batch in flight, those behind it, and the last one, which may be open."""

    __slots__ = ("batches", "failing_since", "flying", "queue", "scope")

    def __init__(self, queue: MessageQueue) -> None:
        self.queue: MessageQueue = queue
        self.batches: deque[Batch] = deque()
        self.flying: Batch | None = None
        self.failing_since: float | None = None
        """When the attempts began that have all failed since; what waited then shares their deadline."""
        self.scope: anyio.CancelScope | None = None

    @property
    def idle(self) -> bool:
        """Whether nothing is under way or waits."""
        return self.scope is None

    def open_batch(self) -> Batch | None:
        """The batch that takes messages, if there is one."""
        if self.batches and not self.batches[-1].sealed:
            return self.batches[-1]
        return None


class Accumulator:
    """The buffer of one producer. ``linger`` (seconds): how long a batch waits for more messages."""

    def __init__(self, sender: Sender, loop: LoopGuard, linger: float, batch_bytes: int, buffer_bytes: int) -> None:
        if not linger >= 0:
            raise ValueError(f"linger is a number of seconds, not {linger!r}")
        if not 1 <= batch_bytes <= BODY_MAX_BYTES:
            raise ValueError(f"batch_bytes is 1 to {BODY_MAX_BYTES}, what a broker takes, not {batch_bytes!r}")
        if not buffer_bytes >= 1:
            raise ValueError(f"buffer_bytes is a number of bytes, 1 or more, not {buffer_bytes!r}")
        self._sender = sender
        self._loop = loop
        self._linger = linger
        self._batch_bytes = batch_bytes
        self._window = Window(None, buffer_bytes)
        self._lanes: dict[MessageQueue, Lane] = {}
        self._current: dict[str, Lane] = {}
        self._turns: dict[str, int] = {}
        self._closed = False
        self._crowded = False

    def take_room(self, size: int) -> bool:
        """Take room for a message whose row has ``size`` bytes; False where that has to be awaited (:meth:`room`)."""
        return not self._crowded and self._window.admit(size + MESSAGE_OVERHEAD_BYTES)

    async def room(self, size: int) -> None:
        """Wait until the buffer has room for a message whose row has ``size`` bytes, and take it."""
        if self._crowded:
            # batches are complete: let them leave, and others work, before there are more
            self._crowded = False
            await anyio.lowlevel.checkpoint()
        await self._window.enter(size + MESSAGE_OVERHEAD_BYTES)

    def add_at_once(self, topic: str, row: bytes, key: str) -> PendingSend | None:
        """Put a message that may go to any queue into the batch that is open, as most can be; None where that needs
        more: room to wait for, or another batch."""
        lane = self._current.get(topic)
        if lane is None or not lane.batches or self._crowded or self._closed:
            return None
        batch = lane.batches[-1]
        size = len(row)
        if (
            batch.sealed
            or len(batch.rows) + size >= self._batch_bytes
            or not self._window.admit(size + MESSAGE_OVERHEAD_BYTES)
        ):
            return None
        keys = batch.keys
        pending = PendingSend(batch, len(keys))
        batch.rows += row
        keys.append(key)
        return pending

    def add(
        self, topic: str, row: bytes, key: str, queue: MessageQueue | None, queues: Sequence[MessageQueue], *,
        alone: bool = False,
    ) -> PendingSend:  # fmt: skip
        """Put a message, for which :meth:`room` was taken, into a batch; any of ``queues`` without a ``queue``."""
        if self._closed:
            self._window.leave(len(row) + MESSAGE_OVERHEAD_BYTES)
            raise ClientClosed("the producer was closed while a message waited for room in its buffer")
        lane = self._lane(queue) if queue is not None else self._current.get(topic)
        batch = None if lane is None else lane.open_batch()
        if batch is not None and not alone and len(batch.rows) + len(row) < self._batch_bytes:  # as with most messages
            return batch.add(row, key, free=queue is None)
        if lane is None or (batch is None and queue is None):
            lane = self._current[topic] = self._next_lane(topic, queues)
            batch = lane.open_batch()
        if batch is not None and (alone or len(batch.rows) + len(row) > self._batch_bytes):
            batch.seal()
            self._crowded = True
            if queue is None and not alone:
                lane = self._current[topic] = self._next_lane(topic, queues)
                batch = lane.open_batch()
            else:
                batch = None
        if batch is None:
            batch = Batch(topic, anyio.current_time(), self._loop)
            self._append(lane, batch)
        pending = batch.add(row, key, free=queue is None)
        if alone or len(batch.rows) >= self._batch_bytes:
            batch.seal()
            self._crowded = True
        return pending

    async def add_rows(
        self, topic: str, rows: bytes, keys: list[str], queue: MessageQueue | None, queues: Sequence[MessageQueue]
    ) -> Batch:
        """Wait for room for whole messages, encoded one behind another, and send them as one batch; to any of
        ``queues`` without a ``queue``."""
        size = len(rows) + MESSAGE_OVERHEAD_BYTES * len(keys)
        await self._window.enter_many(size, len(keys))
        if self._closed:
            self._window.leave(size, len(keys))
            raise ClientClosed("the producer was closed while messages waited for room in its buffer")
        lane = self._lane(queue) if queue is not None else self._next_lane(topic, queues)
        if (before := lane.open_batch()) is not None:
            before.seal()
        batch = Batch(topic, anyio.current_time(), self._loop)
        batch.rows, batch.keys, batch.free, batch.sealed = rows, keys, queue is None, True
        self._append(lane, batch)
        return batch

    async def flush(self) -> None:
        """Return when all that was added before is stored or has failed."""
        batches = [batch for lane in self._lanes.values() for batch in (lane.flying, *lane.batches) if batch]
        for batch in batches:
            if not batch.sealed:
                batch.seal()
        for batch in batches:
            await batch.wait()

    def close(self) -> None:
        """Take nothing more; what has no answer fails."""
        self._closed = True
        for lane in self._lanes.values():
            if lane.scope is not None:
                lane.scope.cancel()
            while lane.batches:
                self._abandon(lane.batches.popleft())

    async def _send_all(self, lane: Lane, scope: anyio.CancelScope) -> None:
        try:
            with scope:
                await anyio.lowlevel.checkpoint()  # tasks that are about to enqueue share the batch
                while lane.batches:
                    await self._send_next(lane)
        finally:
            # the client's tasks may have ended before the producer: nothing else would settle what waits here
            while lane.batches:
                self._abandon(lane.batches.popleft())
            lane.scope = None

    async def _send_next(self, lane: Lane) -> None:
        batch = lane.batches[0]
        wait = batch.created + self._linger - anyio.current_time()
        if not batch.sealed and self._linger and wait > 0:
            with anyio.move_on_after(wait):
                await batch.wait_sealed()
        lane.flying = lane.batches.popleft()
        batch.sealed = True
        try:
            await self._send(lane, batch)
        except BaseException:
            self._abandon(batch)
            raise
        finally:
            lane.flying = None

    async def _send(self, lane: Lane, batch: Batch) -> None:
        """Send one batch; where the broker finds fault with a message, in parts, so that it fails alone."""
        cost = batch.cost
        whole = bytes(batch.rows)
        ends: list[int] = []
        parts = [(0, len(batch.keys))]
        while parts:
            begin, end = parts.pop()
            rows = whole[ends[begin - 1] if begin else 0 : ends[end - 1]] if ends else whole
            outcome = await self._outcome(lane, batch, rows, batch.keys[begin:end])
            if isinstance(outcome, BrokerError) and outcome.code == ResponseCode.MESSAGE_ILLEGAL and end - begin > 1:
                ends = ends or row_ends(whole)
                middle = (begin + end) // 2
                parts += [(middle, end), (begin, middle)]
            else:
                batch.settle(end, outcome)
                if isinstance(outcome, GantryError):
                    self._sender.report_lost(batch.topic, end - begin, outcome)
        batch.finish()
        self._window.leave(cost, len(batch.keys))

    async def _outcome(self, lane: Lane, batch: Batch, rows: bytes, keys: list[str]) -> Stored | GantryError:
        began = anyio.current_time()
        limit = self._sender.timeout
        if lane.failing_since is not None:
            limit += max(lane.failing_since, batch.created) - began
        try:
            outgoing = await from_rows(batch.topic, rows, keys)
            stored = await self._sender.deliver_to(outgoing, lane.queue, batch.free, limit)
        except GantryError as error:
            took_nothing = isinstance(error, ConnectError | NoRoute | SendTimeout) or (
                isinstance(error, BrokerError) and error.code == ResponseCode.SYSTEM_BUSY
            )
            lane.failing_since = (lane.failing_since or began) if took_nothing else None
            return error
        lane.failing_since = None
        return stored

    def _abandon(self, batch: Batch) -> None:
        cost = batch.cost
        error = ClientClosed("the producer was closed before the message had an answer: it may be stored all the same")
        batch.settle(len(batch.keys), error)
        self._sender.report_lost(batch.topic, len(batch.keys), error)
        batch.finish()
        self._window.leave(cost, len(batch.keys))

    def _append(self, lane: Lane, batch: Batch) -> None:
        if lane.scope is None:
            scope = anyio.CancelScope()
            self._sender.start_soon(self._send_all, lane, scope)  # raises when the client's tasks have ended
            lane.scope = scope
        lane.batches.append(batch)

    def _lane(self, queue: MessageQueue) -> Lane:
        lane = self._lanes.get(queue)
        if lane is None:
            if len(self._lanes) >= LANES_KEPT:
                self._lanes = {queue: lane for queue, lane in self._lanes.items() if not lane.idle}
                self._current.clear()
            lane = self._lanes[queue] = Lane(queue)
        return lane

    def _next_lane(self, topic: str, queues: Sequence[MessageQueue]) -> Lane:
        """Queues take turns; one with less that waits goes first, and one whose broker failed goes last."""
        turn = self._turns.get(topic)
        if turn is None:
            turn = self._sender.first_turn(queues)
        best: tuple[tuple[bool, int], int, Lane] | None = None
        for ahead in range(min(len(queues), LANES_SCANNED)):
            at = (turn + ahead) % len(queues)
            lane = self._lane(queues[at])
            rank = (not self._sender.is_usable(lane.queue), 0 if lane.idle else 1 + len(lane.batches))
            if best is None or rank < best[0]:
                best = (rank, at, lane)
            if rank == (False, 0):
                break
        assert best is not None  # a topic that can be sent to has a queue
        _, at, lane = best
        self._lanes[lane.queue] = lane  # a new lane of a later queue may have displaced it
        self._turns[topic] = at + 1
        return lane

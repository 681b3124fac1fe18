"""Which processor answers which request code, and what becomes of what they raise."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, cast

import structlog
import trio

from gantrymq.kernel.config.declarations import LimitsSection
from gantrymq.kernel.errors import LogPoisoned, PluginError, StartError
from gantrymq.kernel.manager import PluginManager
from gantrymq.kernel.network.connection import Connection
from gantrymq.kernel.network.time_slices import WaitingRequests, size_of
from gantrymq.kernel.processors import AnswerSteps, BatchProcessor, Handler, Heavy, Request
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.steps import run_steps

log = structlog.get_logger("gantrymq.requests")

Spawn = Callable[[Callable[[Request], Awaitable[None]], Request], None]


BUSY = "[OVERLOAD]system busy, start flow control for a while"
"""What RocketMQ says when it has no room for one more request (``NettyRemotingAbstract``)."""


STEPS_FROM: Final = 16_384
"""Bytes of a request; a smaller one is answered in one go by a handler that works in steps."""


class RequestTable:
    """The request codes and their processors; one call takes all requests of a sweep.

    Requests for batch processors are answered at once, others while ``limits.turn_budget`` lasts. What is left waits
    for one of the next turns, and so do the further requests of its connection.
    """

    def __init__(
        self,
        manager: PluginManager,
        broker: object,
        spawn: Spawn,
        limits: LimitsSection | None = None,
        clock: Callable[[], float] = lambda: 0.0,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """``spawn(function, request)`` starts a task for an async handler.

        ``clock`` counts seconds; ``wake`` brings another call of :meth:`handle` soon.
        """
        self._spawn = spawn
        self._limits = limits or LimitsSection()
        self._clock = clock
        self._wake = wake
        self.waiting = WaitingRequests(self._limits)
        self._heavy = trio.CapacityLimiter(self._limits.heavy_requests)
        self._batch: dict[int, BatchProcessor] = {}
        self.readers: dict[int, Any] = {}
        """By code, what the batch processors brought to read their own requests."""
        self._plain: dict[int, Handler] = {}
        self._async: dict[int, Callable[[Request], Awaitable[None]]] = {}
        self._heavy_codes: set[int] = set()
        self._in_steps: dict[int, Callable[[Request], AnswerSteps]] = {}
        self._held: deque[tuple[Request, int]] = deque()
        """Requests that are answered in steps, one after the other, with what they take in memory."""
        self._steps: AnswerSteps | None = None
        """Of the first one, once it has begun."""
        self._left: set[Connection] = set()
        """Connections that have requests left from this call."""
        self._passed_over = False
        owners: dict[int, str] = {}
        for info, processors in manager.call_each("register_processors", dict, broker=broker):
            for code, processor in processors.items():
                if code in owners:
                    raise StartError(f"request code {code} is taken by plugins {owners[code]!r} and {info.name!r}")
                owners[code] = info.name
                self._add(int(code), processor)

    @property
    def codes(self) -> list[int]:
        """The codes that are answered, in order."""
        return sorted({*self._batch, *self._plain, *self._async, *self._in_steps})

    def handle(self, requests: list[Request]) -> None:
        """Answer all of them, or start what will. Requests of one batch processor go to it in one call.

        A peer's requests are taken in the order in which they came, but for those of two batch processors: a pull that
        carries an offset must not overtake, or be overtaken by, the commit that was sent behind or before it.
        """
        begun = self._clock()
        codes = {request.code for request in requests}
        if len(codes) == 1 and (processor := self._batch.get(codes.pop())) is not None:
            self._answer_batch(processor, requests)
        elif requests:
            self._take(requests)
        if self.waiting:
            # New requests that took the turn's time leave none to those that wait, but not twice in a row.
            is_late = self._clock() - begun >= self._limits.turn_budget
            self._passed_over = is_late and not self._passed_over
            if not self._passed_over:
                self._take_waiting()
        if self._held:
            self._go_on()

    def has_waiting(self) -> bool:
        """Whether the next turn finds a request here that it may answer."""
        return bool(self.waiting) or bool(self._held)

    def _take(self, requests: list[Request]) -> None:
        """Answer new requests for as long as the turn's time lasts."""
        until = self._clock() + self._limits.turn_budget
        groups: dict[int, list[Request]] = {}
        in_groups: set[Connection] | None = None  # whose requests are in the groups, once somebody needs to know
        is_late = False
        left = self._left = set()
        for request in requests:
            connection, code = request.connection, request.code
            if connection in left:
                self._let_wait(request)
                continue
            processor = self._batch.get(code)
            if processor is not None:
                groups.setdefault(id(processor), []).append(request)
                if in_groups is not None:
                    in_groups.add(connection)
                continue
            if in_groups is None:
                in_groups = {row.connection for rows in groups.values() for row in rows}
            if connection in in_groups:
                self._answer_groups(groups)
                groups, in_groups = {}, None
                if connection in left:
                    self._let_wait(request)
                    continue
            if is_late or not self._may_begin(request):
                self._let_wait(request)
                left.add(connection)
                continue
            if self._is_long(request):
                if self.waiting.has_room(request):
                    self._hold(request)
                    left.add(connection)
                else:
                    request.answer(ResponseCode.SYSTEM_BUSY, BUSY)
                continue
            self._answer_one(request)
            is_late = self._clock() >= until
        self._answer_groups(groups)

    def _take_waiting(self) -> None:
        """Answer requests that wait, one connection after the other, for as long as the turn's time lasts."""
        until = self._clock() + self._limits.turn_budget
        waiting = self.waiting
        while waiting:
            first = waiting.first()
            processor = self._batch.get(first.code)
            if processor is None:
                if self._is_long(first):
                    self._hold(first)
                elif self._may_begin(first):
                    waiting.take(_none, 1)
                    self._answer_one(first)
                else:
                    waiting.block()
            else:
                rows = waiting.take(partial(self._goes_to, processor), self._limits.sweep_rows)
                self._answer_batch(processor, [row for row in rows if not _is_pointless(row)])
            if self._clock() >= until:
                return

    def _is_long(self, request: Request) -> bool:
        """Whether the request is to be answered in steps, between which others have their turn."""
        return request.code in self._in_steps and STEPS_FROM < request.size <= self._limits.request_body_bytes

    def _hold(self, request: Request) -> None:
        self._held.append((request, size_of(request)))
        self.waiting.hold(request)

    def _go_on(self) -> None:
        """Answer what is answered in steps, for as long as half of the turn's time lasts."""
        until = self._clock() + self._limits.turn_budget / 2
        while self._held:
            request, size = self._held[0]
            if not _is_pointless(request):
                try:
                    if self._steps is None:
                        self._steps = self._in_steps[request.code](request)
                    while True:
                        next(self._steps)
                        if self._clock() >= until:
                            return
                except StopIteration as done:
                    _send(request, done.value)
                except Exception as error:
                    _answer_failure(request, error)
            self._steps = None
            self._held.popleft()
            self.waiting.release(request.connection, size)
            if self._clock() >= until:
                return

    def _goes_to(self, processor: BatchProcessor, request: Request) -> bool:
        return self._batch.get(request.code) is processor

    def _let_wait(self, request: Request) -> None:
        if self.waiting.has_room(request):
            self.waiting.put(request)
        else:
            request.answer(ResponseCode.SYSTEM_BUSY, BUSY)

    def _may_begin(self, request: Request) -> bool:
        code = request.code
        return code not in self._async or self.waiting.may_begin(request, heavy=code in self._heavy_codes)

    def _answer_one(self, request: Request) -> None:
        code = request.code
        if _is_pointless(request):
            return
        if code not in self._plain and code not in self._async and code not in self._in_steps:
            request.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {code} not supported")
        elif request.size > self._limits.request_body_bytes:
            request.answer(
                ResponseCode.SYSTEM_ERROR,
                f"a request of {request.size} bytes, {self._limits.request_body_bytes} are the limit for those that"
                " carry no message (limits.request_body_bytes)",
            )
        elif code in self._plain:
            self._answer_plain(self._plain[code], request)
        elif code in self._in_steps:
            self._answer_plain(partial(_all_steps, self._in_steps[code]), request)
        elif not self.waiting.has_room(request):
            request.answer(ResponseCode.SYSTEM_BUSY, BUSY)
        else:
            self._begin(request)

    def _begin(self, request: Request) -> None:
        heavy = request.code in self._heavy_codes
        if heavy and request.is_oneway:
            return
        self.waiting.begun(request, heavy=heavy)
        self._spawn(partial(self._work, size_of(request), heavy), request)

    async def _work(self, size: int, heavy: bool, request: Request) -> None:
        """Let the code's handler answer the request, when it is its turn."""
        handler = self._async[request.code]
        try:
            if not heavy:
                await handler(request)
                return
            async with self._heavy:
                if not _is_pointless(request):
                    await handler(request)
        finally:
            self.waiting.ended(request.connection, size, heavy=heavy)
            if self.waiting:
                self._wake()

    def _answer_groups(self, groups: dict[int, list[Request]]) -> None:
        for rows in groups.values():
            self._answer_batch(self._batch[rows[0].code], rows)

    def _add(self, code: int, processor: Any) -> None:
        if isinstance(processor, Heavy):
            self._async[code] = _guarded(processor.handler)
            self._heavy_codes.add(code)
        elif hasattr(processor, "handle"):
            self._batch[code] = processor
            reader = getattr(processor, "readers", {}).get(code)
            if reader is not None:
                self.readers[code] = reader
        elif inspect.iscoroutinefunction(processor):
            self._async[code] = _guarded(processor)
        elif inspect.isgeneratorfunction(processor):
            self._in_steps[code] = processor
        else:
            self._plain[code] = processor

    def _answer_batch(self, processor: BatchProcessor, rows: list[Request]) -> None:
        try:
            taken = processor.handle(rows)
        except (LogPoisoned, PluginError):
            raise
        except Exception as error:
            # Which row it was cannot be told. One that is held or in the log already is not answered a second time.
            for request in rows:
                if not request.answered:
                    _answer_failure(request, error)
        else:
            left = taken if isinstance(taken, list) else [] if taken is None else rows[max(taken, 1) :]
            if left:
                self._put_back(left)

    def _put_back(self, rows: list[Request]) -> None:
        """These were not taken: they are the first of their connections in one of the next turns."""
        by_connection: dict[Connection, list[Request]] = {}
        for row in rows:
            by_connection.setdefault(row.connection, []).append(row)
        for connection, own in by_connection.items():
            self.waiting.put_back(own)
            self._left.add(connection)

    def _answer_plain(self, handler: Handler, request: Request) -> None:
        try:
            _send(request, cast("Command | None", handler(request)))
        except Exception as error:
            _answer_failure(request, error)


def _all_steps(handler: Callable[[Request], AnswerSteps], request: Request) -> Command | None:
    return run_steps(handler(request))


def _none(_request: Request) -> bool:
    return False


def _is_pointless(request: Request) -> bool:
    """Whether nobody takes the answer any more, and the answer is all that was wanted."""
    connection = request.connection
    return (connection.closed or connection.peer_left) and not request.is_oneway


def _send(request: Request, answer: Command | None) -> None:
    if answer is None:
        return
    if not isinstance(answer, Command):
        raise TypeError(f"the processor returned {type(answer).__name__}, it must be a Command or None")
    if not request.command.is_oneway:
        request.connection.send(answer)


def _answer_failure(request: Request, error: Exception) -> None:
    if isinstance(error, RemoteFault):
        request.answer(error.code, error.remark)
    else:
        # A bug: the sender learns its kind, the log gets the traceback.
        log.exception("processor_failed", code=request.command.code, peer=request.connection.address)
        request.answer(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")


def _guarded(handler: Callable[[Request], Awaitable[Command | None]]) -> Callable[[Request], Awaitable[None]]:
    async def run(request: Request) -> None:
        try:
            _send(request, await handler(request))
        except Exception as error:
            _answer_failure(request, error)

    return run

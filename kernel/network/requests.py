"""Route requests to their processors by code, and turn exceptions into responses."""

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
from gantrymq.kernel.fast import common_code
from gantrymq.kernel.manager import PluginManager
from gantrymq.kernel.network.connection import Connection
from gantrymq.kernel.network.time_slices import WaitingRequests, size_of
from gantrymq.kernel.processors import AnswerSteps, BatchProcessor, Handler, Heavy, ObservedRequest, Request
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.steps import run_steps

log = structlog.get_logger("gantrymq.requests")

Spawn = Callable[[Callable[[Request], Awaitable[None]], Request], None]


BUSY = "[OVERLOAD]system busy, start flow control for a while"
"""RocketMQ's text for a full request queue (``NettyRemotingAbstract``)."""


STEPS_FROM: Final = 16_384
"""Bytes of a request up to which a handler that works in steps answers it at once."""

CONGESTED_S: Final = 0.02
"""How often to check whether a peer has read its responses, in seconds."""


class RequestTable:
    """The request codes and their processors; one call handles all requests of a turn.

    Requests for batch processors are answered at once, others while ``limits.turn_budget`` lasts. The rest waits for a
    later turn, together with the following requests of the same connection.
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

        ``clock`` returns seconds; ``wake`` causes another call of :meth:`handle` soon.
        """
        self._spawn = spawn
        self._limits = limits or LimitsSection()
        self._clock = clock
        self._wake = wake
        self.waiting = WaitingRequests(self._limits)
        self._heavy = trio.CapacityLimiter(self._limits.heavy_requests)
        self._batch: dict[int, BatchProcessor] = {}
        self.readers: dict[int, Any] = {}
        """By request code: the readers of the batch processors."""
        self._plain: dict[int, Handler] = {}
        self._async: dict[int, Callable[[Request], Awaitable[None]]] = {}
        self._heavy_codes: dict[int, Callable[[Request], Awaitable[None]] | None] = {}
        """With what a request waits for before it counts as a heavy one."""
        self._in_steps: dict[int, Callable[[Request], AnswerSteps]] = {}
        self._held: deque[tuple[Request, int]] = deque()
        """Requests that are answered in steps, one after the other, with their size in memory."""
        self._steps: AnswerSteps | None = None
        """The generator of the first one, after it has started."""
        self._left: set[Connection] = set()
        """Connections with unprocessed requests of this call."""
        self._passed_over = False
        owners: dict[int, str] = {}
        for info, processors in manager.call_each("register_processors", dict, broker=broker):
            for code, processor in processors.items():
                if code in owners:
                    raise StartError(f"request code {code} is taken by plugins {owners[code]!r} and {info.name!r}")
                owners[code] = info.name
                manager.activity.request_codes.setdefault(info.name, []).append(int(code))
                self._add(int(code), processor)

    @property
    def codes(self) -> list[int]:
        """The served request codes, in order."""
        return sorted({*self._batch, *self._plain, *self._async, *self._in_steps})

    def handle(self, requests: list[Request]) -> None:
        """Answer all requests or start their tasks. All requests of one batch processor are one call.

        The requests of one peer are processed in order of arrival, except between two batch processors: a pull with an
        offset must neither overtake an offset commit nor be overtaken by it.
        """
        begun = self._clock()
        code = common_code(requests)
        processor = None if code is None else self._batch.get(code)
        if processor is not None:
            self._answer_batch(processor, requests)
        elif requests:
            self._take(requests)
        if self.waiting:
            # If new requests use up the turn's time, waiting ones get none in this turn, but do in the next one.
            is_late = self._clock() - begun >= self._limits.turn_budget
            self._passed_over = is_late and not self._passed_over
            if not self._passed_over:
                self._take_waiting()
        if self._held:
            self._resume()

    def has_waiting(self) -> bool:
        """Return whether a request waits that the next turn can answer."""
        return bool(self.waiting) or bool(self._held)

    def _take(self, requests: list[Request]) -> None:
        """Answer new requests for as long as the turn's time lasts."""
        until = self._clock() + self._limits.turn_budget
        groups: dict[int, list[Request]] = {}
        in_groups: set[Connection] | None = None  # the connections with requests in the groups, computed on demand
        is_late = False
        left = self._left = set()
        for request in requests:
            connection, code = request.connection, request.code
            if connection in left:
                self._defer(request)
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
                    self._defer(request)
                    continue
            if is_late or not self._can_begin(request):
                self._defer(request)
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
        """Answer waiting requests, one connection after the other, for as long as the turn's time lasts."""
        until = self._clock() + self._limits.turn_budget
        waiting = self.waiting
        while waiting:
            first = waiting.first()
            processor = self._batch.get(first.code)
            if processor is None:
                if self._is_long(first):
                    self._hold(first)
                elif self._can_begin(first):
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
        """Return whether to answer the request in steps, between which others are served."""
        return request.code in self._in_steps and STEPS_FROM < request.size <= self._limits.request_body_bytes

    def _hold(self, request: Request) -> None:
        self._held.append((request, size_of(request)))
        self.waiting.hold(request)

    def _resume(self) -> None:
        """Continue requests that are answered in steps, for up to half of the turn's time."""
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

    def _defer(self, request: Request) -> None:
        if self.waiting.has_room(request):
            self.waiting.put(request)
        else:
            request.answer(ResponseCode.SYSTEM_BUSY, BUSY)

    def _can_begin(self, request: Request) -> bool:
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
        """Call the handler of the code for the request."""
        handler = self._async[request.code]
        try:
            if not heavy:
                await handler(request)
                return
            await self._wait_until_read(request)
            prepare = self._heavy_codes[request.code]
            if prepare is not None:
                await prepare(request)
            async with self._heavy:
                if not request.answered and not _is_pointless(request):
                    await handler(request)
        finally:
            self.waiting.ended(request.connection, size, heavy=heavy)
            if self.waiting:
                self._wake()

    async def _wait_until_read(self, request: Request) -> None:
        """Wait until the peer has read most of its earlier responses, so that another large one does not exceed its
        write buffer; close the connection after ``limits.idle``."""
        connection = request.connection
        with trio.move_on_after(self._limits.idle) as patience:
            # There is no event for a peer that reads again.
            while not _is_pointless(request) and connection.is_congested():  # noqa: ASYNC110
                await trio.sleep(CONGESTED_S)
        if patience.cancelled_caught:
            reason = f"it has not read its earlier responses within {self._limits.idle:g} s (limits.idle)"
            log.warning("slow_reader_closed", peer=connection.address, reason=reason)
            connection.close("the peer does not read its responses")

    def _answer_groups(self, groups: dict[int, list[Request]]) -> None:
        for rows in groups.values():
            self._answer_batch(self._batch[rows[0].code], rows)

    def _add(self, code: int, processor: Any) -> None:
        if isinstance(processor, Heavy):
            self._async[code] = _guarded(processor.handler)
            self._heavy_codes[code] = None if processor.prepare is None else _guarded(processor.prepare)
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
            # The failing row is unknown. A request that is held or already in the log is not answered twice.
            for request in rows:
                if not request.answered:
                    _answer_failure(request, error)
        else:
            left = taken if isinstance(taken, list) else [] if taken is None else rows[max(taken, 1) :]
            if left:
                self._put_back(left)

    def _put_back(self, rows: list[Request]) -> None:
        """Let unprocessed requests wait for a later turn, before the other waiting requests of their connections."""
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
    """Return whether the connection is closed and the request has no effect besides its response."""
    connection = request.connection
    return (connection.closed or connection.peer_left) and not request.is_oneway


def _send(request: Request, answer: Command | None) -> None:
    if answer is None:
        return
    if not isinstance(answer, Command):
        raise TypeError(f"the processor returned {type(answer).__name__}, it must be a Command or None")
    if isinstance(request, ObservedRequest):
        request.responded(answer.code, answer.remark)
    if not request.command.is_oneway:
        request.connection.send(answer)


def _answer_failure(request: Request, error: Exception) -> None:
    if isinstance(error, RemoteFault):
        request.answer(error.code, error.remark)
    else:
        # A bug: the sender gets the type of the error, the log gets the traceback.
        log.exception("processor_failed", code=request.command.code, peer=request.connection.address)
        request.answer(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")


def _guarded(handler: Callable[[Request], Awaitable[Command | None]]) -> Callable[[Request], Awaitable[None]]:
    async def run(request: Request) -> None:
        try:
            _send(request, await handler(request))
        except Exception as error:
            _answer_failure(request, error)

    return run

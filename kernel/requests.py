"""Which processor answers which request code, and what becomes of what they raise."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, cast

import structlog

from gantrymq.kernel.commitlog import LogPoisoned
from gantrymq.kernel.connection import Connection
from gantrymq.kernel.errors import PluginError, StartError
from gantrymq.kernel.manager import PluginManager
from gantrymq.kernel.processors import BatchProcessor, Handler, Request
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import RemoteFault

log = structlog.get_logger("gantrymq.requests")

Spawn = Callable[[Callable[[Request], Awaitable[None]], Request], None]


class RequestTable:
    """The request codes and their processors; one call takes all requests of a sweep."""

    def __init__(self, manager: PluginManager, broker: object, spawn: Spawn) -> None:
        """``spawn(function, request)`` starts a task for an async handler."""
        self._spawn = spawn
        self._batch: dict[int, BatchProcessor] = {}
        self._plain: dict[int, Handler] = {}
        self._async: dict[int, Callable[[Request], Awaitable[None]]] = {}
        owners: dict[int, str] = {}
        for info, processors in manager.by_plugin("register_processors", dict, broker=broker):
            for code, processor in processors.items():
                if code in owners:
                    raise StartError(f"request code {code} is taken by plugins {owners[code]!r} and {info.name!r}")
                owners[code] = info.name
                self._add(int(code), processor)

    @property
    def codes(self) -> list[int]:
        """The codes that are answered, in order."""
        return sorted({*self._batch, *self._plain, *self._async})

    def handle(self, requests: list[Request]) -> None:
        """Answer all of them, or start what will. Requests of one batch processor go to it in one call.

        A peer's requests are taken in the order in which they came, but for those of two batch processors: a pull that
        carries an offset must not overtake, or be overtaken by, the commit that was sent behind or before it.
        """
        codes = {request.code for request in requests}
        if len(codes) == 1 and (processor := self._batch.get(codes.pop())) is not None:
            self._answer_batch(processor, requests)
            return
        groups: dict[int, list[Request]] = {}
        waiting: set[Connection] | None = None  # whose requests are in the groups, once somebody needs to know
        for request in requests:
            code = request.code
            processor = self._batch.get(code)
            if processor is not None:
                groups.setdefault(id(processor), []).append(request)
                if waiting is not None:
                    waiting.add(request.connection)
                continue
            if waiting is None:
                waiting = {row.connection for rows in groups.values() for row in rows}
            if request.connection in waiting:
                self._answer_groups(groups)
                groups, waiting = {}, None
            if code in self._plain:
                self._answer_plain(self._plain[code], request)
            elif code in self._async:
                self._spawn(self._async[code], request)
            else:
                request.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {code} not supported")
        self._answer_groups(groups)

    def _answer_groups(self, groups: dict[int, list[Request]]) -> None:
        for rows in groups.values():
            self._answer_batch(self._batch[rows[0].code], rows)

    def _add(self, code: int, processor: Any) -> None:
        if hasattr(processor, "handle"):
            self._batch[code] = processor
        elif inspect.iscoroutinefunction(processor):
            self._async[code] = _guarded(processor)
        else:
            self._plain[code] = processor

    def _answer_batch(self, processor: BatchProcessor, rows: list[Request]) -> None:
        try:
            processor.handle(rows)
        except (LogPoisoned, PluginError):
            raise
        except Exception as error:
            # Which row it was cannot be told. One that is held or in the log already is not answered a second time.
            for request in rows:
                if not request.answered:
                    _answer_failure(request, error)

    def _answer_plain(self, handler: Handler, request: Request) -> None:
        try:
            _send(request, cast("Command | None", handler(request)))
        except Exception as error:
            _answer_failure(request, error)


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
        log.exception("processor failed", code=request.command.code, peer=request.connection.address)
        request.answer(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")


def _guarded(handler: Callable[[Request], Awaitable[Command | None]]) -> Callable[[Request], Awaitable[None]]:
    async def run(request: Request) -> None:
        try:
            _send(request, await handler(request))
        except Exception as error:
            _answer_failure(request, error)

    return run

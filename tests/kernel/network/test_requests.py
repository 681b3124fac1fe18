"""Each processor gets its requests in one call, and an exception of a handler fails its request only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gantrymq.kernel import hookimpl, hookspecs
from gantrymq.kernel.errors import LogPoisoned, PluginError, StartError
from gantrymq.kernel.manager import PluginManager
from gantrymq.kernel.network.requests import RequestTable
from gantrymq.kernel.processors import Request
from gantrymq.remoting.codes import ONEWAY_FLAG, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import RemoteFault


class FakeConnection:
    address = "test:1"
    closed = False
    peer_left = False

    def __init__(self) -> None:
        self.sent: list[Command] = []

    def send(self, command: Command) -> None:
        self.sent.append(command)


class Batch:
    def __init__(self) -> None:
        self.calls: list[list[int]] = []

    def handle(self, requests: list[Request]) -> None:
        self.calls.append([request.command.opaque for request in requests])


class Processors:
    def __init__(self, name: str, table: dict[int, Any]) -> None:
        self.name = name
        self.table = table

    @hookimpl
    def register_processors(self) -> dict[int, Any]:
        return self.table


def table(*plugins: Processors, spawned: list[Any] | None = None) -> RequestTable:
    def spawn(function: Callable[[Request], Awaitable[None]], request: Request) -> None:
        if spawned is not None:
            spawned.append((function, request))

    return RequestTable(PluginManager([(plugin.name, plugin) for plugin in plugins], hookspecs), object(), spawn)


def request(code: int, opaque: int = 0, flag: int = 0) -> tuple[Request, FakeConnection]:
    connection = FakeConnection()
    return Request(connection, Command(code, opaque=opaque, flag=flag)), connection  # type: ignore[arg-type]


def test_codes_of_one_batch_processor_are_one_call_in_order_of_arrival() -> None:
    batch = Batch()
    handlers = table(Processors("a", {10: batch, 310: batch}))
    handlers.handle([request(10, 1)[0], request(310, 2)[0], request(10, 3)[0]])
    assert batch.calls == [[1, 2, 3]]
    assert handlers.codes == [10, 310]


def test_requests_of_a_peer_are_processed_in_their_order() -> None:
    calls: list[int] = []

    class Pulls:
        def handle(self, requests: list[Request]) -> None:
            calls.extend(request.command.opaque for request in requests)

    def commit(asked: Request) -> Command | None:
        calls.append(asked.command.opaque)
        return None

    handlers = table(Processors("a", {11: Pulls(), 15: commit}))
    peer, other = FakeConnection(), FakeConnection()
    rows = [(11, 1, peer), (11, 2, other), (15, 3, peer), (11, 4, peer), (11, 5, other), (15, 6, FakeConnection())]
    handlers.handle([Request(connection, Command(code, opaque=opaque)) for code, opaque, connection in rows])  # type: ignore[arg-type]
    assert calls == [1, 2, 3, 6, 4, 5], "one call for all that nobody's order keeps apart"


def test_a_code_registered_twice_is_an_error_that_names_both_plugins() -> None:
    with pytest.raises(StartError, match="request code 10 is taken by plugins 'a' and 'b'"):
        table(Processors("a", {10: Batch()}), Processors("b", {10: Batch()}))


def test_an_unknown_code_is_answered_with_the_text_of_rocketmq() -> None:
    asked, connection = request(77, 5)
    table().handle([asked])
    (answer,) = connection.sent
    assert (answer.code, answer.opaque, answer.remark) == (3, 5, " request type 77 not supported")


def test_faults_and_bugs_of_a_handler_become_error_responses() -> None:
    def faulty(request: Request) -> Command | None:
        raise RemoteFault(ResponseCode.NO_PERMISSION, "not you")

    def broken(request: Request) -> Command | None:
        raise KeyError("oops")

    handlers = table(Processors("a", {1: faulty, 2: broken, 3: lambda asked: asked.command.answer(0)}))
    rows = [request(1), request(2), request(3), request(3, flag=ONEWAY_FLAG)]
    handlers.handle([row[0] for row in rows])
    sent = [[(answer.code, answer.remark) for answer in connection.sent] for _, connection in rows]
    assert sent == [[(16, "not you")], [(1, "KeyError: 'oops'")], [(0, None)], []]


@pytest.mark.trio
async def test_an_async_handler_runs_as_a_task_of_its_own() -> None:
    async def slow(asked: Request) -> Command | None:
        if asked.command.opaque == 2:
            raise RemoteFault(ResponseCode.SYSTEM_BUSY, "later")
        return asked.command.answer(0, body=b"done")

    spawned: list[Any] = []
    handlers = table(Processors("a", {1: slow}), spawned=spawned)
    rows = [request(1, 1), request(1, 2)]
    handlers.handle([row[0] for row in rows])
    assert [connection.sent for _, connection in rows] == [[], []]
    for function, asked in spawned:
        await function(asked)
    assert [(answer.code, answer.body) for _, connection in rows for answer in connection.sent] == [
        (0, b"done"),
        (2, b""),
    ]


class Breaking:
    """Answers the first row, keeps the second for later, and fails at the third."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.kept: list[Request] = []

    def handle(self, requests: list[Request]) -> None:
        requests[0].answer(0)
        self.kept.append(requests[1])
        raise self.error


def test_a_batch_processor_that_raises_answers_its_open_rows_with_errors_once() -> None:
    breaking = Breaking(KeyError("oops"))
    handlers = table(Processors("a", {1: breaking, 2: lambda asked: asked.command.answer(0)}))
    rows = [request(1), request(1), request(1), request(2)]
    handlers.handle([row[0] for row in rows])
    breaking.kept[0].answer(0)
    assert [[answer.code for answer in connection.sent] for _, connection in rows] == [[0], [1], [1], [0]]


@pytest.mark.parametrize("error", [PluginError("dispatch failed"), LogPoisoned("the disk failed")])
def test_fatal_errors_in_a_processor_are_not_treated_as_its_bugs(error: Exception) -> None:
    with pytest.raises(type(error)):
        table(Processors("a", {1: Breaking(error)})).handle([request(1)[0], request(1)[0]])

"""Requests wait for their turn in order of their connection, and no connection blocks the others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from gantrymq.kernel import hookimpl, hookspecs
from gantrymq.kernel.config.declarations import LimitsSection
from gantrymq.kernel.manager import PluginManager
from gantrymq.kernel.network.requests import RequestTable
from gantrymq.kernel.network.time_slices import Pace, WaitingRequests
from gantrymq.kernel.processors import AnswerSteps, Heavy, Request
from gantrymq.remoting.codes import ONEWAY_FLAG, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import RemoteFault

SLOW, QUICK, SEND, ASYNC, HEAVY, PREPARED, STEPS = 100, 101, 10, 200, 201, 202, 300
LARGE = bytes(20_000)


class Connection:
    address = "test:1"

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.closed = self.peer_left = self.is_paused = self.reads_nothing = False
        self.codes: list[int] = []

    def send(self, command: Command) -> None:
        self.codes.append(command.code)

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False

    def is_congested(self) -> bool:
        return self.reads_nothing and not self.closed

    def close(self, reason: str) -> None:
        self.closed = True


class Bench:
    """A table whose handlers take 100 ms each by its clock, and note what they did."""

    def __init__(self, **limits: Any) -> None:
        self.now = 0.0
        self.done: list[tuple[str, int]] = []
        self.begun: list[str] = []
        self.spawned: list[tuple[Callable[[Request], Awaitable[None]], Request]] = []
        self.taken_at_once = 1000
        self.awake = 0
        self.running = self.most_running = 0
        self.names: set[str] = set()
        self.gate = trio.Event()
        self.prepared = trio.Event()
        bench = self

        class Plugin:
            name = "p"

            @hookimpl
            def register_processors(self) -> dict[int, Any]:
                return {
                    SLOW: bench.slow, QUICK: bench.quick, SEND: bench, ASYNC: bench.task, HEAVY: Heavy(bench.task),
                    PREPARED: Heavy(bench.task, bench.prepare), STEPS: bench.steps,
                }  # fmt: skip

        def wake() -> None:
            self.awake += 1

        section = LimitsSection(turn_budget=0.15, **limits)
        manager = PluginManager([("p", Plugin())], hookspecs)
        self.table = RequestTable(manager, object(), self.spawn, section, lambda: self.now, wake)

    def note(self, request: Request) -> None:
        self.done.append((request.connection.name, request.command.opaque))  # type: ignore[attr-defined]

    def slow(self, request: Request) -> None:
        self.now += 0.1
        self.note(request)

    def quick(self, request: Request) -> None:
        self.note(request)

    def steps(self, request: Request) -> AnswerSteps:
        """30 steps of 10 ms."""
        self.begun.append(request.connection.name)  # type: ignore[attr-defined]
        if request.command.body.endswith(b"?"):
            raise RemoteFault(ResponseCode.SYSTEM_ERROR, "bad")
        for _ in range(30):
            self.now += 0.01
            yield
        self.note(request)
        return request.command.answer(ResponseCode.SUCCESS)

    def handle(self, requests: list[Request]) -> int:
        for request in requests[: self.taken_at_once]:
            self.note(request)
        return self.taken_at_once

    def spawn(self, function: Callable[[Request], Awaitable[None]], request: Request) -> None:
        self.spawned.append((function, request))

    async def prepare(self, request: Request) -> None:
        await self.prepared.wait()
        if request.command.body == b"?":
            raise RemoteFault(ResponseCode.SYSTEM_ERROR, "bad")

    async def task(self, request: Request) -> None:
        self.running += 1
        self.most_running = max(self.running, self.most_running)
        self.names.add(request.connection.name)  # type: ignore[attr-defined]
        await self.gate.wait()
        self.running -= 1
        self.note(request)


def ask(connection: Connection, code: int, opaque: int, *, body: bytes = b"", oneway: bool = False) -> Request:
    command = Command(code, body=body, opaque=opaque, flag=ONEWAY_FLAG if oneway else 0)
    return Request(connection, command)  # type: ignore[arg-type]


def test_the_rest_of_a_turn_is_deferred_and_connections_alternate() -> None:
    bench, a, b = Bench(), Connection("a"), Connection("b")
    bench.table.handle([ask(a, SLOW, number) for number in range(6)] + [ask(b, SLOW, number) for number in range(2)])
    assert bench.done == [("a", 0), ("a", 1)]
    assert a.is_paused
    assert b.is_paused
    bench.table.handle([])
    assert bench.done[2:] == [("a", 2), ("b", 0)], "one of each"
    bench.table.handle([])
    assert bench.done[4:] == [("a", 3), ("b", 1)]
    assert not b.is_paused
    while bench.table.waiting:
        bench.table.handle([])
    assert bench.done[6:] == [("a", 4), ("a", 5)]
    assert not a.is_paused
    assert bench.table.waiting.bytes == 0


def test_a_large_request_is_processed_in_steps_while_its_connection_waits() -> None:
    bench, a, b, c = Bench(), Connection("a"), Connection("b"), Connection("c")
    bench.table.handle(
        [
            ask(a, STEPS, 0, body=LARGE),
            ask(a, QUICK, 1),
            ask(b, STEPS, 0, body=LARGE),
            ask(a, SEND, 2),
            ask(c, QUICK, 0),
        ]
    )
    assert bench.done == [("c", 0)]
    assert a.is_paused
    assert b.is_paused
    turns = 0
    while bench.table.has_waiting():
        assert len(bench.begun) <= 1 + (("a", 0) in bench.done), "others begin when it is done"
        begun = bench.now
        bench.table.handle([ask(c, QUICK, 1 + turns)])
        assert bench.now - begun < 0.2
        assert ("c", 1 + turns) in bench.done, "it does not wait"
        turns += 1
    assert turns >= 6, "of 75 ms each"
    assert [row for row in bench.done if row[0] == "a"] == [("a", 0), ("a", 1), ("a", 2)]
    assert bench.begun == ["a", "b"]
    assert a.codes == b.codes == [ResponseCode.SUCCESS]
    assert not a.is_paused
    assert bench.table.waiting.bytes == 0


def test_a_request_in_steps_waits_behind_others_of_its_connection() -> None:
    bench, a = Bench(), Connection("a")
    codes = [SLOW, SLOW, SLOW, STEPS, STEPS, QUICK, SEND, STEPS]
    bench.table.handle([ask(a, code, number, body=LARGE) for number, code in enumerate(codes)])
    while bench.table.has_waiting():
        bench.table.handle([])
    assert bench.done == [("a", number) for number in range(len(codes))]
    assert bench.table.waiting.bytes == 0


def test_a_small_request_is_not_divided() -> None:
    bench, a = Bench(), Connection("a")
    bench.table.handle([ask(a, STEPS, 0), ask(a, STEPS, 1, body=b"?")])
    assert bench.done == [("a", 0)]
    bench.table.handle([])
    assert a.codes == [ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR]


def test_a_stepwise_request_that_fails_or_is_disconnected_frees_its_place() -> None:
    bench, a, b, c = Bench(), Connection("a"), Connection("b"), Connection("c")
    bench.table.handle(
        [ask(a, STEPS, 0, body=LARGE), ask(b, STEPS, 0, body=LARGE + b"?"), ask(c, STEPS, 0, body=LARGE)]
    )
    a.closed = True
    while bench.table.has_waiting():
        bench.table.handle([])
    assert bench.begun == ["a", "b", "c"]
    assert bench.done == [("c", 0)]
    assert (a.codes, b.codes, c.codes) == ([], [ResponseCode.SYSTEM_ERROR], [ResponseCode.SUCCESS])
    assert bench.table.waiting.bytes == 0


@pytest.mark.parametrize("code", [SEND, SLOW])
def test_waiting_requests_are_served_under_any_load(code: int) -> None:
    bench, a = Bench(), Connection("a")
    bench.table.handle([ask(a, SLOW, number) for number in range(6)])
    for number in range(8):
        b = Connection("b")
        bench.table.handle([ask(b, code, 2 * number), ask(b, code, 2 * number + 1)])
    assert [number for name, number in bench.done if name == "a"] == list(range(6))


def test_requests_of_a_connection_keep_their_order() -> None:
    bench, a, b = Bench(), Connection("a"), Connection("b")
    codes = [SLOW, SLOW, SLOW, SEND, SEND, QUICK, SEND, SLOW, SEND]
    bench.table.handle([*(ask(a, code, number) for number, code in enumerate(codes)), ask(b, SEND, 0)])
    while bench.table.waiting:
        bench.table.handle([])
    assert [number for name, number in bench.done if name == "a"] == list(range(len(codes)))
    assert bench.done.index(("b", 0)) < bench.done.index(("a", 3)), "a client without heavy requests does not wait"


def test_a_batch_processor_may_defer_requests_to_a_later_turn() -> None:
    bench, a, b = Bench(), Connection("a"), Connection("b")
    bench.taken_at_once = 2
    bench.table.handle([ask(a, SEND, 0), ask(a, SEND, 1), ask(a, SEND, 2), ask(b, SEND, 0), ask(a, QUICK, 3)])
    while bench.table.waiting:
        bench.table.handle([])
    assert [number for name, number in bench.done if name == "a"] == [0, 1, 2, 3]
    assert ("b", 0) in bench.done


def test_requests_of_a_closed_connection_are_dropped_except_oneway_ones() -> None:
    for attribute in ("closed", "peer_left"):
        bench, a = Bench(), Connection("a")
        bench.table.handle([ask(a, SLOW, number, oneway=number % 5 == 4) for number in range(20)])
        done = len(bench.done)
        setattr(a, attribute, True)
        while bench.table.waiting:
            bench.table.handle([])
        assert [number for _, number in bench.done[done:]] == [4, 9, 14, 19]
        assert bench.table.waiting.bytes == 0


def test_requests_beyond_the_memory_limit_are_refused_with_rocketmqs_code() -> None:
    bench, a = Bench(waiting_bytes=1024 * 1024), Connection("a")
    body = bytes(300 * 1024)
    bench.table.handle([ask(a, SLOW, 0), ask(a, SLOW, 1), *(ask(a, SLOW, number, body=body) for number in range(2, 9))])
    assert a.codes == [ResponseCode.SYSTEM_BUSY] * 4
    while bench.table.waiting:
        bench.table.handle([])
    assert len(bench.done) == 5


def test_a_body_beyond_the_limit_is_refused_with_the_settings_name() -> None:
    bench, a = Bench(request_body_bytes=64 * 1024), Connection("a")
    bench.table.handle([ask(a, SLOW, 0, body=bytes(64 * 1024 + 1)), ask(a, SEND, 1, body=bytes(64 * 1024 + 1))])
    assert a.codes == [ResponseCode.SYSTEM_ERROR]
    assert bench.done == [("a", 1)], "a message has a limit of its own"


@pytest.mark.trio
async def test_tasks_process_a_limited_number_of_requests_of_a_connection() -> None:
    bench, a, b = Bench(requests_in_flight=3), Connection("a"), Connection("b")
    bench.table.handle([*(ask(a, ASYNC, number) for number in range(8)), ask(a, QUICK, 8), ask(b, ASYNC, 0)])
    assert [request.connection.name for _, request in bench.spawned] == ["a", "a", "a", "b"]  # type: ignore[attr-defined]
    bench.table.handle([])
    assert not bench.table.waiting, "nothing to do before one ends"
    assert a.is_paused
    bench.gate.set()
    while bench.spawned:
        function, request = bench.spawned.pop(0)
        await function(request)
        assert bench.awake or not a.is_paused
        bench.table.handle([])
    assert sorted(number for name, number in bench.done if name == "a") == list(range(9))
    assert not a.is_paused
    assert bench.table.waiting.bytes == 0


@pytest.mark.trio
async def test_heavy_requests_run_one_for_each_connection_and_few_in_total() -> None:
    bench = Bench(heavy_requests=2)
    peers = [Connection(str(number)) for number in range(5)]
    bench.table.handle([ask(peer, HEAVY, number) for number in range(3) for peer in peers])
    bench.table.handle([ask(peers[0], HEAVY, 9, oneway=True)])
    assert len(bench.spawned) == 5, "one of each"
    async with trio.open_nursery() as nursery:

        async def work() -> None:
            while len(bench.done) < 15:
                while bench.spawned:
                    nursery.start_soon(*bench.spawned.pop(0))
                bench.table.handle([])
                await trio.lowlevel.checkpoint()

        nursery.start_soon(work)
        for _ in range(10):
            await trio.lowlevel.checkpoint()
        assert bench.running == 2
        gone = next(peer for peer in peers if peer.name not in bench.names)
        gone.closed = True
        bench.done += [(gone.name, number) for number in range(3)]
        bench.gate.set()
    assert bench.most_running == 2
    assert len(bench.done) == 15, "what the closed connection asked for was not done"


@pytest.mark.trio
async def test_heavy_requests_leave_their_place_to_others_until_they_are_prepared(nursery: trio.Nursery) -> None:
    bench, first, bad, other = Bench(heavy_requests=1), Connection("first"), Connection("bad"), Connection("other")
    bench.gate.set()
    bench.table.handle([ask(first, PREPARED, 0), ask(bad, PREPARED, 0, body=b"?"), ask(other, HEAVY, 0)])
    for function, request in bench.spawned:
        nursery.start_soon(function, request)
    await trio.testing.wait_all_tasks_blocked()
    assert bench.done == [("other", 0)]
    bench.prepared.set()
    await trio.testing.wait_all_tasks_blocked()
    assert bench.done == [("other", 0), ("first", 0)]
    assert bad.codes == [ResponseCode.SYSTEM_ERROR]
    assert bench.table.waiting.bytes == 0


@pytest.mark.trio
async def test_heavy_requests_of_a_slow_reader_wait_and_leave_their_place_to_others(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    bench = Bench(heavy_requests=1)
    slow, other = Connection("slow"), Connection("other")
    slow.reads_nothing = True
    bench.gate.set()
    bench.table.handle([ask(slow, HEAVY, 0), ask(other, HEAVY, 0)])
    for function, request in bench.spawned:
        nursery.start_soon(function, request)
    await trio.sleep(100.0)
    assert bench.done == [("other", 0)]
    slow.reads_nothing = False
    await trio.sleep(1.0)
    assert bench.done == [("other", 0), ("slow", 0)]
    assert not slow.closed
    assert bench.table.waiting.bytes == 0


@pytest.mark.trio
@pytest.mark.parametrize("left", ["", "closed", "peer_left"])
async def test_a_heavy_request_does_not_wait_for_a_reader_longer_than_the_idle_limit(
    autojump_clock: trio.testing.MockClock, left: str
) -> None:
    bench, slow = Bench(idle=30.0), Connection("slow")
    slow.reads_nothing = True
    bench.gate.set()
    bench.table.handle([ask(slow, HEAVY, 0)])
    if left:
        setattr(slow, left, True)
    with capture_logs() as logs:
        for function, request in bench.spawned:
            await function(request)
    assert bench.done == []
    assert bench.table.waiting.bytes == 0
    if left:
        assert logs == []
        assert trio.current_time() < 1.0
    else:
        assert slow.closed
        (line,) = logs
        assert line["event"] == "slow_reader_closed"
        assert "limits.idle" in line["reason"]
        assert trio.current_time() == pytest.approx(30.0, abs=0.1)


@pytest.mark.trio
async def test_long_work_yields_when_its_slice_ends() -> None:
    now, rests = 0.0, 0

    def yield_to_tasks() -> None:
        nonlocal rests
        rests += 1

    pace = Pace(lambda: now, 1.0, yield_to_tasks)
    for _ in range(40):
        now += 0.25
        await pace.checkpoint()
    assert rests == 10


def test_a_compiled_request_that_waits_owns_its_frame() -> None:
    """Otherwise it would keep all bytes alive that were received with it, which no limit counts."""
    owned: list[str] = []
    waiting = WaitingRequests(LimitsSection())
    request: Any = SimpleNamespace(connection=Connection(), size=3, own_frame=lambda: owned.append("frame"))
    waiting.put(request)
    assert owned == ["frame"]
    owned.clear()
    waiting.put_back(waiting.take(lambda _: True, 1))
    assert owned == ["frame"]

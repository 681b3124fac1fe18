"""The hook ``authorize`` runs once per turn before any processor; undecided requests are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import structlog

from gantrymq.kernel import hookimpl, hookspecs
from gantrymq.kernel.authorization import authorized
from gantrymq.kernel.errors import PluginError, StartError
from gantrymq.kernel.manager import PluginManager
from gantrymq.kernel.processors import Request, RequestBatch
from gantrymq.remoting.codes import ONEWAY_FLAG, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.send import topic_in


class Peer:
    address = "test:1"

    def __init__(self) -> None:
        self.sent: list[tuple[int, str | None]] = []

    def send(self, command: Command) -> None:
        self.sent.append((command.code, command.remark))


class Guard:
    def __init__(self, name: str, decide: Callable[[RequestBatch], Any]) -> None:
        self.name = name
        self.decide = decide

    @hookimpl
    def authorize(self, batch: RequestBatch) -> None:
        self.decide(batch)


def chain(*guards: Any) -> tuple[Callable[[list[Request]], None], list[list[int]]]:
    """A handler of requests, and the opaques of the permitted ones for each call."""
    taken: list[list[int]] = []
    manager = PluginManager([(guard.name, guard) for guard in guards], hookspecs)
    take = authorized(manager, lambda rows: taken.append([row.command.opaque for row in rows]), lambda: 0.0)
    return take, taken


def requests(*codes: int, flag: int = 0) -> tuple[list[Request], list[Peer]]:
    peers = [Peer() for _ in codes]
    rows: list[Any] = [
        Request(peer, Command(code, opaque=number, flag=flag))  # type: ignore[arg-type]
        for number, (peer, code) in enumerate(zip(peers, codes, strict=True))
    ]
    return rows, peers


def test_without_an_authorizing_plugin_requests_go_straight_to_the_processors() -> None:
    def take(rows: list[Request]) -> None: ...

    assert authorized(PluginManager([], hookspecs), take, lambda: 0.0) is take


def test_refused_requests_are_answered_and_no_processor_sees_them() -> None:
    seen: list[list[int]] = []

    def first(batch: RequestBatch) -> None:
        seen.append([batch.requests[row].code for row in batch.live])
        for row in batch.live:
            if batch.requests[row].code == 11:
                batch.refuse(row, ResponseCode.NO_PERMISSION, "not you")

    def second(batch: RequestBatch) -> None:
        seen.append([batch.requests[row].code for row in batch.live])
        batch.refuse(1, ResponseCode.SYSTEM_ERROR, "the first refusal stands")

    take, taken = chain(Guard("a", first), Guard("b", second))
    rows, peers = requests(10, 11, 999)
    take(rows)
    assert seen == [[10, 11, 999], [10, 999]]
    assert taken == [[0, 2]]
    assert [peer.sent for peer in peers] == [[], [(16, "not you")], []]


def test_a_refused_oneway_request_is_dropped() -> None:
    take, taken = chain(Guard("a", lambda batch: batch.refuse(0, 16, "no")))
    rows, peers = requests(10, flag=ONEWAY_FLAG)
    take(rows)
    assert (taken, peers[0].sent) == ([[]], [])


def test_a_turn_without_requests_calls_no_plugin() -> None:
    take, taken = chain(Guard("a", lambda batch: pytest.fail("it was asked")))
    take([])
    assert taken == [[]]


@pytest.mark.parametrize("on_error", ["stop", "skip", "disable"])
def test_a_plugin_that_raises_refuses_only_that_request_whatever_its_policy(on_error: str) -> None:
    def decide(batch: RequestBatch) -> None:
        for row in batch.live:
            if batch.requests[row].code == 666:
                raise KeyError("oops")
            if batch.requests[row].code == 11:
                batch.refuse(row, 16, "no")

    guard = Guard("guard", decide)
    guard.on_error = on_error  # type: ignore[attr-defined]
    take, taken = chain(guard)
    rows, peers = requests(10, 666, 11, 10)
    with structlog.testing.capture_logs() as logs:
        take(rows)
        take(requests(666, 666)[0])
    failed = (1, "the plugin 'guard' failed to authorize the request")
    assert taken == [[0, 3], []]
    assert [peer.sent for peer in peers] == [[], [failed], [(16, "no")], []]
    (line,) = [line for line in logs if line["event"] == "authorization_failed"]
    assert line["plugin"] == "guard"
    assert "authorize failed: KeyError('oops') at " in line["reason"], "one line an hour, with the place"


def test_fatal_errors_of_plugins_end_the_broker() -> None:
    def decide(batch: RequestBatch) -> None:
        raise PluginError("the end")

    with pytest.raises(PluginError):
        chain(Guard("a", decide))[0](requests(10)[0])


def test_a_refusal_needs_an_error_code_and_an_existing_row() -> None:
    batch = RequestBatch(requests(10)[0])
    with pytest.raises(ValueError, match="code 0"):
        batch.refuse(0, 0, "fine")
    for row in (1, -1):
        with pytest.raises(IndexError, match="the batch has 1"):
            batch.refuse(row, 16, "no")
    assert list(batch.live) == [0]


def test_a_hook_implementation_that_compiled_code_would_bypass_stops_the_start() -> None:
    class Wrapping:
        name = "wrapping"

        @hookimpl(wrapper=True)
        def authorize(self, batch: RequestBatch) -> Any:
            return (yield)

    class Blind:
        name = "blind"

        @hookimpl
        def authorize(self) -> None: ...

    for plugin in (Wrapping(), Blind()):
        with pytest.raises(StartError, match=f"plugin '{plugin.name}': authorize cannot wrap others"):
            chain(plugin)


@pytest.mark.parametrize(
    ("code", "ext", "topic"),
    [
        (10, {"topic": "T"}, "T"), (10, {"b": "T"}, "T"), (10, {"topic": "T", "b": "U"}, "U"),
        (10, {"b": "U", "topic": "T"}, "T"), (324, {"topic": "T"}, "T"), (310, {"b": "T", "topic": "U"}, "T"),
        (320, {"b": "T"}, "T"), (325, {"b": "T"}, "T"), (310, {"topic": "U"}, None), (11, {"topic": "T"}, "T"),
        (17, {"topic": "T", "b": "U"}, "T"), (34, {}, None), (10, {}, None),
    ],
)  # fmt: skip
def test_the_topic_equals_the_one_that_the_processor_reads(code: int, ext: dict[str, str], topic: str | None) -> None:
    assert topic_in(code, ext) == topic


def test_an_observer_gets_the_first_response_of_any_kind_and_cannot_prevent_it() -> None:
    seen: list[tuple[int, int, str | None]] = []

    def watch(batch: RequestBatch) -> None:
        for row in batch.live:
            code = batch.requests[row].code
            batch.observe(row, lambda result, remark, code=code: seen.append((code, result, remark)))
            batch.observe(row, lambda result, remark: [][result])

    rows, peers = requests(10, 11)
    oneway, [silent] = requests(12, flag=ONEWAY_FLAG)
    manager = PluginManager([("watch", Guard("watch", watch))], hookspecs)
    taken: list[Request] = []
    take = authorized(manager, taken.extend, lambda: 0.0)
    with structlog.testing.capture_logs() as logs:
        take(rows)
        take(oneway)
        for request in taken:
            request.answer(0 if request.code == 10 else 7, "why")
            request.answer(5, "a second response")
    assert seen == [(10, 0, "why"), (11, 7, "why"), (12, 7, "why")]
    assert [peer.sent for peer in peers] == [[(0, "why")], [(7, "why")]]
    assert silent.sent == []
    assert [each["event"] for each in logs] == ["response_observer_failed"] * 3


def test_a_row_stays_observed_where_another_row_fails() -> None:
    seen: list[int] = []

    def watch(batch: RequestBatch) -> None:
        for row in batch.live:
            if batch.requests[row].code == 11:
                raise KeyError("oops")
            batch.observe(row, lambda result, _remark: seen.append(result))

    rows, _ = requests(10, 11)
    manager = PluginManager([("watch", Guard("watch", watch))], hookspecs)
    taken: list[Request] = []
    authorized(manager, taken.extend, lambda: 0.0)(rows)
    [request] = taken
    request.answer(7)
    assert seen == [7]

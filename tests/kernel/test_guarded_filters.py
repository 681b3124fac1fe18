"""Errors of third-party filters become a response and are reported with the plugin's name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from gantrymq.kernel import hookspecs
from gantrymq.kernel.filters import CodeFilter, FilterCompiler, RecordFilter
from gantrymq.kernel.guarded_filters import FilterGuards
from gantrymq.kernel.manager import PluginManager
from gantrymq.plugins.filter import FilterPlugin
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.steps import run_steps

pytestmark = pytest.mark.once


class Regions:
    """The plugin whose filters fail."""

    name = "regions"


class Entries:
    """A filter that calls ``test``."""

    matches_all = False

    def __init__(self, test: Callable[[int], Any]) -> None:
        self.test = test

    def matches(self, tag_code: int) -> bool:
        return self.test(tag_code)  # type: ignore[no-any-return]


class Records(RecordFilter):
    """A filter that calls ``choose`` and has the work ``work``."""

    def __init__(self, choose: Callable[[Sequence[bytes]], Any], work: Any = 1) -> None:
        self.choose, self.work = choose, work

    def matches(self, tag_code: int) -> bool:
        return True

    def select(self, properties: Sequence[bytes]) -> list[bool]:
        return self.choose(properties)  # type: ignore[no-any-return]

    def cost(self, size: int) -> int:
        return self.work  # type: ignore[no-any-return]


class Codes(CodeFilter):
    """A filter of these codes."""

    def __init__(self, *codes: Any) -> None:
        self.codes = frozenset(codes)


def guards() -> tuple[PluginManager, FilterGuards]:
    manager = PluginManager([("regions", Regions()), ("filter", FilterPlugin())], hookspecs)
    return manager, FilterGuards(manager, lambda: 0.0)


def guarded(compiler: Any) -> FilterCompiler:
    manager, made = guards()
    return made.guard(manager.plugins[0], "REGION", compiler)


def compiled(made: Any) -> Any:
    """The guarded filter for ``made``."""
    return guarded(lambda expression: made)("e")


def bug(*arguments: Any) -> Any:
    raise KeyError("a bug")


def bug_in_steps(expression: str) -> Any:
    yield
    raise KeyError("a bug")


FAILING: dict[str, Callable[[], Any]] = {
    "a compiler": lambda: guarded(bug)("e"),
    "a compiler in steps": lambda: run_steps(guarded(bug_in_steps)("e")),  # type: ignore[arg-type]
    "a compiler that returns no filter": lambda: guarded(lambda expression: None)("e"),
    "a test of an entry": lambda: compiled(Entries(bug)).matches(1),
    "a choice of records": lambda: compiled(Records(bug)).select([b""]),
    "too few results": lambda: compiled(Records(lambda properties: [True])).select([b"", b""]),
    "too many results": lambda: compiled(Records(lambda properties: [True] * 3)).select([b"", b""]),
    "no cost": lambda: compiled(Records(bug, 0)).cost(5),
    "an endless cost": lambda: compiled(Records(bug, float("inf"))).cost(5),
    "codes that are no numbers": lambda: compiled(Codes("a")),
    "codes that are too large": lambda: compiled(Codes(2**63)),
}


@pytest.mark.parametrize("failing", FAILING.values(), ids=FAILING)
def test_an_error_becomes_the_response_to_the_pull(failing: Callable[[], Any]) -> None:
    with (
        pytest.raises(RemoteFault, match="the filter 'REGION' of the plugin 'regions' failed") as caught,
        capture_logs(),
    ):
        failing()
    assert caught.value.code == ResponseCode.SYSTEM_ERROR


def test_an_error_is_counted_and_logged_once_an_hour_under_the_plugin_of_the_filter() -> None:
    manager, made = guards()
    compiler = made.guard(manager.plugins[0], "REGION", lambda expression: Entries(bug))
    with capture_logs() as logs:
        for _ in range(3):
            with pytest.raises(RemoteFault):
                compiler("e").matches(1)  # type: ignore[union-attr]
    [line] = logs
    assert (line["event"], line["log_level"], line["plugin"]) == ("filter_failed", "error", "regions")
    assert "plugin 'regions': its filter 'REGION' failed: KeyError('a bug') at " in line["reason"]
    assert manager.activity.errors["regions"]["register_filters"].count == 3


def test_a_refusal_of_a_compiler_stays_as_it_is() -> None:
    def refuse(expression: str) -> Any:
        raise RemoteFault(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "no")

    def refuse_later(expression: str) -> Any:
        yield
        refuse(expression)

    for failing in (lambda: guarded(refuse)("e"), lambda: run_steps(guarded(refuse_later)("e"))):  # type: ignore[arg-type]
        with pytest.raises(RemoteFault, match="no") as caught, capture_logs() as logs:
            failing()
        assert (caught.value.code, logs) == (ResponseCode.SUBSCRIPTION_PARSE_FAILED, [])


def test_correct_filters_decide_as_without_the_guard() -> None:
    entries = compiled(Entries(lambda code: code == 1))
    assert [entries.matches(1), entries.matches(2), entries.matches_all] == [True, False, False]
    records = compiled(Records(lambda properties: (each == b"a" for each in properties), 0.5))
    assert isinstance(records, RecordFilter)
    assert (records.select([b"a", b"b"]), records.cost(9), records.matches_all) == ([True, False], 1, False)
    codes = compiled(Codes(1, 2))
    assert isinstance(codes, CodeFilter)
    assert (codes.codes, codes.matches_all) == ({1, 2}, False)
    assert [codes.matches(code) for code in (1, 3, -(2**40))] == [True, False, True]
    assert compiled(Codes()).matches_all


def test_a_filter_of_records_does_not_match_all_whatever_it_says() -> None:
    class All(Records):
        matches_all = True

    assert not compiled(All(lambda properties: [False] * len(properties))).matches_all


def test_shipped_filters_are_used_without_a_guard() -> None:
    manager, made = guards()
    compiler: FilterCompiler = Entries
    assert made.guard(manager.plugins[1], "TAG", compiler) is compiler

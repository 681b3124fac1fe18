"""Errors in observing hooks affect their own plugin only."""

from __future__ import annotations

from typing import Any

import pytest
import structlog

from gantrymq.kernel import hookimpl, hookspecs
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.manager import PluginManager
from gantrymq.kernel.observers import FAILURES_MAX, Observers, observe
from gantrymq.kernel.plugin_activity import PluginActivity

pytestmark = pytest.mark.once


class Watcher:
    name = "watcher"

    def __init__(self) -> None:
        self.seen: list[Any] = []

    @hookimpl
    def acked(self, batch: Any) -> None:
        self.seen.append(batch)


class Failing(Watcher):
    name = "failing"

    @hookimpl
    def acked(self, batch: Any) -> None:
        self.seen.append(batch)
        raise ValueError("a bug")


class Essential(Failing):
    name = "essential"
    essential = True


class Simple(Watcher):
    name = "simple"

    @hookimpl
    def acked(self) -> None:
        self.seen.append("called")


class Wrapping:
    name = "wrapping"

    @hookimpl(wrapper=True)
    def acked(self, batch: Any) -> Any:
        return (yield)


def manager_of(*plugins: Any) -> PluginManager:
    return PluginManager([(each.name, each) for each in plugins], hookspecs)


def test_without_an_implementation_there_is_nothing_to_call() -> None:
    assert observe(manager_of(Watcher()), "appended") is None
    assert observe(manager_of(Watcher()), "acked") is not None


def test_a_plugin_that_fails_ten_times_is_not_called_again_unless_it_is_essential() -> None:
    failing, essential, simple, watcher = Failing(), Essential(), Simple(), Watcher()
    manager = manager_of(failing, essential, simple, watcher)
    call = Observers(manager, "acked")
    with structlog.testing.capture_logs() as lines:
        for number in range(FAILURES_MAX + 3):
            call([number])
    assert (len(failing.seen), len(essential.seen)) == (FAILURES_MAX, FAILURES_MAX + 3)
    assert (len(watcher.seen), len(simple.seen)) == (FAILURES_MAX + 3, FAILURES_MAX + 3)
    disabled = [line["plugin"] for line in lines if line["event"] == "plugin_failed" and line["disabled"]]
    assert disabled == ["failing"]
    errors = manager.activity.errors
    assert (errors["failing"]["acked"].count, errors["essential"]["acked"].count) == (FAILURES_MAX, FAILURES_MAX + 3)
    assert errors["failing"]["acked"].last == "ValueError: a bug"


def test_calls_are_timed_and_a_disabled_one_stays_so() -> None:
    now = [1.0]
    failing, watcher = Failing(), Watcher()
    manager = manager_of(failing, watcher)
    manager.activity = PluginActivity(lambda: now[0])
    call, times = Observers(manager, "acked"), manager.activity.times
    call([1])
    assert times.totals["watcher", "acked"].calls == 0
    times.measure_for(5.0)
    for _ in range(FAILURES_MAX):
        call([1, 2])
    assert (times.totals["watcher", "acked"].calls, times.totals["watcher", "acked"].rows) == (10, 20)
    now[0] = 10.0
    call([1])
    times.measure_for(5.0)
    call([1])
    assert len(failing.seen) == FAILURES_MAX
    assert len(watcher.seen) == FAILURES_MAX + 3


def test_a_plugin_that_wraps_an_observing_hook_is_refused() -> None:
    with pytest.raises(StartError, match=r"plugin 'wrapping': acked cannot wrap others; it must be acked\(self, batch"):
        observe(manager_of(Wrapping()), "acked")

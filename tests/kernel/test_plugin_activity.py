"""Times of hooks are measured on request only, and the original calls are restored afterwards."""

from __future__ import annotations

from typing import Any

import pytest

from gantrymq.kernel import hookimpl, hookspecs
from gantrymq.kernel.manager import PluginManager
from gantrymq.kernel.plugin_activity import FILES_MAX, TEXT_MAX_CHARS, PluginActivity


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Slow:
    """Each call takes as many seconds as the batch has rows."""

    name = "slow"

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    @hookimpl
    def before_append(self, batch: list[Any]) -> None:
        self.clock.now += len(batch)
        if not batch:
            raise ValueError("empty")

    @hookimpl
    def authorize(self, batch: list[Any]) -> None:
        self.clock.now += 0.5


class Other(Slow):
    name = "other"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def manager(clock: Clock) -> PluginManager:
    made = PluginManager([("slow", Slow(clock)), ("other", Other(clock))], hookspecs)
    made.activity = PluginActivity(clock)
    return made


def test_calls_are_timed_for_the_requested_period(manager: PluginManager, clock: Clock) -> None:
    call: Any = manager.on_batches("before_append")
    times = manager.activity.times
    call([1])
    assert not times.is_on
    assert [total.calls for total in times.totals.values()] == [0, 0]
    times.measure_for(10)
    assert times.is_on
    call([1, 2])
    call([1])
    slow = times.totals["slow", "before_append"]
    assert (slow.calls, slow.rows, slow.seconds) == (2, 3, 3.0)
    assert slow.counts == [0, 0, 0, 0, 0, 1, 1]
    call([1] * 4)  # the time is over in the middle: this call is the last that is timed
    call([1] * 4)
    assert (slow.calls, slow.rows) == (3, 7)
    assert not times.is_on


def test_calls_are_not_wrapped_while_timing_is_off(manager: PluginManager, clock: Clock) -> None:
    pairs = manager.batch_functions("authorize")
    call: Any = manager.on_batches("before_append")
    functions = call.__closure__[call.__code__.co_freevars.index("functions")].cell_contents
    before = list(functions), list(pairs)
    manager.activity.times.measure_for(1)
    assert functions != before[0]
    assert pairs != before[1]
    call([1, 2])
    for _, function in list(pairs):
        function([1])
    assert (functions, pairs) == before


def test_functions_registered_later_are_timed(manager: PluginManager) -> None:
    manager.activity.times.measure_for(float("inf"))
    for _, function in manager.batch_functions("authorize"):
        function([1, 2, 3])
    totals = manager.activity.times.totals
    assert {key: (total.calls, total.rows, total.seconds) for key, total in totals.items()} == {
        ("slow", "authorize"): (1, 3, 0.5),
        ("other", "authorize"): (1, 3, 0.5),
    }


def test_a_hook_that_raises_is_timed_and_attributed_to_its_plugin(manager: PluginManager) -> None:
    call: Any = manager.on_batches("before_append")
    manager.activity.times.measure_for(10)
    with pytest.raises(ValueError, match="empty") as raised:
        call([])
    assert manager.failing_plugin("before_append", raised.value) is not None
    assert manager.activity.times.totals["slow", "before_append"].calls == 1


def test_recorded_errors_and_files_are_limited(clock: Clock) -> None:
    activity = PluginActivity(clock)
    for number in range(3):
        activity.failed("slow", "dispatch", ValueError(f"{number}" * 1000))
    found = activity.errors["slow"]["dispatch"]
    assert found.count == 3
    assert found.last.startswith("ValueError: 222")
    assert len(found.last) == TEXT_MAX_CHARS
    for number in range(FILES_MAX + 5):
        activity.wrote("slow", f"file-{number % (FILES_MAX + 2)}")
    assert len(activity.files["slow"]) == FILES_MAX

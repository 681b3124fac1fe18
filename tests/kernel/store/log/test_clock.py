"""The store's clock never goes back, jumps or stands still."""

from __future__ import annotations

import pytest

from gantrymq.kernel.store.log.clock import SLOWER, StoreClock
from gantrymq.testing.memory_env import MemoryEnv

HOUR_MS = 3_600_000


def test_the_clock_follows_the_machine_if_the_store_is_older() -> None:
    env = MemoryEnv()
    clock = StoreClock(env)
    clock.begin(env.wall - 5)
    assert clock.now_ms() == env.wall
    env.advance(1000)
    assert clock.now_ms() == env.wall


def test_after_a_step_back_the_clock_slows_down_until_it_agrees_with_the_machine() -> None:
    env = MemoryEnv()
    last = env.wall + HOUR_MS
    clock = StoreClock(env)
    clock.begin(last)
    assert clock.now_ms() == last
    env.advance(1000)
    assert clock.now_ms() == last + 1000 - 1000 // SLOWER
    env.advance(SLOWER * HOUR_MS - 1000)
    assert clock.now_ms() == env.wall
    env.advance(1)
    assert clock.now_ms() == env.wall


@pytest.mark.parametrize("ahead", [0, 1, 9, 10, 11, 1000, HOUR_MS, 365 * 24 * HOUR_MS])
def test_the_clock_never_falls_and_never_runs_faster_than_time(ahead: int) -> None:
    env = MemoryEnv()
    clock = StoreClock(env)
    clock.begin(env.wall + ahead)
    before = clock.now_ms()
    for step in [1] * 50 + [7, 13, 1000, 60_000, HOUR_MS, 40 * HOUR_MS]:
        env.advance(step)
        now = clock.now_ms()
        assert 0 <= now - before <= step
        before = now


@pytest.mark.parametrize("ahead", [-5, 0, 1, 9, 1000, HOUR_MS, 365 * 24 * HOUR_MS])
def test_the_clock_predicts_its_value_for_a_machine_time(ahead: int) -> None:
    env = MemoryEnv()
    clock = StoreClock(env)
    clock.begin(env.wall + ahead)
    for step in [1] * 30 + [7, 1000, 60_000, HOUR_MS, 40 * HOUR_MS]:
        promised = clock.at_wall(env.wall + step)
        assert promised >= clock.now_ms()
        env.advance(step)
        assert clock.now_ms() == promised
        assert clock.ahead_ms == promised - env.wall

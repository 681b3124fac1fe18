"""Useless waits become rare, and a useful one ends the backoff."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gantrymq.kernel.network.adaptive_wait import CYCLE_BLOCKS, TRIAL_BLOCKS, AdaptiveWait, PollingTrial

pytestmark = pytest.mark.once


def waits_of(adaptive: AdaptiveWait, times: int, *, paid: bool) -> list[int]:
    """The opportunities at which the caller waits, if each wait has the same result."""
    waited = []
    for number in range(times):
        if adaptive.should_wait():
            waited.append(number)
            adaptive.record(paid)
    return waited


def test_each_useless_wait_doubles_the_skipped_ones_up_to_63() -> None:
    waited = waits_of(AdaptiveWait(), 500, paid=False)
    assert waited[0] == 0
    assert [after - before for before, after in pairwise(waited)] == [2, 4, 8, 16, 32, 64, 64, 64, 64, 64, 64]


def test_useful_waits_are_never_skipped() -> None:
    assert waits_of(AdaptiveWait(), 50, paid=True) == list(range(50))


def test_one_useful_wait_ends_the_backoff() -> None:
    adaptive = AdaptiveWait()
    waits_of(adaptive, 200, paid=False)
    while not adaptive.should_wait():
        pass
    adaptive.record("what it brought")
    assert waits_of(adaptive, 10, paid=True) == list(range(10))


def test_waits_without_reported_results_are_never_skipped() -> None:
    adaptive = AdaptiveWait()
    assert all(adaptive.should_wait() for _ in range(5))


def ways_of(seconds: dict[bool, float], blocks: int) -> list[bool]:
    """For each block, whether a trial polls; ``seconds`` are the durations of a block with and without polling."""
    trial, ways = PollingTrial(), []
    for _ in range(blocks):
        ways.append(trial.polls)
        trial.record(seconds[trial.polls])
    return ways


@pytest.mark.parametrize(("polling", "asleep", "faster"), [(3.0, 4.0, True), (4.0, 3.0, False), (3.9, 4.0, False)])
def test_a_trial_of_both_ways_decides_whether_to_poll_until_the_next_trial(
    polling: float, asleep: float, faster: bool
) -> None:
    ways = ways_of({True: polling, False: asleep}, 2 * CYCLE_BLOCKS)
    one_cycle = [True, False] * (TRIAL_BLOCKS // 2) + [faster] * (CYCLE_BLOCKS - TRIAL_BLOCKS)
    assert ways == one_cycle * 2


def test_a_block_that_other_work_interrupted_does_not_decide() -> None:
    trial = PollingTrial()
    for seconds in (0.003, 0.004, 0.9, 0.004, 0.003, 0.004):
        trial.record(seconds)
    assert trial.polls


def test_a_trial_forgets_the_times_of_the_previous_one() -> None:
    trial = PollingTrial()
    for _ in range(CYCLE_BLOCKS):
        trial.record(0.003 if trial.polls else 0.004)
    for _ in range(TRIAL_BLOCKS):
        trial.record(0.005 if trial.polls else 0.0045)
    assert not trial.polls

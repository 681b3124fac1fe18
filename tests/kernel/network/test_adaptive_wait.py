"""Waits that never pay become rare; one that pays ends the backoff."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gantrymq.kernel.network.adaptive_wait import AdaptiveWait

pytestmark = pytest.mark.once


def waits_of(adaptive: AdaptiveWait, times: int, *, paid: bool) -> list[int]:
    """At which of so many opportunities the caller waits, when each wait has the same result."""
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

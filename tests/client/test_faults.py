"""The time for which a client avoids a failed broker."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from gantrymq.client.faults import FIRST_SECONDS, LONGEST_SECONDS, PROBE_SECONDS, Faults


async def avoided_seconds(faults: Faults) -> float:
    """How long the broker ``b`` is avoided from now on, to a twentieth of a second; one send tries it then."""
    began = trio.current_time()
    while not faults.is_usable("b"):  # noqa: ASYNC110  (it has no event)
        await trio.sleep(0.05)
    return trio.current_time() - began


@pytest.mark.trio
async def test_each_failure_of_a_broker_doubles_the_time_it_is_avoided(autojump_clock: MockClock) -> None:
    faults = Faults()
    assert faults.is_usable("b")
    for expected in (1, 2, 4, 8, 16, 32, 60, 60):
        faults.failed("b")
        assert await avoided_seconds(faults) == pytest.approx(expected, abs=0.1)
    assert LONGEST_SECONDS == 60


@pytest.mark.trio
async def test_sends_that_fail_together_count_as_one_failure(autojump_clock: MockClock) -> None:
    faults = Faults()
    for _ in range(1000):
        faults.failed("b")
    assert await avoided_seconds(faults) == pytest.approx(FIRST_SECONDS, abs=0.1)
    for _ in range(1000):
        faults.failed("b")
    assert await avoided_seconds(faults) == pytest.approx(2 * FIRST_SECONDS, abs=0.1)


@pytest.mark.trio
async def test_one_send_probes_a_broker_after_its_avoidance_time(autojump_clock: MockClock) -> None:
    faults = Faults()
    faults.failed("b")
    await avoided_seconds(faults)
    assert not faults.is_usable("b")
    assert await avoided_seconds(faults) == pytest.approx(PROBE_SECONDS, abs=0.1)
    faults.worked("b")
    assert faults.is_usable("b")
    assert faults.is_usable("b")

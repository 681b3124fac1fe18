from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gantrymq.remoting.codes import RequestCode
from gantrymq.spark.times import find_first_since
from gantrymq.spark.wire import Queue, Wire

if TYPE_CHECKING:
    from conftest import FakeCluster


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 4), max_size=20), st.integers(0, 50), st.integers(-1, 25), st.integers(0, 3))
def test_the_first_message_is_found_whatever_offset_the_broker_returns(
    cluster: FakeCluster, wire: Wire, steps: list[int], wanted: int, hint: int, expired: int
) -> None:
    cluster.add_topic("orders")
    times = [100 + sum(steps[: number + 1]) for number in range(len(steps))]
    for time in times:
        cluster.put("orders", 0, b"x", store_timestamp=time)
    lowest = min(expired, len(times))
    cluster.queues["orders", 0].min_offset = lowest
    cluster.found_by_time = hint
    queue = Queue("orders", "broker-a", 0, cluster.address)
    since = 100 + wanted
    right = next((offset for offset in range(lowest, len(times)) if times[offset] >= since), None)
    assert find_first_since(wire, queue, since, lowest, len(times)) == right


@pytest.mark.parametrize("hint", [400, 401])
def test_a_hint_that_is_exact_costs_two_pulls(cluster: FakeCluster, wire: Wire, hint: int) -> None:
    cluster.add_topic("orders")
    for number in range(1000):
        cluster.put("orders", 0, b"x", store_timestamp=1000 + number)
    cluster.found_by_time = hint
    queue = Queue("orders", "broker-a", 0, cluster.address)
    assert find_first_since(wire, queue, 1000 + hint, 0, 1000) == hint
    assert sum(request.code == RequestCode.PULL_MESSAGE for request in cluster.requests) == 2

"""Sums, rates and averages per minute, hour and day; latencies; rates per second."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise

import hypothesis.strategies as st
import pytest
from hypothesis import given

from gantrymq.plugins.stats.items import PERIODS, Item
from gantrymq.plugins.stats.latency import BUCKETS, Latency
from gantrymq.plugins.stats.rates import Rates, Totals
from gantrymq.remoting.bodies.stats import StatsData, StatsItem

START = 1_700_000_000_000


def sampled(counts: list[int], period: int = 0) -> Item:
    """An item to which ``counts`` came, one each sampling, in one event each."""
    item = Item()
    for number, count in enumerate(counts):
        item.add(count, 1)
        item.sample(START + number * PERIODS[period].every, period)
    return item


def test_an_item_of_which_nothing_is_known_yet() -> None:
    assert Item().data() == StatsData()
    assert Item().tps == 0.0


def test_the_first_sample_covers_the_time_before_it() -> None:
    assert sampled([40]).data().stats_minute == StatsItem(40, 4.0, 40.0)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=30), st.sampled_from([0, 1, 2]))
def test_a_period_has_the_last_samples(counts: list[int], period: int) -> None:
    data = sampled(counts, period).data()
    reported = (data.stats_minute, data.stats_hour, data.stats_day)[period]
    kept = PERIODS[period].kept - 1
    last = counts[-kept:]
    seconds = len(last) * PERIODS[period].every / 1000
    assert reported == StatsItem(sum(last), pytest.approx(sum(last) / seconds), pytest.approx(sum(last) / len(last)))


def test_an_item_is_idle_when_nothing_came_for_a_day() -> None:
    assert not sampled([1] * 24, 2).is_idle
    assert not sampled([1] + [0] * 23, 2).is_idle
    item = Item()
    item.add(1, 1)
    for hour in range(26):
        item.sample(START + hour * 3_600_000, 2)
    assert item.is_idle


def test_a_rate_without_elapsed_time_is_zero() -> None:
    item = Item()
    item.sample(START, 0)
    for _ in range(10):
        item.add(1, 1)
        item.sample(START, 0)
    assert item.tps == 0.0


def test_latencies_are_those_of_the_previous_minute() -> None:
    latency = Latency()
    assert (latency.distribution(), latency.percentile(0.99)) == ("null", 0.0)
    latency.add(0.0004, 10)
    latency.add(0.009, 5)
    latency.add(0.01, 2)
    latency.add(12.0, 1)
    assert latency.distribution() == "null"
    latency.turn()
    text = latency.distribution()
    assert text.startswith("[<=0ms]:10 [0~10ms]:5 [10~50ms]:2 [50~100ms]:0 ")
    assert text.endswith(" [5~10s]:0 [10s~]:1 ")
    assert latency.longest == 12_000
    latency.turn()
    assert "[<=0ms]:0 " in latency.distribution()


@given(st.lists(st.integers(0, 9_999), min_size=1, max_size=50), st.floats(0.01, 1.0))
def test_a_percentile_lies_in_the_bucket_of_its_rank(milliseconds: list[int], share: float) -> None:
    latency = Latency()
    for value in milliseconds:
        latency.add(value / 1000 + 1e-7, 1)
    latency.turn()
    rank = max(int(len(milliseconds) * share), 1)
    true = sorted(milliseconds)[rank - 1]
    low, high = next(
        (low, high) for low, high in pairwise([-1, 0, *BUCKETS]) if low < true <= high or (true, high) == (0, 1)
    )
    if int(len(milliseconds) * share) >= 1:
        assert max(low, 0) <= latency.percentile(share) <= high or (true == 0 and latency.percentile(share) <= 1)


def test_latencies_beyond_all_buckets_are_counted() -> None:
    latency = Latency()
    latency.add(100.0, 3)
    latency.turn()
    assert latency.percentile(0.99) == BUCKETS[-1]


def totals(second: int, puts: int, gets: int = 0, start: int = START) -> Totals:
    return Totals(start + second * 1000, puts, gets, 2 * gets, 3 * gets)


def test_a_rate_is_reported_at_the_end_of_its_period() -> None:
    rates = Rates(totals(0, 0))
    for second in range(1, 11):
        assert rates.runtime_info()["putTps"] == "  "
        rates.take(totals(second, second * 7, second))
    info = rates.runtime_info()
    assert info["putTps"] == "7.0  "
    assert info["getFoundTps"] == "1.0  "
    assert info["getMissTps"] == "2.0  "
    assert info["getTotalTps"] == "3.0 0.0 0.0"
    assert info["getTransferedTps"] == info["getTransferredTps"] == "3.0  "
    for second in range(11, 700):
        rates.take(totals(second, second * 7))
    assert rates.runtime_info()["putTps"] == "7.0 7.0 7.0"


def test_totals_are_kept_at_the_change_of_day() -> None:
    evening = int(datetime(2026, 11, 21, 23, 59, 58).timestamp() * 1000)
    rates = Rates(totals(0, 0, start=evening))
    rates.take(totals(1, 5, 1, start=evening))
    assert (rates.puts_today, rates.gets_today) == (0, 0)
    rates.take(totals(3, 6, 2, start=evening))
    assert (rates.puts_today, rates.gets_today) == (6, 6)
    rates.take(totals(4, 9, 3, start=evening))
    assert (rates.puts_today, rates.puts_yesterday) == (6, 0)
    rates.take(totals(4 + 86_400, 20, 3, start=evening))
    assert (rates.puts_today, rates.puts_yesterday, rates.gets_yesterday) == (20, 6, 6)

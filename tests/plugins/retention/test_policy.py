"""The retention rules by age, hour and disk usage delete no more than necessary."""

from __future__ import annotations

import attrs
import pytest

from gantrymq.kernel.env import DiskUsage
from gantrymq.plugins.retention.policy import LogFile, Rules, accepts_with, expired_before, is_full, used_ratio

HOUR = 3_600_000
GIB = 1 << 30
NOW = 1_000 * HOUR
RULES = Rules(72 * HOUR, frozenset({4}), 0.75, 0.85, 0.90, 16 * GIB, 10)
ROOMY = DiskUsage(1000 * GIB, 500 * GIB)


def files(*ages: int) -> list[LogFile]:
    """Files of one GiB whose last messages are so many hours old."""
    return [LogFile(number * GIB, (number + 1) * GIB, NOW - age * HOUR) for number, age in enumerate(ages)]


def used(percent: int) -> DiskUsage:
    return DiskUsage(100 * GIB, (100 - percent) * GIB)


def test_old_files_go_at_their_hour_only() -> None:
    row = files(100, 80, 71, 1)
    assert expired_before(row, NOW, 4, ROOMY, RULES) == 2 * GIB
    assert expired_before(row, NOW, 5, ROOMY, RULES) == 0
    assert expired_before(row, NOW, 5, ROOMY, RULES, asked=True) == 2 * GIB


def test_an_old_file_behind_a_young_one_stays() -> None:
    assert expired_before(files(100, 1, 100), NOW, 4, ROOMY, RULES) == GIB


def test_above_the_first_mark_old_files_go_at_any_hour_and_young_ones_stay() -> None:
    assert expired_before(files(100, 1), NOW, 12, used(75), RULES) == 0
    rules = attrs.evolve(RULES, enough_free=30 * GIB)
    assert expired_before(files(100, 1), NOW, 12, used(76), rules) == GIB


@pytest.mark.parametrize(("percent", "gone"), [(85, 0), (86, 1), (88, 3), (99, 10)])
def test_above_the_second_mark_as_many_go_as_bring_the_disk_below_it(percent: int, gone: int) -> None:
    assert expired_before(files(*[1] * 30), NOW, 12, used(percent), RULES) == gone * GIB


def test_expired_files_count_towards_the_space_to_be_freed() -> None:
    assert expired_before(files(100, 100, 1, 1), NOW, 12, used(87), RULES) == 2 * GIB


def test_no_ratio_counts_while_enough_is_free() -> None:
    large = DiskUsage(10_000 * GIB, 17 * GIB)
    assert used_ratio(large, RULES) == 0
    assert not is_full(large, RULES, was_full=False)
    assert expired_before(files(100, 1), NOW, 12, large, RULES) == 0


def test_a_large_disk_loses_its_oldest_files_before_it_refuses_messages() -> None:
    large = DiskUsage(1000 * GIB, 15 * GIB)
    assert not is_full(large, RULES, was_full=False)
    assert expired_before(files(*[1] * 30), NOW, 12, large, RULES) == GIB
    assert not is_full(DiskUsage(1000 * GIB, 11 * GIB), RULES, was_full=False)
    fuller = DiskUsage(1000 * GIB, 10 * GIB)
    assert is_full(fuller, RULES, was_full=False)
    assert expired_before(files(*[1] * 30), NOW, 12, fuller, RULES) == 6 * GIB
    assert is_full(large, RULES, was_full=True)
    assert not is_full(DiskUsage(1000 * GIB, 16 * GIB), RULES, was_full=True)
    assert accepts_with(fuller, RULES) == 16 * GIB


def test_no_more_goes_than_until_enough_is_free() -> None:
    large = DiskUsage(1000 * GIB, 15 * GIB + GIB // 2)
    assert expired_before(files(*[1] * 30), NOW, 12, large, RULES) == GIB


def test_the_thresholds_may_all_be_the_whole_disk() -> None:
    rules = attrs.evolve(RULES, force_ratio=1.0, full_ratio=1.0)
    assert not is_full(DiskUsage(100 * GIB, 1), rules, was_full=False)
    assert accepts_with(DiskUsage(100 * GIB, 1), rules) == 0


def test_writing_goes_on_only_well_below_where_it_stopped() -> None:
    assert not is_full(used(90), RULES, was_full=False)
    assert is_full(used(91), RULES, was_full=False)
    assert is_full(used(86), RULES, was_full=True)
    assert not is_full(used(85), RULES, was_full=True)


def test_a_disk_that_is_full_below_the_second_mark_stays_full_until_it_is_below_its_own() -> None:
    rules = attrs.evolve(RULES, full_ratio=0.80, enough_free=100 * GIB)
    assert is_full(used(82), rules, was_full=False)
    assert is_full(used(82), rules, was_full=True)
    assert not is_full(used(79), rules, was_full=True)

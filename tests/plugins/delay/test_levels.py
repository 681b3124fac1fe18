"""Delay levels, and due times of stored messages."""

from __future__ import annotations

import pytest

from gantrymq.plugins.delay.config import DelayConfig
from gantrymq.plugins.delay.levels.levels import PLAUSIBLE_DELAY_MS, Levels, read_level


def test_the_default_levels_are_rocketmqs() -> None:
    levels = Levels.parse(DelayConfig().levels)
    seconds = [1, 5, 10, 30, *range(60, 601, 60), 1200, 1800, 3600, 7200]
    assert [levels.delay_ms(level) for level in range(1, 19)] == [1000 * delay for delay in seconds]
    assert len(levels) == 18


def test_a_level_above_the_last_is_the_last() -> None:
    assert Levels.parse("1s 2m").delay_ms(7) == 120_000


@pytest.mark.parametrize("text", ["", " ", "1", "s", "0s", "-1s", "1.5s", "1s 2x", "1s,2s", "1ms", "٣s", "1s " * 1025])
def test_invalid_lists_of_delays_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a delay|levels; allowed"):
        DelayConfig(levels=text)


def test_an_unknown_way_of_delivery_is_refused() -> None:
    with pytest.raises(ValueError, match="pipelined, synchronous"):
        DelayConfig(delivery="fast")


@pytest.mark.parametrize(
    ("properties", "level"),
    [
        (b"", 0), (b"DELAY\x013", 3), (b"K\x01v\x02DELAY\x01+3\x02L\x01w", 3), (b"DELAY\x01-3", -3),
        (b"DELAY\x01x", None),
        (b"DELAY\x01 3", None), (b"DELAY\x012147483647", 2**31 - 1), (b"DELAY\x012147483648", None),
        (b"DELAY\x01" + b"9" * 40, None), (b"DELAY\x01", 0), (b"MYDELAY\x013", 0), (b"DELAY\x01\xd9\xa3", None),
    ],
)  # fmt: skip
def test_the_level_is_read_as_java_reads_a_number(properties: bytes, level: int | None) -> None:
    assert read_level(properties) == level


def test_an_entry_says_when_its_message_is_due() -> None:
    levels = Levels.parse("1s 5s")
    assert levels.due_code(1, b"DELAY\x012", 1000) == 6000
    assert levels.due_code(0, b"DELAY\x019", 1000) == 6000, "by the property, clamped"
    assert levels.due_code(0, b"", 1000) == 1000


@pytest.mark.parametrize("code", [999, 0, -5, 1001 + PLAUSIBLE_DELAY_MS])
def test_an_entry_with_impossible_values_is_ignored(code: int) -> None:
    assert Levels.parse("1s 5s").due(code, b"DELAY\x012", 1000) == 6000


@pytest.mark.parametrize("code", [1000, 6000, 7000, 1000 + PLAUSIBLE_DELAY_MS])
def test_an_entry_of_other_levels_keeps_its_promise(code: int) -> None:
    assert Levels.parse("1s 5s").due(code, b"DELAY\x012", 1000) == code

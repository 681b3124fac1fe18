"""Warnings that clients could repeat endlessly are limited."""

from __future__ import annotations

import pytest

from gantrymq.remoting import rare_warnings
from gantrymq.remoting.rare_warnings import QUIET_S, RareWarnings


class Clock:
    now = 0.1

    def __call__(self) -> float:
        return self.now


def test_each_subject_is_logged_once_an_hour() -> None:
    clock = Clock()
    warnings = RareWarnings(clock)
    assert [warnings.is_due("a"), warnings.is_due("a"), warnings.is_due("b"), warnings.is_due("a")] == [
        True, False, True, False,
    ]  # fmt: skip
    clock.now += QUIET_S - 1
    assert not warnings.is_due("a")
    clock.now += 1
    assert warnings.is_due("a")
    assert not warnings.is_due("a")


def test_the_number_of_subjects_an_hour_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rare_warnings, "KEYS_MAX", 2)
    clock = Clock()
    warnings = RareWarnings(clock)
    assert [warnings.is_due(subject) for subject in "aabcc"] == [True, False, True, False, False]
    clock.now += QUIET_S
    assert [warnings.is_due(subject) for subject in "cba"] == [True, True, False]

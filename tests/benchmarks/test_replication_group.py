"""The group ``replication`` measures all of its scenarios. No number of a run is asserted."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.slow
def test_the_group_measures_a_slave_and_a_plain_copy(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    replication, groups, measuring = load("replication"), load("special_groups"), load("measuring")
    monkeypatch.setattr(replication, "LOG_BYTES", 8 * replication.MIB)
    figures, lines = load("figures").Figures(), []
    replication.replicate("gantrymq", measuring.Timing(0.2, 0.1, 0.1), groups.Sizes(), figures, lines.append)
    found = {each.what: each.median("gantrymq") for each in figures.of("replication")}
    assert len(found) == 3
    assert all(value is not None and value >= 0 for value in found.values())
    assert "a slave takes" in lines[0]


@pytest.mark.slow
def test_the_group_measures_senders_that_wait_for_a_slave(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    replication, groups, measuring = load("replication"), load("special_groups"), load("measuring")
    monkeypatch.setattr(replication, "SENDERS", replication.SENDERS[:1])
    figures, lines = load("figures").Figures(), []
    replication.answer("gantrymq", measuring.Timing(0.2, 0.1, 0.1), groups.Sizes(), figures, lines.append)
    found = {each.what: each.median("gantrymq") for each in figures.of("replication")}
    assert len(found) == 4
    assert found["SYNC_MASTER send 64x16 async"] > 0
    assert "SYNC_MASTER send 64x16 async" in lines[0]


@pytest.mark.parametrize(("java", "verdict"), [(50.0, "reached"), (51.0, "MISSED")])
def test_a_rate_is_compared_with_the_goal_multiple_of_java(load: Any, java: float, verdict: str) -> None:
    figures = load("figures").Figures()
    for system, rate in (("gantrymq", 100.0), ("java", java)):
        figures.add("replication", "rate", "/s", system, rate, more_is_better=True, ratio_goal=2.0)
    (figure,) = figures.of("replication")
    assert figure.verdict == f"better; {100 / java:.2f} times, goal >= 2 times: {verdict}"


def test_the_group_runs_when_selected(load: Any) -> None:
    read = load("arguments").read
    assert "replication" not in read([]).groups
    assert "replication" in read(["--groups", "replication"]).groups

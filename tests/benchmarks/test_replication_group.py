"""The group ``replication``: it measures what it says. No number of a run is asserted."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.slow
def test_the_group_measures_a_slave_and_a_plain_copy(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    replication, living, measuring = load("replication"), load("living"), load("measuring")
    monkeypatch.setattr(replication, "LOG_BYTES", 8 * replication.MIB)
    figures, told = load("figures").Figures(), []
    replication.replicate("gantrymq", measuring.Timing(0.2, 0.1, 0.1), living.Sizes(), figures, told.append)
    found = {each.what: each.median("gantrymq") for each in figures.of("replication")}
    assert len(found) == 3
    assert all(value is not None and value >= 0 for value in found.values())
    assert "a slave takes" in told[0]


def test_it_is_run_when_it_is_asked_for(load: Any) -> None:
    read = load("arguments").read
    assert "replication" not in read([]).groups
    assert "replication" in read(["--groups", "replication"]).groups

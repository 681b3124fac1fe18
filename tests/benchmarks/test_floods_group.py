"""The group ``floods`` measures all of its scenarios. No number of a run is asserted."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.slow
def test_the_group_measures_a_sender_alone_and_beside_each_flood(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    floods, groups, measuring = load("floods"), load("special_groups"), load("measuring")
    monkeypatch.setattr(floods, "LOCKED_QUEUES", 100)
    monkeypatch.setattr(floods, "GROUPS", 2)
    figures, lines = load("figures").Figures(), []
    floods.measure_floods("gantrymq", measuring.Timing(0.6, 0.1, 0.1), groups.Sizes(), figures, lines.append)
    found = {each.what: each.median("gantrymq") for each in figures.of("floods")}
    assert len(found) == len(lines) == 5
    assert all(value is not None and value > 0 for value in found.values())
    assert not any(line.endswith(" 0 answers/s to the others") for line in lines[1:])


def test_the_group_runs_when_selected(load: Any) -> None:
    read = load("arguments").read
    assert "floods" not in read([]).groups
    assert "floods" in read(["--groups", "all"]).groups

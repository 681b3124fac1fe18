"""The group ``hooks`` measures all of its scenarios. No number of a run is asserted."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.slow
def test_the_group_measures_a_broker_with_more_and_more_plugins(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hooks, groups, measuring = load("hooks"), load("special_groups"), load("measuring")
    monkeypatch.setattr(hooks, "COUNTS", (0, hooks.MOST))
    figures, lines = load("figures").Figures(), []
    hooks.measure_hooks("gantrymq", measuring.Timing(0.3, 0.1, 0.1), groups.Sizes(), figures, lines.append)
    hooks.measure_hooks("java", measuring.Timing(0.3, 0.1, 0.1), groups.Sizes(), figures, lines.append)
    found = {each.what: each.median("gantrymq") for each in figures.of("hooks")}
    assert len(found) == 7
    assert all(value is not None for value in found.values())
    assert [line.split()[1] for line in lines] == ["0", "10", "10", "0", "hooks"]
    (goal,) = (each for each in figures.of("hooks") if "goal <= 5 %" in each.verdict)
    share = found[goal.what]
    assert share is not None
    assert 0 < share < 50, "the broker has timed the hooks of these plugins"


def test_the_group_runs_when_selected(load: Any) -> None:
    read = load("arguments").read
    assert "hooks" not in read([]).groups
    assert "hooks" in read(["--groups", "all"]).groups

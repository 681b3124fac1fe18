"""The group ``client`` measures all of its scenarios. No number of a run is asserted."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.slow
def test_the_group_measures_each_way_to_send_and_to_consume(load: Any) -> None:
    client, groups, measuring = load("client"), load("special_groups"), load("measuring")
    figures, lines = load("figures").Figures(), []
    client.measure_client("gantrymq", measuring.Timing(0.5, 0.2, 2.0), groups.Sizes(), figures, lines.append)
    found = {each.what: each.median("gantrymq") for each in figures.of("client")}
    assert len(found) == 10
    assert all(value is not None and value > 0 for value in found.values())
    assert len(lines) == 1


def test_the_group_runs_when_selected(load: Any) -> None:
    read = load("arguments").read
    assert "client" not in read([]).groups
    assert "client" in read(["--groups", "client"]).groups
    assert load("special_groups").SPECIAL["client"]

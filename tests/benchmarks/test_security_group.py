"""The group ``security``: it measures what it says. No number of a run is asserted."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.slow
def test_the_group_measures_signatures_tls_and_handshakes(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cryptography", reason="it makes certificates: pip install cryptography")
    groups, measuring, security = load("special_groups"), load("measuring"), load("security")
    monkeypatch.setattr(security, "BODIES", (100,))
    monkeypatch.setattr(security, "ROUNDS", 1)
    figures, told = load("figures").Figures(), []
    security.secure("gantrymq", measuring.Timing(0.2, 0.1, 0.1), groups.Sizes(), figures, told.append)
    found = {each.what: each.median("gantrymq") for each in figures.of("security")}
    assert len(found) == 4 * 2 + 2 + 3 + 3
    assert all(value is not None and value > 0 for value in found.values())
    goals = [each.what for each in figures.of("security") if "goal" in each.verdict]
    assert [what.split(", ")[1].partition(":")[0] for what in goals] == ["signed", "TLS"]


def test_the_group_runs_when_selected(load: Any) -> None:
    read = load("arguments").read
    assert "security" not in read([]).groups
    assert "security" in read(["--groups", "all"]).groups

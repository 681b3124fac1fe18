"""The group ``nameserver`` measures all of its scenarios. No number of a run is asserted."""

from __future__ import annotations

from typing import Any

import pytest


def test_a_topic_is_on_the_given_number_of_brokers(load: Any) -> None:
    nameserver = load("nameserver")
    texts = [text for broker in range(nameserver.BROKERS) for text in nameserver._topics_of(broker, 50)]
    assert len(texts) == 50 * nameserver.SPREAD
    assert sum(text.startswith(b'"Topic7":{') for text in texts) == nameserver.SPREAD


@pytest.mark.slow
def test_the_group_measures_a_nameserver(load: Any) -> None:
    groups, measuring = load("special_groups"), load("measuring")
    figures, lines = load("figures").Figures(), []
    (measure,) = groups.SPECIAL["nameserver"]
    measure("gantrymq", measuring.Timing(0.2, 0.1, 0.1), groups.Sizes(topics=200), figures, lines.append)
    found = {each.what: each.median("gantrymq") for each in figures.of("nameserver")}
    assert len(found) == 8
    assert all(value is not None and value >= 0 for value in found.values())
    assert "routes/s" in lines[0]


def test_the_group_runs_when_selected(load: Any) -> None:
    read = load("arguments").read
    assert "nameserver" not in read([]).groups
    assert "nameserver" in read(["--groups", "all"]).groups

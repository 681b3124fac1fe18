"""The group ``indexing`` measures all of its scenarios. No number of a run is asserted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.stores import log_records


@pytest.mark.slow
def test_the_indexing_benchmark_keeps_the_log_only(load: Any, tmp_path: Path) -> None:
    indexing = load("indexing")
    indexing.make_store(tmp_path / "store", 2500)
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["commitlog"]
    records = [record for record, _ in log_records(tmp_path / "store")]
    assert len(records) == 2500
    assert records[-1].properties.startswith(b"KEYS\x01order-2499\x02UNIQ_KEY\x01")
    count, whole, within = indexing.build_alone(tmp_path / "store")
    assert count == 2500
    assert whole > within > 0


@pytest.mark.slow
def test_the_indexing_group_measures_a_broker(load: Any) -> None:
    groups, measuring = load("special_groups"), load("measuring")
    figures, lines = load("figures").Figures(), []
    (measure,) = groups.SPECIAL["indexing"]
    measure("gantrymq", measuring.Timing(0.2, 0.1, 0.1), groups.Sizes(keyed=2000), figures, lines.append)
    found = {each.what: each.median("gantrymq") for each in figures.of("indexing")}
    assert len(found) == 6
    assert all(value is not None and value >= 0 for value in found.values())
    assert "2,000 messages indexed" in lines[0]


def test_the_group_runs_when_selected(load: Any) -> None:
    read = load("arguments").read
    assert "indexing" not in read([]).groups
    assert read([]).is_whole
    assert "indexing" in read(["--groups", "all"]).groups
    assert read(["--groups", "indexing", "--keyed", "5000"]).sizes.keyed == 5000

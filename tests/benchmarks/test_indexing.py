"""``benchmarks/indexing.py``: it measures what it says. No number of a run is asserted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gantrymq.testing.stores import log_records


def test_the_log_that_is_indexed_is_all_that_is_left(load: Any, tmp_path: Path) -> None:
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
def test_a_broker_is_measured(load: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert load("indexing").main(["--messages", "2000", "--seconds", "0.2", "--no-java"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("| gantrymq | ")
    assert lines[-1].count("|") == 8

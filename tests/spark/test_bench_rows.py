"""The group ``spark`` of ``make bench`` measures all of its scenarios. No number of a run is asserted."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gantrymq.testing.harness import cluster_in_thread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_each_use_of_the_connector_is_measured_and_its_rows_are_counted(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    rows, groups, arguments = (importlib.import_module(name) for name in ("spark_rows", "special_groups", "arguments"))
    figures, lines = importlib.import_module("figures").Figures(), []
    with cluster_in_thread(tmp_path / "store") as cluster:
        server = {"nameserver": cluster.nameserver}
        found = rows.Connector(
            "gantrymq", "gantrymq", server, (f"{rows.BODY} AS body",), lambda frame: frame, "body binary"
        )
        rows.measure_connector(spark, found, 40, tmp_path, rows.Meter(spark, os.getpid()), figures, lines.append)
        with pytest.raises(importlib.import_module("measuring").Failed, match="41 rows were written, 40 read"):
            dict(rows._works(spark, found, rows.TOPIC, 41, tmp_path))[rows.COUNT]()
    uses = [rows.SINK, rows.COUNT, rows.ALL_COLUMNS, rows.PRUNED, rows.PARQUET, rows.STREAM]
    expected = [f"first run, {name}" for name in uses]
    for name in uses:
        expected += [name, f"processor time, {name}"]
    assert [each.what for each in figures.of("spark")] == expected
    assert len(lines) == len(expected)
    rows.measure_avro(spark, 40, rows.Meter(spark, os.getpid()), figures, lines.append)
    assert rows.AVRO in lines[-1]
    assert all((each.median("gantrymq") or 0) > 0 for each in figures.of("spark"))
    assert sum("goal" in each.verdict for each in figures.of("spark")) == 3
    assert groups.SPECIAL["spark"] == (rows.measure_spark,)
    assert "spark" not in arguments.read([]).groups
    assert arguments.read(["--groups", "spark", "--spark-rows", "7"]).sizes.spark_rows == 7

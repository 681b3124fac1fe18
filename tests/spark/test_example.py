"""The example of the documentation, in the one Spark session of the tests: a start takes longer than all it does."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import FakeCluster
    from pyspark.sql import SparkSession

EXAMPLE = Path(__file__).parents[2] / "examples" / "spark_read.py"

pytestmark = pytest.mark.spark


def test_the_example_counts_messages_by_tag(
    cluster: FakeCluster, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.add_topic("orders")
    for tag in ("paid", "paid", "refunded"):
        cluster.put("orders", 0, b"x", properties={"TAGS": tag})
    stopped: list[SparkSession] = []
    monkeypatch.setattr(type(spark), "stop", lambda self: stopped.append(self))
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "orders", cluster.address])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    printed = capsys.readouterr().out
    assert "|    paid|    2|" in printed
    assert "|refunded|    1|" in printed
    assert len(stopped) == 1


def test_the_example_prints_its_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE)])
    with pytest.raises(SystemExit, match=r"usage: python spark_read\.py TOPIC \[NAMESERVER\]"):
        runpy.run_path(str(EXAMPLE), run_name="__main__")

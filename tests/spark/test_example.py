from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gantrymq.spark import spark_status

if TYPE_CHECKING:
    from conftest import FakeCluster

EXAMPLE = Path(__file__).parents[2] / "examples" / "spark_read.py"

pytestmark = pytest.mark.spark


def test_the_example_counts_messages_by_tag(cluster: FakeCluster) -> None:
    status = spark_status()
    if not status:
        pytest.skip(f"Spark cannot run here: {status.reason}")
    cluster.add_topic("orders")
    for tag in ("paid", "paid", "refunded"):
        cluster.put("orders", 0, b"x", properties={"TAGS": tag})
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "orders", cluster.address], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "|    paid|    2|" in done.stdout
    assert "|refunded|    1|" in done.stdout
    assert "Traceback" not in done.stderr

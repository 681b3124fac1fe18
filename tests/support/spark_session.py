"""One local Spark session for all tests of a process that need one; starting it takes about as long as all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING

import pytest

from gantrymq.spark import session, spark_status

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROOT = Path(__file__).parents[2]


@contextmanager
def run_spark() -> Iterator[SparkSession]:
    """The session. Its Python workers find ``pyspark_gantrymq``, as they do where a wheel is installed."""
    status = spark_status()
    if not status:
        pytest.skip(f"Spark cannot run here: {status.reason}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        running = session("gantrymq-tests", cores=2, memory="512m", config={"spark.sql.shuffle.partitions": "2"})
    yield running
    running.stop()


def start_query(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Start a stream, again if its worker needs more than the ten seconds that Spark gives it on a busy machine."""
    for _ in range(5):
        query = start()
        while query.isActive and query.status["message"].startswith("Initializing"):
            sleep(0.02)
        if (failure := query.exception()) is None or "failed to connect back" not in str(failure):
            break
    return query

"""Where the tasks of a run are run: in Spark, or one after another in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gantrymq.spark.errors import SparkMissing, WrongOption
from gantrymq.spark.exports.writing import Task, run_task
from gantrymq.spark.job import run_job
from gantrymq.spark.local import arrow_status, spark_status

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Report = Callable[[int], None]
"""Called now and then while tasks run, with the rows of those that have begun, if they are known."""
Engine = Callable[[Sequence[Task], Report | None], None]
"""Runs every task to its end, or raises what the first failed one raised."""
ENGINES = ("spark", "local")


def find_engine(name: str, spark: SparkSession | None) -> Engine:
    """The engine of that name, after a look at whether it can run here.

    Raises :class:`WrongOption` for another name, :class:`SparkMissing` with what to install.
    """
    if name not in ENGINES:
        raise WrongOption(f"engine is spark or local, not {name!r}")
    status = spark_status() if name == "spark" else arrow_status()
    if not status:
        raise SparkMissing(status.reason)
    return _SparkEngine(spark) if name == "spark" else run_here


def run_here(tasks: Sequence[Task], report: Report | None) -> None:
    """Run the tasks one after another."""
    for task in tasks:
        run_task(task, report)


class _SparkEngine:
    def __init__(self, spark: SparkSession | None) -> None:
        self._spark = spark

    def __call__(self, tasks: Sequence[Task], report: Report | None) -> None:
        if tasks:
            poll = None if report is None else lambda: report(0)
            run_job(lambda running: _run_in_spark(running, tasks), self._spark, poll)


def _run_in_spark(spark: SparkSession, tasks: Sequence[Task]) -> None:
    spark.sparkContext.parallelize(tasks, len(tasks)).map(run_task).collect()

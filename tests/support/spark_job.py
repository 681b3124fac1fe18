"""A Spark job on a cluster: python spark_job.py MASTER NAMESERVER FOLDER URL. Prints what it found as JSON.

URL is in an object store. It is a program of a user: it uses no session of ours, and its executors know what Spark
gives them.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

ROWS = 400
BODY = 4000
"""The characters of a body, so that a task's rows leave its Python worker in several pieces."""


def to_rows(task: int, numbers: Iterable[int]) -> Iterator[tuple[str]]:
    """A row for each number; the first attempt of task 1 ends before its last one, when the writer has some."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    for number in numbers:
        if task == 1 and context.attemptNumber() == 0 and number % (ROWS // 4) == ROWS // 4 - 1:
            time.sleep(3)
            os.kill(os.getpid(), signal.SIGKILL)
        yield (f"{number:0{BODY}}",)


def folders(rows: Iterable[Any]) -> Iterator[tuple[str, int]]:
    """The folders of the executor, and the number of its rows."""
    yield os.environ.get("SPARK_EXECUTOR_DIRS", ""), sum(1 for _ in rows)


def main(master: str, nameserver: str, folder: str, url: str) -> dict[str, Any]:
    """Run the job on this master; returns what the test asserts."""
    from pyspark.sql import SparkSession

    from gantrymq.spark import export, read_export

    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.ui.enabled": "false",
        "spark.local.dir": folder,
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20",
    }
    # As the how-to guide says: executors get no variable of the driver but these.
    settings |= {f"spark.executorEnv.{name}": value for name, value in os.environ.items() if name.startswith("AWS_")}
    builder = SparkSession.builder.master(master).appName("gantrymq-cluster")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    found: dict[str, Any] = {}
    numbers = spark.sparkContext.parallelize(range(ROWS), 4)
    dying = spark.createDataFrame(numbers.mapPartitionsWithIndex(to_rows), "body string")
    for topic, keys in (("once", "true"), ("again", "false")):
        to = {"nameserver": nameserver, "topic": topic, "dedupKeys": keys}
        dying.write.format("gantrymq").options(**to).mode("append").save()
        read = spark.read.format("gantrymq").options(nameserver=nameserver, topic=topic).load()
        bodies = [int(row.b) for row in read.selectExpr("cast(body AS string) AS b").collect()]
        found[topic] = {"rows": len(bodies), "distinct": len(set(bodies))}
    read = spark.read.format("gantrymq").options(nameserver=nameserver, topic="once", minPartitions="8").load()
    where = read.select("queueId").rdd.mapPartitions(folders).collect()
    found["executors"] = len({folder for folder, _ in where})
    found["read"] = sum(rows for _, rows in where)
    stream = spark.readStream.format("gantrymq").options(nameserver=nameserver, topic="once")
    limited = stream.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", ROWS // 2).load()
    writer = limited.select("body").writeStream.format("gantrymq").options(nameserver=nameserver, topic="copy")
    query = writer.option("checkpointLocation", f"{folder}/check").trigger(availableNow=True).start()
    query.awaitTermination()
    found["copied"] = spark.read.format("gantrymq").options(nameserver=nameserver, topic="copy").load().count()
    found["exported"] = []
    for place in (f"{folder}/export", url):
        written = export("once", place, nameserver, file_rows=ROWS // 8, spark=spark)
        distinct = read_export(place, spark).select("queueId", "queueOffset").distinct().count()
        found["exported"].append([written.rows, distinct, export("once", place, nameserver, spark=spark).rows])
    spark.stop()
    return found


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))

"""A job for spark-submit, of a user whose cluster lacks GantryMQ: packed_job.py NAMESERVER PLACE EXPORT RESULT.

PLACE is a URL that driver and executors reach, EXPORT a folder that they share or an object store. The file RESULT gets
what the job found, as JSON. The job imports only packages that the how-to guide packs, and changes no setting
of spark-submit.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROWS = 400


def places(rows: Iterable[Any]) -> Iterator[tuple[str, str, str, int]]:
    """The environment of a task: its folder, its interpreter and its GantryMQ; and the number of its rows."""
    import gantrymq

    yield os.getcwd(), sys.executable, gantrymq.__file__, sum(1 for _ in rows)


def start(writer: Any) -> Any:
    """The query, once it has started: Spark gives its Python worker ten seconds, too few on a busy machine."""
    for _ in range(5):
        query = writer.start()
        while query.isActive and query.status["message"].startswith("Initializing"):
            time.sleep(0.1)
        failure = str(query.exception())
        if "CANNOT_OPEN_SOCKET" not in failure and "failed to connect back" not in failure:
            break
    return query


def main(nameserver: str, place: str, to_export: str) -> dict[str, Any]:
    """Run the job; returns what the test asserts."""
    from pyspark.sql import SparkSession

    import gantrymq
    from gantrymq.spark import export, read_export

    spark = SparkSession.builder.appName("packed").getOrCreate()
    to = {"nameserver": nameserver, "topic": "orders"}
    rows = spark.range(0, ROWS, 1, 4).selectExpr("cast(id AS string) AS body")
    rows.write.format("gantrymq").options(**to).mode("append").save()
    orders = spark.read.format("gantrymq").options(**to, minPartitions="8").load()
    where = orders.select("queueId").rdd.mapPartitions(places).collect()
    found: dict[str, Any] = {
        "driver": [os.getcwd(), sys.executable, gantrymq.__file__],
        "executors": sorted({tuple(paths) for *paths, _ in where}),
        "read": sum(count for *_, count in where),
    }
    orders.write.mode("overwrite").parquet(f"{place}/parquet")
    found["parquet"] = spark.read.parquet(f"{place}/parquet").select("queueId", "queueOffset").distinct().count()
    stream = spark.readStream.format("gantrymq").options(**to, startingOffsets="earliest", maxOffsetsPerTrigger="150")
    writer = stream.load().select("body").writeStream.format("gantrymq").options(**(to | {"topic": "copy"}))
    query = start(writer.option("checkpointLocation", f"{place}/check").trigger(availableNow=True))
    query.awaitTermination()
    found["batches"] = len([one for one in query.recentProgress if one.numInputRows])
    copied = spark.read.format("gantrymq").options(**(to | {"topic": "copy"})).load()
    found["copied"] = copied.select("body").distinct().count()
    written = export("orders", to_export, nameserver, file_rows=ROWS // 8, spark=spark)
    distinct = read_export(to_export, spark).select("queueId", "queueOffset").distinct().count()
    again = export("orders", to_export, nameserver, spark=spark)
    found["exported"] = [written.rows, distinct, again.rows]
    spark.stop()
    return found


if __name__ == "__main__":
    Path(sys.argv[4]).write_text(json.dumps(main(*sys.argv[1:4])), encoding="utf-8")

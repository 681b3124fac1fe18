"""Writes of a real Spark to a GantryMQ broker."""

from __future__ import annotations

import runpy
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gantrymq import sync
from gantrymq.spark import reason
from gantrymq.testing.harness import Cluster, cluster_in_thread
from support.processes import wait_for
from support.spark_session import start_query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

DEDUP = Path(__file__).parents[2] / "examples" / "plugins" / "dedup" / "gantrymq_dedup.py"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A broker with the example plugin."""
    dedup = runpy.run_path(str(DEDUP))["DedupPlugin"]
    settings = {"plugin.dedup.property": "DEDUP_KEY"}
    with cluster_in_thread(tmp_path_factory.mktemp("sink"), enable=[dedup], settings=settings) as cluster:
        yield cluster


def read(spark: SparkSession, broker: Cluster, topic: str) -> DataFrame:
    return spark.read.format("gantrymq").options(nameserver=broker.nameserver, topic=topic).load()


def test_a_frame_becomes_messages_and_errors_come_before_anything_is_sent(spark: SparkSession, broker: Cluster) -> None:
    frame = spark.range(300).selectExpr(
        "concat('order ', id) AS body", "if(id % 3 = 0, 'other', null) AS topic", "'paid' AS tags",
        "array(cast(id AS string)) AS keys", "map('n', cast(id AS string)) AS properties", "id % 7 AS order_key",
        "concat('key ', id) AS dedup_key",
    )  # fmt: skip
    to = {"nameserver": broker.nameserver, "topic": "written"}
    for tasks in (3, 2):  # the second time with other tasks, so that only the user's keys are the same
        frame.repartition(tasks).write.format("gantrymq").options(**to).mode("append").save()
    rows = (
        read(spark, broker, "written,other")
        .selectExpr("topic", "cast(body AS string) b", "keys", "tags", "queueId", "properties['n'] n")
        .collect()
    )
    assert all(row.b == f"order {row.n}" for row in rows)
    queues = {(row.topic, int(row.n) % 7, row.queueId) for row in rows}
    assert len(queues) == 2 * 7, "each order key has one queue of a topic"
    assert len({queue_id for _, _, queue_id in queues}) > 1
    assert sorted((row.topic, row.b, row["keys"], row.tags) for row in rows) == sorted(
        ("written" if number % 3 else "other", f"order {number}", str(number), "paid") for number in range(300)
    )
    for wrong, mode, says in (
        (frame.selectExpr("body AS value"), "append", "column 'value' is not a part of a message"),
        (frame, "overwrite", "a topic cannot be overwritten"),
    ):
        with pytest.raises(Exception, match=says) as caught:
            wrong.write.format("gantrymq").options(**to).mode(mode).save()
        assert says in reason(caught.value)
    with pytest.raises(Exception, match="has no body: it is null") as caught:
        frame.selectExpr("cast(null AS string) AS body").write.format("gantrymq").options(**to).mode("append").save()
    assert reason(caught.value) == "row 0 of the task has no body: it is null"


def test_rows_are_delivered_after_their_delay_and_at_their_time(spark: SparkSession, broker: Cluster) -> None:
    began = time.time()
    frame = spark.range(2).selectExpr(
        "cast(id AS string) AS body", "if(id = 0, 0.6D, null) AS delay",
        f"if(id = 1, timestamp_millis({round(began * 1000) + 900}), null) AS deliver_at",
    )  # fmt: skip
    frame.write.format("gantrymq").options(nameserver=broker.nameserver, topic="late").mode("append").save()
    with sync.connect(broker.nameserver) as client:
        wait_for(lambda: "late" in client.admin.topics())
        queues = client.admin.queues("late")
        wait_for(lambda: sum(map(client.admin.max_offset, queues)) == 2)
    rows = {bytes(row.body): row for row in read(spark, broker, "late").collect()}
    assert (rows[b"0"].storeTimestamp - rows[b"0"].bornTimestamp).total_seconds() >= 0.6
    assert rows[b"1"].storeTimestamp.timestamp() >= began + 0.899


def test_a_batch_of_a_stream_that_is_repeated_is_stored_once(
    spark: SparkSession, broker: Cluster, tmp_path: Path
) -> None:
    """A topic is copied to another one. Then the commit of the last batch is removed, so that Spark repeats it."""
    source = {"nameserver": broker.nameserver, "topic": "source"}
    spark.range(200).selectExpr("cast(id AS string) AS body").write.format("gantrymq").options(**source).mode(
        "append"
    ).save()
    frame = spark.readStream.format("gantrymq").options(startingOffsets="earliest", **source).load().select("body")
    for _ in range(2):
        writer = frame.writeStream.format("gantrymq").trigger(availableNow=True)
        writer.options(nameserver=broker.nameserver, topic="copy", dedupKeys="true", checkpointLocation=str(tmp_path))
        assert start_query(writer.start).awaitTermination(120)
        for path in (tmp_path / "commits").iterdir():
            path.unlink()
    bodies = [int(row.b) for row in read(spark, broker, "copy").selectExpr("cast(body AS string) b").collect()]
    assert sorted(bodies) == list(range(200))

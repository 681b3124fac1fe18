"""A GantryMQ broker over real sockets, read by Spark: what was sent is what Spark sees."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gantrymq import sync
from gantrymq.message import Message
from gantrymq.spark import export, read_export
from gantrymq.testing.harness import cluster_in_thread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_spark_reads_and_exports_the_sent_messages(spark: SparkSession, tmp_path: Path) -> None:
    sent = [
        Message(
            "orders",
            b"%d:" % number + bytes(range(256)) * (number % 5),
            tags=f"t{number % 3}",
            keys=(f"key-{number}", "all"),
            properties={"number": str(number), "colour": "grün"},
            flag=number,
        )
        for number in range(300)
    ]
    sent.append(Message("orders", b"large" * 600_000, flag=300))
    with cluster_in_thread(tmp_path / "store") as cluster:
        with sync.connect(cluster.nameserver) as client, client.producer("spark-tests") as producer:
            producer.send_batch(sent[:100])
            results = {message.flag: producer.send(message) for message in sent[100:]}
        options = {"nameserver": cluster.nameserver, "topic": "orders"}
        rows = {row.flag: row for row in spark.read.format("gantrymq").options(**options).load().collect()}
        result = export("orders", tmp_path / "out", cluster.nameserver, spark=spark)
    assert sorted(rows) == list(range(301))
    for message in sent:
        row = rows[message.flag]
        assert bytes(row.body) == message.body
        assert row.tags == message.tags
        assert (row["keys"] or "").split() == list(message.keys)
        assert message.properties.items() <= row.properties.items()
    for flag, stored in results.items():
        assert rows[flag].msgId == stored.message_id
        assert (rows[flag].queueId, rows[flag].queueOffset) == (stored.queue.queue_id, stored.queue_offset)
    assert result.rows == 301
    exported = read_export(tmp_path / "out", spark).drop("date")
    assert {row.flag: row for row in exported.collect()} == rows

"""Spark reads the messages of a GantryMQ broker over real sockets."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gantrymq import sync
from gantrymq.message import Message
from gantrymq.spark import export, read_export
from gantrymq.testing.harness import cluster_in_thread
from support.spark_session import start_query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "plugins"
ENCRYPT = f"{EXAMPLES / 'encrypt' / 'gantrymq_encrypt.py'}:EncryptPlugin"


def test_spark_reads_and_exports_the_sent_messages(spark: SparkSession, tmp_path: Path) -> None:
    sent = [
        Message(
            "orders",
            b"%d:" % number + bytes(range(256)) * (number % 5),
            tags=f"t{number % 3}",
            keys=(f"key-{number}", "all"),
            properties={"number": str(number), "color": "grün"},
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


def test_spark_reads_what_the_broker_filters(spark: SparkSession, tmp_path: Path) -> None:
    """Tags with equal hashes, SQL92, topics by pattern, assigned queues, a schema without properties, a stream.

    The broker's files have encrypted bodies, by the example plugin ``encrypt``.
    """
    pytest.importorskip("cryptography", reason="the example encrypt needs it: pip install cryptography")
    tags = ("Aa", "BB", "other", None)
    keys = tmp_path / "keys.txt"
    keys.write_text(f"1 {base64.b64encode(bytes(32)).decode()}\n")
    settings = {"plugin.encrypt.keys": str(keys), "store.commit_log_file_bytes": "4 MiB"}
    with cluster_in_thread(tmp_path / "store", enable=[ENCRYPT], settings=settings) as cluster:
        with sync.connect(cluster.nameserver) as client, client.producer("spark-tests") as producer:
            for topic in ("events-a", "events-b", "refunds"):
                for number in range(80):
                    message = Message(topic, b"%d" % number, tags=tags[number % 4], properties={"price": str(number)})
                    producer.send(message)

        def load(**options: str) -> list[tuple[str, int]]:
            reader = spark.read.format("gantrymq").option("nameserver", cluster.nameserver)
            frame = reader.options(**options).load()
            return sorted((row.topic, int(row.body)) for row in frame.select("topic", "body").collect())

        sql = {"subExpression": "price BETWEEN 10 AND 19 AND TAGS IS NOT NULL", "expressionType": "SQL92"}
        assert load(topicPattern="events-.*", **sql) == [
            (topic, n) for topic in ("events-a", "events-b") for n in range(10, 20) if n % 4 != 3
        ]
        frame = spark.read.format("gantrymq").options(nameserver=cluster.nameserver, topic="refunds").load()
        selected = frame.where("tags = 'BB' and storeTimestamp > timestamp'2020-01-01' and queueOffset < 15")
        rows = selected.select("body", "queueOffset").collect()
        assert sorted(int(row.body) for row in rows) == [n for n in range(1, 80, 4) if n // 4 < 15]
        queue = {"refunds": {cluster.broker.name: [1]}}
        assigned = {"assign": json.dumps(queue), "includeProperties": "false"}
        reader = spark.read.format("gantrymq").option("nameserver", cluster.nameserver)
        frame = reader.options(**assigned).load()
        assert "properties" not in frame.columns
        assert len(frame.columns) == 15
        rows = frame.collect()
        assert rows
        assert sorted((row.queueId, row.queueOffset) for row in rows) == [(1, n) for n in range(len(rows))]

        found: list[tuple[str, int]] = []

        def collect(batch: DataFrame, number: int) -> None:
            found.extend((row.topic, int(row.body)) for row in batch.select("topic", "body").collect())

        stream = spark.readStream.format("gantrymq").option("nameserver", cluster.nameserver)
        selected = stream.option("topicPattern", "events-.*").option("subExpression", "BB")
        limited = selected.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "100").load()
        writer = limited.writeStream.foreachBatch(collect).option("checkpointLocation", str(tmp_path / "check"))
        assert start_query(writer.trigger(availableNow=True).start).awaitTermination(300)
        assert sorted(found) == [(topic, n) for topic in ("events-a", "events-b") for n in range(80) if n % 4 == 1]
        encrypted = (tmp_path / "store" / "commitlog" / f"{0:020}").read_bytes().count(b"ENCRYPTED\x011")
    assert encrypted == 240, "the files have the clear bodies"

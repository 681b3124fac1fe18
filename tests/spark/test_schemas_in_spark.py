"""Avro columns in a real Spark, batch and stream, compared with Spark's own ``from_avro`` and ``to_avro``."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from datetime import time as time_of_day
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

fastavro = pytest.importorskip("fastavro", reason="pip install 'gantrymq[spark-schemas]'")
pytest.importorskip("urllib3", reason="pip install 'gantrymq[spark-schemas]'")

from gantrymq.spark import reason, schemas  # noqa: E402
from support.schema_registry import StubRegistry  # noqa: E402
from support.spark_avro import fetch_spark_avro  # noqa: E402
from support.spark_session import start_query  # noqa: E402

if TYPE_CHECKING:
    from conftest import FakeCluster
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

EVERY_TYPE = {
    "type": "record", "name": "Order", "namespace": "shop", "fields": [
        {"name": "id", "type": "long"},
        {"name": "count", "type": "int"},
        {"name": "paid", "type": "boolean"},
        {"name": "weight", "type": "float"},
        {"name": "price", "type": ["double", "null"]},
        {"name": "raw", "type": "bytes"},
        {"name": "user", "type": ["null", "string"]},
        {"name": "uuid", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "clock", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "until", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-millis"}},
        {"name": "total", "type": {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 2}},
        {"name": "tax", "type": {
            "type": "fixed", "name": "Tax", "size": 8, "logicalType": "decimal", "precision": 10, "scale": 4}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["OPEN", "DONE"]}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 3}},
        {"name": "labels", "type": {"type": "map", "values": ["null", "long"]}},
        {"name": "items", "type": {"type": "array", "items": {
            "type": "record", "name": "Item", "fields": [{"name": "sku", "type": "string"}]}}},
    ],
}  # fmt: skip
READ_ONLY = [
    {"name": "either", "type": ["int", "string", "null", "Item"]},
    {"name": "wide", "type": ["null", "int", "long"]},
    {"name": "clock2", "type": {"type": "long", "logicalType": "time-micros"}},
]
"""Types that ``from_avro`` reads and ``to_avro`` does not write."""

ROWS: list[dict[str, Any]] = [
    {
        "id": 1, "count": -7, "paid": True, "weight": 1.5, "price": 2.25, "raw": b"\x00\xff", "user": "Ünïcode",
        "uuid": "12345678-1234-5678-1234-567812345678", "day": date(2026, 2, 28), "clock": time_of_day(1, 2, 3, 4000),
        "at": datetime(2026, 1, 2, 3, 4, 5, 6000, UTC), "until": datetime(1905, 1, 2, 3, 4, 5, 678, UTC),
        "local": datetime(2026, 1, 2, 3, 4, 5), "total": Decimal("123456789012345678901234567890123456.78"),
        "tax": Decimal("-1.2345"), "state": "DONE", "hash": b"abc", "labels": {"a": 1, "b": None},
        "items": [{"sku": "x"}, {"sku": "y"}], "either": {"sku": "z"}, "wide": 2**40, "clock2": time_of_day(23, 59, 59),
    },
    {
        "id": -(2**63), "count": 0, "paid": False, "weight": float("inf"), "price": None, "raw": b"", "user": None,
        "uuid": "", "day": date(1, 1, 1), "clock": time_of_day(0), "at": datetime(1969, 12, 31, tzinfo=UTC),
        "until": datetime(9999, 12, 31, tzinfo=UTC), "local": datetime(1900, 1, 1), "total": Decimal("-0.01"),
        "tax": Decimal("0.0000"), "state": "OPEN", "hash": b"\x00\x01\x02", "labels": {}, "items": [],
        "either": "text", "wide": 3, "clock2": time_of_day(0),
    },
]  # fmt: skip


@pytest.fixture
def stub() -> Iterator[StubRegistry]:
    stub = StubRegistry()
    yield stub
    stub.close()


@pytest.fixture(scope="module")
def with_spark_avro(spark: SparkSession) -> None:
    spark.sql(f"ADD JAR '{fetch_spark_avro()}'")


def encode(schema: Any, value: Any) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return buffer.getvalue()


def framed(number: int, body: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + body


def messages(spark: SparkSession, cluster: FakeCluster) -> DataFrame:
    options = {"nameserver": cluster.address, "topic": "orders"}
    return spark.read.format("gantrymq").options(**options).load()


@pytest.mark.usefixtures("with_spark_avro")
def test_types_values_and_bytes_are_those_of_sparks_own_functions(spark: SparkSession) -> None:
    everything = {**EVERY_TYPE, "fields": [*EVERY_TYPE["fields"], *READ_ONLY]}  # type: ignore[misc]
    bodies = spark.createDataFrame([(encode(everything, row),) for row in ROWS], "body binary").coalesce(1).cache()
    ours = bodies.select(schemas.from_avro("body", everything).alias("v"))
    theirs = bodies.selectExpr(f"from_avro(body, '{json.dumps(everything)}') AS v")
    assert ours.schema["v"].dataType.simpleString() == theirs.schema["v"].dataType.simpleString()
    assert ours.collect() == theirs.collect()

    names = [field["name"] for field in EVERY_TYPE["fields"]]  # type: ignore[index]
    values = theirs.selectExpr(f"named_struct({', '.join(f'{name!r}, v.{name}' for name in names)}) AS v").coalesce(1)
    written = values.select(
        schemas.to_avro("v", EVERY_TYPE).alias("ours"),
        values["v"],
    ).selectExpr("ours", f"to_avro(v, '{json.dumps(EVERY_TYPE)}') AS theirs")
    for row in written.collect():
        assert row.ours == row.theirs


def test_messages_of_two_schemas_are_read_by_the_newest_in_a_batch_and_a_stream(
    spark: SparkSession, cluster: FakeCluster, stub: StubRegistry, tmp_path: Path
) -> None:
    first = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
    newest = {"type": "record", "name": "Order", "fields": [
        {"name": "id", "type": "long"}, {"name": "user", "type": "string", "default": "nobody"}]}  # fmt: skip
    stub.add("orders-value", first)
    stub.add("orders-value", newest)
    cluster.add_topic("orders")
    cluster.put("orders", 0, framed(1, encode(first, {"id": 1})))
    cluster.put("orders", 0, framed(2, encode(newest, {"id": 2, "user": "alice"})))
    registry = schemas.Registry(stub.url, retry_seconds=0)
    decoded = schemas.from_avro("body", registry=registry, subject="orders-value").alias("order")
    expected = [(1, "nobody"), (2, "alice")]
    rows = messages(spark, cluster).select(decoded).select("order.*").collect()
    assert [tuple(row) for row in rows] == expected

    options = {"nameserver": cluster.address, "topic": "orders", "startingOffsets": "earliest"}
    stream = spark.readStream.format("gantrymq").options(**options).load().select(decoded).select("order.*")
    writer = stream.writeStream.format("memory").queryName("decoded_orders").trigger(availableNow=True)
    start_query(writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start).awaitTermination()
    assert [tuple(row) for row in spark.table("decoded_orders").collect()] == expected
    assert stub.requests.count("GET /subjects/orders-value/versions/latest") == 1


def test_a_body_that_cannot_be_decoded_fails_the_query_with_its_place_or_is_null(
    spark: SparkSession, cluster: FakeCluster, stub: StubRegistry
) -> None:
    schema = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
    stub.add("orders-value", schema)
    cluster.add_topic("orders")
    for body in (framed(1, b"\x02"), framed(1, b"\xff"), framed(9, b"\x02"), b"{}"):
        cluster.put("orders", 0, body)
    registry = schemas.Registry(stub.url, retry_seconds=0)
    frame = messages(spark, cluster)
    strict = schemas.from_avro("body", schema, registry=registry, origin=("topic", "queueId", "queueOffset"))
    with pytest.raises(Exception, match=r"end within") as failed:
        frame.select(strict).collect()
    assert reason(failed.value).startswith("topic 'orders', queueId 0, queueOffset 1: the 1 bytes of Avro end within")
    lenient = schemas.avro_decoder(schema, registry=registry, mode="permissive")
    spark.udf.register("read_order", lenient)
    frame.createOrReplaceTempView("orders_in_avro")
    rows = spark.sql("SELECT read_order(body).id AS id FROM orders_in_avro").collect()
    assert [row.id for row in rows] == [1, None, None, None]

    stub.close()
    with pytest.raises(Exception, match="cannot be reached") as failed:
        frame.select(schemas.from_avro("body", schema, registry=registry, mode="permissive")).collect()
    assert "cannot be reached" in reason(failed.value)


def test_rows_are_written_with_the_id_of_a_registered_schema(spark: SparkSession, stub: StubRegistry) -> None:
    schema = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
    registry = schemas.Registry(stub.url, retry_seconds=0)
    body = schemas.to_avro("value", schema, registry=registry, subject="orders-value", register=True)
    rows = spark.range(1, 3).selectExpr("struct(id) AS value").coalesce(1).select(body.alias("body")).collect()
    assert [bytes(row.body) for row in rows] == [framed(1, b"\x02"), framed(1, b"\x04")]
    wrong = spark.range(1).selectExpr("struct(CAST(id AS string) AS id) AS value")
    with pytest.raises(Exception, match=r"the column\.id is string") as failed:
        wrong.select(schemas.to_avro("value", schema)).collect()
    assert "which cannot be written as Avro's long" in reason(failed.value)

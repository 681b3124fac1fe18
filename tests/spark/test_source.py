"""The data source inside a real Spark, against the scripted cluster."""

from __future__ import annotations

import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.spark import reason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import FakeCluster
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def orders(cluster: FakeCluster) -> FakeCluster:
    """Two queues with 25 and 10 messages, one of them compressed, and an empty queue."""
    cluster.add_topic("orders", queues=3)
    for number in range(35):
        queue_id = 0 if number < 25 else 1
        properties = {
            "KEYS": f"key-{number}",
            "TAGS": "even" if number % 2 == 0 else "odd",
            "UNIQ_KEY": f"{number:08X}",
        }
        body, sys_flag = b"body %d" % number, 0
        if number == 30:
            body, sys_flag = zlib.compress(b"z" * 5000), 1
        cluster.put("orders", queue_id, body, properties=properties, sys_flag=sys_flag, flag=number)
    return cluster


def load(spark: SparkSession, cluster: FakeCluster, **options: Any) -> DataFrame:
    given = {"nameserver": cluster.address, "topic": "orders"} | {name: str(value) for name, value in options.items()}
    return spark.read.format("gantrymq").options(**given).load()


def test_spark_reads_every_message_with_all_its_columns(spark: SparkSession, orders: FakeCluster) -> None:
    frame = load(spark, orders)
    assert frame.rdd.getNumPartitions() == 2
    rows = sorted(frame.collect(), key=lambda row: row.flag)
    assert len(rows) == 35
    assert frame.dtypes == [
        ("topic", "string"), ("broker", "string"), ("queueId", "int"), ("queueOffset", "bigint"),
        ("commitLogOffset", "bigint"), ("msgId", "string"), ("keys", "string"), ("tags", "string"),
        ("body", "binary"), ("properties", "map<string,string>"), ("bornTimestamp", "timestamp"),
        ("storeTimestamp", "timestamp"), ("bornHost", "string"), ("reconsumeTimes", "int"), ("flag", "int"),
        ("sysFlag", "int"),
    ]  # fmt: skip
    assert [(row.queueId, row.queueOffset) for row in rows] == [(0, n) for n in range(25)] + [(1, n) for n in range(10)]
    assert bytes(rows[30].body) == b"z" * 5000
    row = rows[7]
    assert (row.topic, row.broker, row.msgId, row["keys"], row.tags) == (
        "orders", "broker-a", "00000007", "key-7", "odd",
    )  # fmt: skip
    assert bytes(row.body) == b"body 7"
    assert row.properties == {"KEYS": "key-7", "TAGS": "odd", "UNIQ_KEY": "00000007"}
    assert row.commitLogOffset == 1700
    assert row.bornHost == "127.0.0.1:5000"


def test_times_are_exact_to_the_millisecond(spark: SparkSession, orders: FakeCluster) -> None:
    row = load(spark, orders).selectExpr("unix_micros(bornTimestamp) b", "unix_micros(storeTimestamp) s").first()
    assert row is not None
    assert (row.b, row.s) == (1_700_000_000_123_000, 1_700_000_001_123_000)


def test_sql_runs_over_a_range_of_offsets_split_into_partitions(spark: SparkSession, orders: FakeCluster) -> None:
    frame = load(
        spark,
        orders,
        startingOffsets='{"orders": {"broker-a": {"0": 5}}}',
        endingOffsets='{"orders": {"broker-a": {"1": 2}}}',
        minPartitions=4,
    )
    assert frame.rdd.getNumPartitions() >= 4
    counts = {row.tags: row["count"] for row in frame.groupBy("tags").count().collect()}
    assert counts == {"odd": 11, "even": 11}


def test_a_batch_starts_and_ends_at_times_and_its_tasks_are_bounded(spark: SparkSession, cluster: FakeCluster) -> None:
    cluster.add_topic("orders", queues=2)
    for number in range(20):
        cluster.put("orders", number // 15, b"x" * 100, store_timestamp=1_767_225_600_000 + number * 1000)
    times = {"startingTimestamp": 1_767_225_603_000, "endingTimestamp": 1_767_225_612_000}

    def offsets(**options: Any) -> list[tuple[int, int]]:
        rows = load(spark, cluster, **options).select("queueId", "queueOffset").collect()
        return sorted((row.queueId, row.queueOffset) for row in rows)

    assert offsets(**times) == [(0, number) for number in range(3, 12)]
    # The first queue has no message since then.
    late = {"startingOffsetsByTimestamp": '{"orders": {"broker-a": {"0": 1767225617000, "1": 1767225617000}}}'}
    assert offsets(**late) == [(1, number) for number in range(2, 5)]
    with pytest.raises(Exception, match="orders broker-a queue 0 has no message since 1767225617000"):
        offsets(**late, startingOffsetsByTimestampStrategy="error")
    assert load(spark, cluster, **times, maxRecordsPerPartition=2).rdd.getNumPartitions() == 5
    assert load(spark, cluster).rdd.getNumPartitions() == 2
    assert load(spark, cluster, maxBytesPerPartition=1000).rdd.getNumPartitions() == 4
    assert len(offsets(maxBytesPerPartition=1000)) == 20


def test_a_schema_given_by_the_user_picks_columns(spark: SparkSession, orders: FakeCluster) -> None:
    options = {"nameserver": orders.address, "topic": "orders"}
    frame = spark.read.format("gantrymq").options(**options).schema("tags string, queueOffset bigint").load()
    assert frame.columns == ["tags", "queueOffset"]
    assert sorted(frame.where("queueOffset < 2").collect()) == [("even", 0), ("even", 1), ("odd", 0), ("odd", 1)]
    with pytest.raises(Exception, match="column 'color' of type string cannot be read; there are topic string"):
        spark.read.format("gantrymq").options(**options).schema("color string").load().count()


def test_several_topics_are_read_as_one_though_one_nameserver_is_down(spark: SparkSession, orders: FakeCluster) -> None:
    orders.add_topic("refunds")
    orders.put("refunds", 0, b"x")
    counts = (
        load(spark, orders, topic="orders,refunds", nameserver=f"127.0.0.1:1;{orders.address}")
        .groupBy("topic")
        .count()
        .collect()
    )
    assert {row.topic: row["count"] for row in counts} == {"orders": 35, "refunds": 1}


def test_a_topic_without_messages_is_an_empty_frame(spark: SparkSession, cluster: FakeCluster) -> None:
    cluster.add_topic("orders")
    assert load(spark, cluster).count() == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"topic": "nope"}, "UnknownTopic: topic 'nope' is not known to the nameserver"),
        ({"nameserver": "127.0.0.1:1"}, "Unreachable: no nameserver answers: cannot connect to 127.0.0.1:1"),
        ({"startingOffset": "earliest"}, "did you mean startingOffsets"),
        ({"startingOffsets": "latest"}, "cannot start at latest"),
    ],
)
def test_errors_of_the_plan_reach_the_user(
    spark: SparkSession, orders: FakeCluster, options: dict[str, str], says: str
) -> None:
    with pytest.raises(Exception, match=says) as caught:
        load(spark, orders, **options).count()
    reported = reason(caught.value)
    assert says.rpartition(": ")[2] in reported
    assert "\n" not in reported


def test_an_error_of_a_task_reaches_the_user(spark: SparkSession, orders: FakeCluster) -> None:
    orders.script = lambda request: (
        request.answer(ResponseCode.NO_PERMISSION, "closed") if request.code == RequestCode.PULL_MESSAGE else None
    )
    with pytest.raises(Exception, match=r"Refused: .* refused a pull of orders broker-a queue . at 0: \[16\] closed"):
        load(spark, orders).count()


def test_spark_workers_use_this_interpreter(spark: SparkSession) -> None:
    def executable(_: int) -> str:
        import sys

        return sys.executable

    assert spark.sparkContext.parallelize([0], 1).map(executable).collect() == [sys.executable]


def test_a_worker_excludes_its_modules_from_garbage_collection(spark: SparkSession, orders: FakeCluster) -> None:
    """Spark's workers collect all garbage after each task, which takes longer than a small task."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    load(spark, orders).count()

    class CountReader(DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            return [InputPartition(number) for number in range(8)]

        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            import gc

            yield (gc.get_freeze_count(),)

    class Counts(DataSource):
        @classmethod
        def name(cls) -> str:
            return "counts_of_frozen_objects"

        def schema(self) -> str:
            return "count bigint"

        def reader(self, schema: Any) -> DataSourceReader:
            return CountReader()

    spark.dataSource.register(Counts)
    counts = [row["count"] for row in spark.read.format("counts_of_frozen_objects").load().collect()]
    assert max(counts) > 10_000, "an idle worker of the read runs some of the eight tasks"


def test_the_spark_session_listens_on_loopback_only(spark: SparkSession) -> None:
    conf = spark.sparkContext.getConf()
    assert conf.get("spark.driver.host") == "127.0.0.1"
    assert conf.get("spark.driver.bindAddress") == "127.0.0.1"
    assert spark.sparkContext.uiWebUrl is None


@pytest.mark.parametrize(
    ("where", "offsets"),
    [
        ("queueId = 0 and queueOffset >= 20", [(0, n) for n in range(20, 25)]),
        ("queueOffset between 8 and 9", [(0, 8), (0, 9), (1, 8), (1, 9)]),
        ("queueOffset < 2 and queueId > 0", [(1, 0), (1, 1)]),
        ("queueOffset in (3, 5) and queueId <= 0", [(0, 3), (0, 5)]),
        ("broker <=> 'broker-a' and queueOffset > 23", [(0, 24)]),
        ("topic = 'refunds'", []),
        ("queueId = 1 and queueId = 2", []),
        ("queueOffset > 9223372036854775806", []),
        ("(queueOffset = 1 or queueOffset = 3) and queueId = 1", [(1, 1), (1, 3)]),
        ("not queueOffset < 24", [(0, 24)]),
        ("queueId = 1 and tags = 'odd' and queueOffset != 2", [(1, 0), (1, 4), (1, 6), (1, 8)]),
    ],
)
def test_a_where_clause_on_queues_and_offsets_limits_what_is_read(
    spark: SparkSession, orders: FakeCluster, where: str, offsets: list[tuple[int, int]]
) -> None:
    orders.pull_rows = 1
    rows = load(spark, orders).where(where).select("queueId", "queueOffset").collect()
    assert sorted((row.queueId, row.queueOffset) for row in rows) == offsets
    pulls = sum(1 for request in orders.requests if request.code == RequestCode.PULL_MESSAGE)
    read_anyway = {"(queueOffset = 1": 8, "not queueOffset": 9, "queueId = 1 and tags": 6, "queueOffset in": 1}
    extra = next((count for start, count in read_anyway.items() if where.startswith(start)), 0)
    assert pulls <= len(offsets) + extra


@pytest.mark.parametrize(
    ("where", "offsets", "read"),
    [
        ("storeTimestamp >= '2026-01-01 00:00:14.999999'", [15, 16, 17, 18, 19], 5),
        ("storeTimestamp > timestamp'2026-01-01 00:00:17' and queueId = 0", [18, 19], 3),
        ("storeTimestamp between '2026-01-01 00:00:03' and '2026-01-01 01:00:04+01:00'", [3, 4], 2),
        ("storeTimestamp = '2026-01-01 00:00:07.0005'", [], 1),
        ("storeTimestamp in ('2026-01-01 00:00:07', '2026-01-01 00:00:09')", [7, 9], 3),
        ("to_date(storeTimestamp) = '2026-01-01' and queueOffset < 2", [0, 1], 2),
        ("bornTimestamp < '2026-01-01 00:00:03'", [0, 1, 2], 20),
    ],
)
def test_a_where_clause_on_the_store_time_limits_what_is_read(
    spark: SparkSession, cluster: FakeCluster, where: str, offsets: list[int], read: int
) -> None:
    cluster.add_topic("orders")
    for number in range(20):
        millis = 1_767_225_600_000 + number * 1000
        cluster.put("orders", 0, b"x", store_timestamp=millis, born_timestamp=millis)
    cluster.pull_rows = 1
    cluster.found_by_time = 11  # the broker's search is a hint only
    rows = load(spark, cluster, storeTimeTolerance="0ms").where(where).select("queueOffset").collect()
    assert [row.queueOffset for row in rows] == offsets
    pulls = [request for request in cluster.requests if request.code == RequestCode.PULL_MESSAGE]
    assert sum(int(request.ext["maxMsgNums"]) > 1 for request in pulls) == read


@pytest.mark.parametrize(
    ("where", "numbers", "sent"),
    [
        ("tags = 'Aa'", [0, 3, 6, 9], "Aa"),
        ("tags in ('other', 'Aa') and queueId = 0", [0, 2, 3, 5, 6, 8, 9], "Aa || other"),
        ("tags <=> null", [10], "*"),
        ("tags = 'Aa' or body = '1'", [0, 1, 3, 6, 9], "*"),
        ("tags != 'Aa' or tags is null", [1, 2, 4, 5, 7, 8, 10], "*"),
    ],
)
def test_a_where_clause_on_tags_is_sent_to_the_broker_and_exact(
    spark: SparkSession, cluster: FakeCluster, where: str, numbers: list[int], sent: str
) -> None:
    """The tags ``Aa`` and ``BB`` have equal hashes, and this broker returns all messages anyway."""
    cluster.add_topic("orders")
    for number in range(10):
        cluster.put("orders", 0, b"%d" % number, properties={"TAGS": ("Aa", "BB", "other")[number % 3]})
    cluster.put("orders", 0, b"10")
    rows = load(spark, cluster).where(where).selectExpr("cast(body AS string) AS n").collect()
    assert [int(row.n) for row in rows] == numbers
    pulls = [request for request in cluster.requests if request.code == RequestCode.PULL_MESSAGE]
    assert {request.ext["subscription"] for request in pulls} <= {sent}


def test_a_failed_stream_has_the_raised_error_as_its_reason(spark: SparkSession, tmp_path: Path) -> None:
    def fail(frame: DataFrame, number: int) -> None:
        raise ValueError("the batch is wrong")

    stream = spark.readStream.format("rate").load().writeStream.option("checkpointLocation", str(tmp_path))
    with pytest.raises(Exception, match="the batch is wrong") as caught:
        stream.foreachBatch(fail).start().awaitTermination()
    assert reason(caught.value) == "ValueError: the batch is wrong"


def test_the_log_has_one_line_of_an_exception(spark: SparkSession) -> None:
    jvm: Any = spark.sparkContext._jvm
    log4j = jvm.org.apache.logging.log4j
    event = log4j.core.impl.Log4jLogEvent.newBuilder().setLoggerName("a.B").setLevel(log4j.Level.ERROR)
    event.setMessage(log4j.message.SimpleMessage("failed")).setThrown(jvm.java.lang.IllegalStateException("no room"))
    layout = log4j.LogManager.getContext(False).getConfiguration().getAppender("stderr").getLayout()
    text = layout.toSerializable(event.build())
    assert text.partition(" ")[2].split("\n") == [
        "spark ERROR B: failed",
        "java.lang.IllegalStateException: no room",
        "",
    ]


def test_spark_finds_the_source_without_registration(spark: SparkSession, orders: FakeCluster) -> None:
    fresh = spark.newSession()  # it knows nothing that was registered, and no setting of ours
    frame = load(fresh, orders)
    assert frame.where("queueId = 1 and queueOffset < 2").count() == 2
    fresh.sql(
        f"CREATE TEMPORARY VIEW orders_view USING gantrymq OPTIONS (nameserver '{orders.address}', topic 'orders')"
    )
    (row,) = fresh.sql("SELECT count(*) AS n FROM orders_view WHERE tags = 'odd'").collect()
    assert row.n == 17
    parsed = frame.selectExpr("from_json('{\"n\": ' || substring(cast(body AS string), 6) || '}', 'n INT').n AS n")
    assert parsed.where("n > 32").count() == 2
    fresh.sql(f"CREATE TABLE orders_table USING gantrymq OPTIONS (nameserver '{orders.address}', topic 'orders')")
    try:
        with pytest.raises(Exception, match="CREATE TEMPORARY VIEW") as caught:
            fresh.table("orders_table").count()
        assert "Spark gives a Python data source none of a table's options" in reason(caught.value)
        options = {"nameserver": orders.address, "topic": "orders"}
        assert fresh.read.options(**options).table("orders_table").count() == 35
    finally:
        fresh.sql("DROP TABLE orders_table")

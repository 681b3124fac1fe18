"""Streams in a real Spark: the scripted cluster, and a GantryMQ broker that restarts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gantrymq import sync
from gantrymq.cli.__main__ import run as cli
from gantrymq.message import Message
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import GantryError
from gantrymq.spark import lag, reason
from support.hapair import NAME, HaPair
from support.processes import free_ports, gantrymq_child, wait_for
from support.spark_session import start_query

if TYPE_CHECKING:
    from conftest import FakeCluster
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

Row = tuple[str, int, int]


class Batches:
    """The rows of a query by batch; ``before`` may fail a batch."""

    def __init__(self, before: Callable[[int], None] = lambda number: None) -> None:
        self.by_number: dict[int, list[Row]] = {}
        self.tasks: dict[int, int] = {}
        self._before = before

    def __call__(self, frame: DataFrame, number: int) -> None:
        self._before(number)
        rows = frame.selectExpr("topic", "queueId", "queueOffset", "spark_partition_id() AS task").collect()
        self.tasks[number] = len({row.task for row in rows})
        self.by_number[number] = sorted((row.topic, row.queueId, row.queueOffset) for row in rows)

    @property
    def rows(self) -> list[Row]:
        return sorted(row for rows in self.by_number.values() for row in rows)


def start(
    spark: SparkSession, nameserver: str, checkpoint: Path, batches: Batches, *, ends: bool = True, **options: Any
) -> StreamingQuery:
    given = {"nameserver": nameserver, "topic": "orders"} | {name: str(value) for name, value in options.items()}
    writer = spark.readStream.format("gantrymq").options(**given).load().writeStream.foreachBatch(batches)
    trigger = writer.trigger(availableNow=True) if ends else writer.trigger(processingTime="50 milliseconds")
    trigger = trigger.option("checkpointLocation", str(checkpoint))
    return start_query(trigger.start)


def run(spark: SparkSession, cluster: FakeCluster, checkpoint: Path, **options: Any) -> Batches:
    """Read what is there now."""
    batches = Batches()
    start(spark, cluster.address, checkpoint, batches, **options).awaitTermination()
    return batches


def fill(cluster: FakeCluster, count: int, queue_id: int = 0, topic: str = "orders") -> None:
    for _ in range(count):
        cluster.put(topic, queue_id, b"x")


def rows(queue_id: int, first: int, end: int, topic: str = "orders") -> list[Row]:
    return [(topic, queue_id, offset) for offset in range(first, end)]


def test_a_stream_goes_on_from_its_checkpoint_with_added_queues_and_topics(
    spark: SparkSession, cluster: FakeCluster, tmp_path: Path
) -> None:
    cluster.add_topic("orders", queues=2)
    fill(cluster, 10)
    fill(cluster, 3, queue_id=1)
    cluster.pull_rows = 100
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 2, "minPartitions": 2, "groupId": "dashboard"}
    cluster.committed["dashboard", "orders", 0] = 7
    first = run(spark, cluster, tmp_path, **options)
    assert first.rows == rows(0, 0, 10) + rows(1, 0, 3)
    assert [len(batch) for batch in first.by_number.values()] == [2, 2, 2, 2, 2, 2, 1]
    assert cluster.committed == {("dashboard", "orders", 0): 10, ("dashboard", "orders", 1): 3}

    fill(cluster, 4)
    cluster.queues["orders", 2] = type(cluster.queues["orders", 0])(min_offset=1, max_offset=1)
    fill(cluster, 2, queue_id=2)
    cluster.add_topic("refunds")
    fill(cluster, 1, topic="refunds")
    cluster.committed["dashboard", "orders", 0] = 12
    second = run(spark, cluster, tmp_path, topic="orders,refunds", groupId="dashboard")
    assert second.rows == rows(0, 10, 14) + rows(2, 1, 3) + rows(0, 0, 1, "refunds")
    assert cluster.committed["dashboard", "orders", 0] == 14
    assert RequestCode.QUERY_CONSUMER_OFFSET not in {request.code for request in cluster.requests}
    assert run(spark, cluster, tmp_path, topic="orders,refunds").rows == []


def test_a_stream_from_latest_loses_nothing_when_its_first_batch_fails(
    spark: SparkSession, cluster: FakeCluster, tmp_path: Path
) -> None:
    cluster.add_topic("orders")
    fill(cluster, 5)
    asked = 0

    def send_after_the_start(request: Command) -> None:
        nonlocal asked
        asked += request.code == RequestCode.GET_MAX_OFFSET
        if asked == 2 and request.code == RequestCode.GET_MAX_OFFSET:
            fill(cluster, 20)

    cluster.script = send_after_the_start

    def fail(number: int) -> None:
        raise ValueError("no room")

    failing = start(spark, cluster.address, tmp_path, Batches(fail), ends=False)
    with pytest.raises(Exception, match="no room") as caught:
        failing.awaitTermination(60)
    assert reason(caught.value) == "ValueError: no room"

    batches = Batches()
    query = start(spark, cluster.address, tmp_path, batches, ends=False)
    query.processAllAvailable()
    query.stop()
    assert batches.rows == rows(0, 5, 25)


def test_a_stream_from_earliest_loses_nothing_when_its_first_batch_fails_and_its_master_is_away(
    spark: SparkSession, cluster: FakeCluster, tmp_path: Path
) -> None:
    cluster.add_topic("orders")
    fill(cluster, 5)
    options = {"startingOffsets": "earliest", "retrySeconds": 1}

    def fail(number: int) -> None:
        raise ValueError("no room")

    failing = start(spark, cluster.address, tmp_path, Batches(fail), **options)
    with pytest.raises(Exception, match="no room"):
        failing.awaitTermination(60)
    cluster.broker_ids = (1,)
    with pytest.raises(Exception, match="only a slave answers for orders broker-a queue 0"):
        run(spark, cluster, tmp_path, **options)
    cluster.broker_ids = (0,)
    assert run(spark, cluster, tmp_path, **options).rows == rows(0, 0, 5)


def test_messages_that_expired_between_two_runs_are_data_loss(
    spark: SparkSession, cluster: FakeCluster, tmp_path: Path
) -> None:
    cluster.add_topic("orders")
    fill(cluster, 5)
    assert run(spark, cluster, tmp_path, startingOffsets="earliest").rows == rows(0, 0, 5)
    fill(cluster, 10)
    cluster.queues["orders", 0].min_offset = 8
    with pytest.raises(Exception, match="DataLoss") as caught:
        run(spark, cluster, tmp_path)
    assert reason(caught.value).startswith("orders broker-a queue 0: offset 5 is wanted")
    assert run(spark, cluster, tmp_path, failOnDataLoss="false").rows == rows(0, 8, 15)


def test_two_queries_run_concurrently_and_report_their_lag(
    spark: SparkSession, cluster: FakeCluster, tmp_path: Path
) -> None:
    cluster.add_topic("orders")
    fill(cluster, 40)
    cluster.pull_rows = 100
    one, two = Batches(), Batches()
    slow = start(spark, cluster.address, tmp_path / "1", one, startingOffsets="earliest", maxOffsetsPerTrigger=10)
    limits = {"maxBytesPerTrigger": 20 * len(cluster.queues["orders", 0].records[0]), "minPartitions": 3}
    fast = start(spark, cluster.address, tmp_path / "2", two, startingOffsets="earliest", **limits)
    for query in (slow, fast):
        assert query.awaitTermination(120)
    assert one.rows == two.rows == rows(0, 0, 40)
    progress = [item for item in slow.recentProgress if item["numInputRows"]]
    assert [lag(item) for item in progress] == [30, 20, 10, 0]
    assert [len(batch) for batch in two.by_number.values()] == [20, 20]
    assert (set(one.tasks.values()), set(two.tasks.values())) == ({1}, {3})


def test_a_stream_from_a_time_waits_for_enough_messages_or_for_the_delay(
    spark: SparkSession, cluster: FakeCluster, tmp_path: Path
) -> None:
    cluster.add_topic("orders")
    begin = 1_700_000_000_000
    for number in range(10):
        cluster.put("orders", 0, b"x", store_timestamp=begin + number * 1000)
    cluster.found_by_time = 4
    batches = Batches()
    options = {"startingTimestamp": begin + 4000, "minOffsetsPerTrigger": 5, "ends": False}
    query = start(spark, cluster.address, tmp_path, batches, maxTriggerDelay="1h", **options)
    wait_for(lambda: batches.rows == rows(0, 4, 10), 60)
    fill(cluster, 2)
    time.sleep(1)
    assert batches.rows == rows(0, 4, 10), "two are not enough"
    fill(cluster, 6)
    wait_for(lambda: batches.rows == rows(0, 4, 18), 60)
    query.stop()
    query = start(spark, cluster.address, tmp_path, batches, maxTriggerDelay="500ms", **options)
    for end in (20, 22):  # the first batch of a run never waits
        fill(cluster, 2)
        wait_for(lambda end=end: batches.rows == rows(0, 4, end), 60)  # type: ignore[misc]
    query.stop()


@pytest.mark.slow
@pytest.mark.soak(0)
@pytest.mark.timeout(3600)
def test_a_thousand_batches_read_every_message_once(spark: SparkSession, cluster: FakeCluster, tmp_path: Path) -> None:
    """A stream with one batch a minute makes fewer in twelve hours."""
    cluster.add_topic("orders", queues=2)
    fill(cluster, 1000)
    fill(cluster, 1000, queue_id=1)
    found = run(spark, cluster, tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger=2)
    assert found.rows == rows(0, 0, 1000) + rows(1, 0, 1000)
    assert len(found.by_number) == 1000


def test_an_unknown_topic_fails_the_query_with_its_reason(
    spark: SparkSession, cluster: FakeCluster, tmp_path: Path
) -> None:
    with pytest.raises(Exception, match="UnknownTopic") as caught:
        run(spark, cluster, tmp_path, startingOffsets="earliest", retrySeconds=1)
    assert reason(caught.value) == f"topic 'orders' is not known to the nameserver {cluster.address}"


def test_a_stream_survives_the_restart_of_its_broker(spark: SparkSession, tmp_path: Path) -> None:
    broker, nameserver = (f"127.0.0.1:{port}" for port in free_ports(2))
    serve = ("serve", "--data", str(tmp_path / "data"), "--listen", broker, "--nameserver-listen", nameserver)
    batches = Batches()

    def send(first: int) -> None:
        with sync.connect(nameserver) as client, client.producer("spark-tests") as producer:
            producer.send_batch([Message("orders", b"%d" % number) for number in range(first, first + 100)])

    query = None
    for number in range(2):
        with gantrymq_child(serve, tmp_path / f"{number}.err") as child:
            child.wait_line(lambda line: line.startswith("ready"))
            send(number * 100)
            query = query or start(
                spark, nameserver, tmp_path / "check", batches, ends=False, startingOffsets="earliest",
                maxOffsetsPerTrigger=30,
            )  # fmt: skip
            deadline = time.monotonic() + 120
            while len(batches.rows) < (number + 1) * 100 and time.monotonic() < deadline and query.isActive:
                time.sleep(0.1)
    assert query is not None
    query.stop()
    assert len(batches.rows) == len(set(batches.rows)) == 200


def test_two_streams_go_on_from_a_slave_and_from_the_promoted_broker(spark: SparkSession, tmp_path: Path) -> None:
    """The master is killed while both read. Its slave gives them the rest; promoted, it gives them what is new."""
    killed = threading.Event()

    def wait_for_the_kill(number: int) -> None:
        assert number == 0 or killed.wait(120)

    one, two = Batches(wait_for_the_kill), Batches(wait_for_the_kill)

    def send(count: int) -> None:
        with sync.connect(pair.nameserver) as client, client.producer("spark-tests") as producer:
            producer.send_batch([Message("orders", b"x") for _ in range(count)])

    def wait_for_rows(count: int) -> None:
        # By both queries, each of which must still be running.
        wait_for(lambda: not all(q.isActive for q in queries) or min(len(one.rows), len(two.rows)) >= count, 120)
        assert all(query.isActive for query in queries), [query.exception() for query in queries]

    with HaPair(tmp_path, {"plugin.topics.default_queues": "4"}) as pair:
        master = pair.start(0, "SYNC_MASTER")
        pair.start(1, "SLAVE")
        send(200)
        options = {"startingOffsets": "earliest", "groupId": "dashboard", "ends": False}
        queries = [
            start(spark, pair.nameserver, tmp_path / "1", one, maxOffsetsPerTrigger=40, **options),
            start(spark, pair.nameserver, tmp_path / "2", two, maxOffsetsPerTrigger=50, **options),
        ]
        try:
            wait_for_rows(1)
            master.kill()
            assert max(len(one.rows), len(two.rows)) < 200, "so the slave has to give the rest"
            killed.set()
            wait_for_rows(200)
            assert cli(["cluster", "promote", NAME, "--nameserver", pair.nameserver]) == 0
            wait_for(lambda: can_send(send), 60)
            wait_for_rows(300)
        finally:
            killed.set()
            for query in queries:
                query.stop()
    assert len(set(one.rows)) == len(one.rows) == len(two.rows) == 300
    assert one.rows == two.rows


def can_send(send: Callable[[int], None]) -> bool:
    try:
        send(100)
    except GantryError:
        return False
    return True

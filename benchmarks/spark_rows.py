"""The group ``spark``: rows a second of each use of the Spark data source, and of Kafka's connector beside it.

All rows are lines like those of a web server's log, made by Spark and written by the sink, so both systems have the
same. A floor says what Spark's Python data sources reach if they do nothing: the same columns, made once. Each use is
measured twice in one session: in the first run the JVM has compiled nothing yet, and Spark starts its Python workers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

if __name__ == "__main__":
    sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "tests"))

import kafka
import trio
from figures import Figures
from measuring import Failed
from scenarios import QUEUES
from systems import family_seconds, home_of, start

from gantrymq.bench.cluster import prepare_topic
from gantrymq.client import connect
from gantrymq.spark import export, schemas, session, spark_status
from gantrymq.spark.columns import COLUMNS, arrow_schema

if TYPE_CHECKING:
    from measuring import Timing
    from pyspark.sql import DataFrame, SparkSession
    from special_groups import Sizes

Progress = Callable[[str], None]
TOPIC = "bench-spark"
CONNECTOR_VERSION = "4.2.0"
"""Of Kafka's connector: the newest of Spark 4 on Maven Central. It runs in later releases of Spark 4 as well."""
CONNECTOR_JARS = ("spark-sql-kafka-0-10", "spark-token-provider-kafka-0-10", "kafka-clients", "commons-pool2")
"""What Spark itself does not have."""
POM = Path(__file__).with_name("kafka") / "spark"
COUNT = "read: count of all columns"
ALL_COLUMNS = "read: all columns, discarded"
PRUNED = "read: body only, discarded"
PARQUET = "read: all columns to Parquet"
STREAM = "stream: availableNow, 4 batches, discarded"
SINK = "write: body, tags, keys"
EXPORT_SPARK = "export to Parquet, Spark"
EXPORT_LOCAL = "export to Parquet, local engine"
NO_PROPERTIES = "read: count of all columns but the properties"
AVRO = "schemas.from_avro: bodies of seven fields, discarded"
FLOOR = "floor: a Python data source that yields prepared batches of all columns, count"
FIRST = "first run, "
"""Before the name of a use: cold. The other figures are of the second run in the session."""
GOALS = {COUNT: 510_000.0, PARQUET: 220_000.0, SINK: 100_000.0}
"""Rows a second: 3 times the 170,000 and 2 times the 110,000 that were measured before the columns were compiled."""
BATCHES = 4
KAFKA_SECONDS_MAX = 900.0
MEMORY = "2g"
AVRO_SCHEMA = {
    "type": "record", "name": "Order", "fields": [
        {"name": "id", "type": "long"}, {"name": "user", "type": "string"}, {"name": "amount", "type": "double"},
        {"name": "status", "type": {"type": "enum", "name": "Status", "symbols": ["OPEN", "PAID"]}},
        {"name": "note", "type": ["null", "string"]}, {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}  # fmt: skip
AVRO_BODY = b"\x0e\x12user-4711" + bytes(8) + b"\x02\x02\x0ahello\x04\x02a\x02b\x00" + b"\x80\x80\x80\x80\x02"
BODY = (
    "concat('83.149.9.', id % 256, ' - - [17/May/2015:10:05:', id % 60, ' +0000] \"GET /presentations/logstash-', id, "
    "'/images/kibana-search.png HTTP/1.1\" 200 ', id % 99991, ' \"http://semicomplete.com/presentations/\" "
    '"Mozilla/5.0 (Macintosh; Intel Mac OS X 10_9_1)"\')'
)


@attrs.frozen
class Connector:
    """How Spark reads and writes one system: the format, its options, and the columns of a write."""

    system: str
    format: str
    server: dict[str, str]
    written: tuple[str, ...]
    pruned: Callable[[DataFrame], DataFrame]
    pruned_schema: str = ""

    def options(self, topic: str, *, reads: bool) -> dict[str, str]:
        """The options that name the topic."""
        name = "subscribe" if self.format == "kafka" and reads else "topic"
        return {**self.server, name: topic}

    def read(self, spark: SparkSession, topic: str, **more: str) -> DataFrame:
        """All messages of the topic."""
        return spark.read.format(self.format).options(**self.options(topic, reads=True), **more).load()

    def read_pruned(self, spark: SparkSession, topic: str) -> DataFrame:
        """The bodies of all messages."""
        reader = spark.read.format(self.format).options(**self.options(topic, reads=True))
        if self.pruned_schema:
            reader = reader.schema(self.pruned_schema)
        return self.pruned(reader.load())


def measure_spark(system: str, timing: Timing, sizes: Sizes, figures: Figures, progress: Progress) -> None:
    """The data source ``gantrymq`` with one broker, and the floor. The Java broker has no floor."""
    del timing
    with _session() as spark, start(system) as running, home_of("spark") as home:
        found = Connector(
            system, "gantrymq", {"nameserver": running.nameserver}, (f"{BODY} AS body", "'200' AS tags",
            "cast(id AS string) AS keys"), lambda frame: frame, "body binary",
        )  # fmt: skip
        trio.run(_make_topics, running.nameserver)
        rows, meter = sizes.spark_rows, Meter(spark, running.pid)
        measure_connector(spark, found, rows, home, meter, figures, progress)
        bare = found.read(spark, TOPIC, includeProperties="false")
        _add(figures, progress, NO_PROPERTIES, system, rows, meter, bare.count)
        for what, engine in ((EXPORT_SPARK, "spark"), (EXPORT_LOCAL, "local")):

            def write(engine: str = engine) -> object:
                return export(TOPIC, home / f"export-{engine}", running.nameserver, engine=engine, spark=spark)

            _add(figures, progress, what, system, rows, meter, write)
        if system == "gantrymq":
            measure_avro(spark, rows, meter, figures, progress)
            measure_floor(spark, rows, meter, figures, progress)


def measure_spark_with_kafka(rows: int, figures: Figures, progress: Progress) -> None:
    """Kafka's connector with a Kafka node. Raises ToolMissing, RuntimeError.

    It runs in a process of its own, because a JVM loads the connector only when it starts.
    """
    jars = find_connector()
    with kafka.kafka("async") as node:
        node.create(TOPIC)
        node.create(f"{TOPIC}-first")
        command = [sys.executable, __file__, node.address, str(node.pid), str(rows), *map(str, jars)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=KAFKA_SECONDS_MAX, check=False)
    if done.returncode:
        raise RuntimeError(f"Kafka's connector ended with {done.returncode}: {done.stderr[-1000:]}")
    for what, unit, value in json.loads(done.stdout):
        _add_value(figures, progress, what, unit, "kafka", value)


def main(address: str, node: int, rows: int, jars: list[str]) -> None:
    """Measure Kafka's connector on the node with process id ``node``, and print the figures as JSON."""
    figures = Figures()
    options = {"kafka.bootstrap.servers": address}
    with _session({"spark.jars": ",".join(jars)}) as spark, home_of("spark-kafka") as home:
        found = Connector(
            "kafka", "kafka", options, (f"{BODY} AS value", "cast(id AS string) AS key"),
            lambda frame: frame.select("value"),
        )  # fmt: skip
        meter = Meter(spark, node)
        measure_connector(
            spark, found, rows, home, meter, figures, lambda line: print(line, file=sys.stderr, flush=True)
        )
    print(json.dumps([(each.what, each.unit, each.median("kafka")) for each in figures.found]))


@attrs.frozen
class Meter:
    """Rate and processor time of a piece of work, in Spark's JVM with its Python workers, this process and ``server``,
    the process id of the broker."""

    spark: SparkSession
    server: int

    def measure(self, rows: int, work: Callable[[], object]) -> tuple[float, float]:
        """Rows per second, and microseconds of processor time per row."""
        used, began = self._seconds(), time.perf_counter()
        work()
        took = time.perf_counter() - began
        return rows / took, (self._seconds() - used) / rows * 1e6

    def _seconds(self) -> float:
        jvm = self.spark.sparkContext._jvm
        assert jvm is not None  # it ends with the session
        spark = family_seconds(jvm.java.lang.ProcessHandle.current().pid())
        return spark + (family_seconds(self.server) if self.server != os.getpid() else 0.0) + time.process_time()


def measure_connector(
    spark: SparkSession, connector: Connector, rows: int, home: Path, meter: Meter, figures: Figures,
    progress: Progress,
) -> None:  # fmt: skip
    """Write ``rows`` and read them in each way, twice, each time another topic."""
    for topic, name in ((f"{TOPIC}-first", FIRST), (TOPIC, "")):
        for what, work in _works(spark, connector, topic, rows, home):
            _add(figures, progress, f"{name}{what}", connector.system, rows, meter, work)


def _works(
    spark: SparkSession, connector: Connector, topic: str, rows: int, home: Path
) -> Iterator[tuple[str, Callable[[], object]]]:
    given = connector.options(topic, reads=False)

    def write() -> None:
        frame = spark.range(0, rows, 1, 2).selectExpr(*connector.written)
        frame.write.format(connector.format).options(**given).mode("append").save()

    def count() -> None:
        found = connector.read(spark, topic).count()
        if found != rows:
            raise Failed(f"{connector.system}: {rows} rows were written, {found} read")

    def stream() -> None:
        reader = spark.readStream.format(connector.format).options(**connector.options(topic, reads=True))
        limited = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", str(rows // BATCHES))
        writer = limited.load().writeStream.format("noop").option("checkpointLocation", str(home / f"check-{topic}"))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        read = sum(each["numInputRows"] for each in query.recentProgress)
        if read != rows:
            raise Failed(f"{connector.system}: {rows} rows were written, the stream read {read}")

    yield SINK, write
    yield COUNT, count
    yield ALL_COLUMNS, lambda: _discard(connector.read(spark, topic))
    yield PRUNED, lambda: _discard(connector.read_pruned(spark, topic))
    yield PARQUET, lambda: connector.read(spark, topic).write.mode("overwrite").parquet(str(home / f"parquet-{topic}"))
    yield STREAM, stream


def measure_avro(spark: SparkSession, rows: int, meter: Meter, figures: Figures, progress: Progress) -> None:
    """Decode Avro bodies that Spark makes, so that nothing is read."""
    if find_spec("fastavro") is None:
        progress(f"gantrymq  {AVRO}: not measured, pip install 'gantrymq[spark-schemas]'")
        return
    from pyspark.sql.functions import lit

    bodies = spark.range(0, rows, 1, QUEUES).select(lit(AVRO_BODY).alias("body"))
    decoded = bodies.select(schemas.from_avro("body", AVRO_SCHEMA).alias("order")).select("order.*")
    _discard(decoded.limit(1))
    _add(figures, progress, AVRO, "gantrymq", rows, meter, lambda: _discard(decoded))


def measure_floor(spark: SparkSession, rows: int, meter: Meter, figures: Figures, progress: Progress) -> None:
    """Count the rows of a data source that costs nothing itself, in as many tasks as the other rows have."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    batch = _prepared_batch()
    tasks = QUEUES
    of_each = max(rows // batch.num_rows // tasks, 1)

    class PreparedReader(DataSourceReader):
        def partitions(self) -> list[Any]:
            return [InputPartition(number) for number in range(tasks)]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            for _ in range(of_each):
                yield batch

    class Prepared(DataSource):
        @classmethod
        def name(cls) -> str:
            return "bench_prepared"

        def schema(self) -> str:
            return ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())

        def reader(self, schema: Any) -> DataSourceReader:
            return PreparedReader()

    spark.dataSource.register(Prepared)
    count = spark.read.format("bench_prepared").load().count
    count()
    _add(figures, progress, FLOOR, "gantrymq", of_each * tasks * batch.num_rows, meter, count)


async def _make_topics(nameserver: str) -> None:
    """With as many queues as Kafka's have partitions."""
    async with connect(nameserver) as client:
        for topic in (TOPIC, f"{TOPIC}-first"):
            await prepare_topic(client, topic, QUEUES)


def find_connector() -> list[Path]:
    """Kafka's connector as jars, fetched from Maven Central unless they are there. Raises ToolMissing, RuntimeError."""
    folder = kafka.fetch_jars(POM, "Kafka's connector for Spark", "spark-kafka", CONNECTOR_VERSION)
    return [path for path in sorted(folder.glob("*.jar")) if path.name.startswith(CONNECTOR_JARS)]


@contextmanager
def _session(config: dict[str, str] | None = None) -> Iterator[SparkSession]:
    """A session that ends with the block. Raises :class:`Failed` without Spark."""
    status = spark_status()
    if not status:
        raise Failed(f"Spark cannot run here: {status.reason}")
    running = session("gantrymq-bench", memory=MEMORY, config=config)
    try:
        yield running
    finally:
        running.stop()


def _prepared_batch() -> Any:
    import pyarrow as pa

    schema = arrow_schema(list(COLUMNS))
    values = {
        "string": "83.149.9.216:4711", "int": 7, "bigint": 7, "binary": b"x" * 200, "timestamp": 0,
        "map<string,string>": [("KEYS", "4711"), ("TAGS", "200"), ("UNIQ_KEY", "0" * 32)],
    }  # fmt: skip
    return pa.record_batch([pa.array([values[COLUMNS[field.name]]] * 8192, field.type) for field in schema], schema)


def _discard(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _add(
    figures: Figures, progress: Progress, what: str, system: str, rows: int, meter: Meter, work: Callable[[], object]
) -> None:
    rate, cost = meter.measure(rows, work)
    _add_value(figures, progress, what, "rows/s", system, rate)
    if not what.startswith(FIRST):
        _add_value(figures, progress, f"processor time, {what}", "us/row", system, cost)


def _add_value(figures: Figures, progress: Progress, what: str, unit: str, system: str, value: float) -> None:
    is_rate = unit == "rows/s"
    figures.add("spark", what, unit, system, value, more_is_better=is_rate, goal=GOALS.get(what, 0.0))
    progress(f"{system:9} {what}: {value:,.{0 if is_rate else 2}f} {unit}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])

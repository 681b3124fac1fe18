"""The data source ``gantrymq`` as Spark sees it. Besides ``local`` and ``workers``, the only module
here that imports pyspark when it is imported."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import attrs
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from gantrymq.remoting.names import is_system_topic
from gantrymq.spark.columns import COLUMNS
from gantrymq.spark.errors import WrongOption
from gantrymq.spark.options import (
    SinkOptions,
    SourceOptions,
    StreamOptions,
    read_flag,
    read_options,
    read_sink_options,
    read_stream_options,
)
from gantrymq.spark.planner import StreamPlanner
from gantrymq.spark.ranges import QueueRange, plan_ranges
from gantrymq.spark.reader import read_range
from gantrymq.spark.selection import Selection
from gantrymq.spark.wire import connect
from gantrymq.spark.workers import TaskObject, keep_modules

if TYPE_CHECKING:
    import pyarrow as pa

_QUERY_PROPERTY = "sql.streaming.queryId"
_BATCH_PROPERTY = "streaming.sql.batchId"
_TYPES: dict[str, DataType] = {
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "binary": BinaryType(),
    "timestamp": TimestampType(),
    "map<string,string>": MapType(StringType(), StringType()),
}


class GantryDataSource(DataSource):
    """``spark.read.format("gantrymq")`` and ``spark.readStream``: topics of any RocketMQ-speaking cluster.

    Options are those of :mod:`gantrymq.spark.options`. A schema given by the user may name some of the columns, in any
    order; only those are built.
    """

    @classmethod
    def name(cls) -> str:
        """The name for ``format``."""
        return "gantrymq"

    def schema(self) -> StructType:
        """All columns, each nullable; without ``properties`` if ``includeProperties`` is false."""
        given = {name.lower(): value.strip() for name, value in self.options.items()}
        schema = StructType()
        for name, kind in COLUMNS.items():
            if name != "properties" or read_flag("includeProperties", given.get("includeproperties", "true")):
                schema.add(name, _TYPES[kind])
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """The batch reader of the columns that ``schema`` names."""
        return GantryReader(read_options(self.options), _column_names(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  (Spark's name)
        """The stream reader of the columns that ``schema`` names."""
        return GantryStreamReader(read_stream_options(self.options), _column_names(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """The writer of a batch with the columns of ``schema``."""
        return GantryWriter(_sink_options(self.options, schema, overwrite), f"{uuid4()}")

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802  (Spark's name)
        """The writer of a stream with the columns of ``schema``."""
        return GantryStreamWriter(_sink_options(self.options, schema, overwrite))


class GantryReader(TaskObject, DataSourceReader):
    """Plans on the driver, reads in the tasks; holds plain values alone, so that it pickles."""

    def __init__(self, options: SourceOptions, names: Sequence[str]) -> None:
        self._options = options
        self._names = tuple(names)
        self._selection = Selection()
        self.pushFilters = Pushdown(self._selection)  # type: ignore[method-assign]

    def partitions(self) -> Sequence[InputPartition]:
        """One partition for each queue range, determined now: messages that arrive later are not read."""
        selection, tolerance = self._selection, self._options.time_tolerance_seconds
        with connect(self._options) as wire:

            def cut(item: QueueRange) -> QueueRange:
                return selection.cut_by_time(selection.cut(item), wire, tolerance)

            return [InputPartition(item) for item in plan_ranges(self._options, wire, cut)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of one partition as Arrow batches."""
        if partition.value is None:  # Spark's own partition, if there is no range
            return
        keep_modules()
        options = self._options
        # Brokers keep something else than the hashes of tags for some system topics, such as times of delivery.
        if options.subscription is None and not is_system_topic(partition.value.queue.topic):
            options = attrs.evolve(options, subscription=self._selection.subscription)
        with connect(options) as wire:
            yield from read_range(wire, partition.value, options, self._names)


@dataclass
class Pushdown:
    """``pushFilters`` of a reader: leave out what the filters exclude. Spark applies all of them again to the rows.

    With ``spark.sql.python.filterPushdown.enabled`` unset, Spark refuses a reader whose ``pushFilters`` is not the
    inherited function, although it only reads more then. ``__func__``, by which Spark recognizes it, is that function.
    """

    selection: Selection
    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        """All ``filters``, because Spark has to apply them."""
        for item in filters:
            _select(self.selection, item)
        return filters


class GantryStreamReader(TaskObject, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans each batch on the driver, reads in the tasks. It pickles until the first plan."""

    def __init__(self, options: StreamOptions, names: Sequence[str]) -> None:
        self._options = options
        self._names = tuple(names)
        self._opened: StreamPlanner | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  (Spark's name)
        """Where a query without a checkpoint starts."""
        return self._planner.initial()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  (Spark's name)
        """One limit of the options, for Spark to tell a limited batch from Trigger.Once; the planner applies all."""
        options = self._options
        if options.max_rows is not None:
            return ReadMaxRows(options.max_rows)
        if options.max_bytes is not None:
            return ReadMaxBytes(options.max_bytes)
        return ReadAllAvailable() if options.min_rows is None else ReadMinRows(options.min_rows)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  (Spark's name)
        """The end of the batch that begins at ``start``."""
        return self._planner.latest(start, isinstance(limit, ReadAllAvailable))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  (Spark's name)
        """Let the query end at what the queues have now."""
        self._planner.prepare_available_now()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802  (Spark's name)
        """The ends of the queues, for ``latestOffset`` in the query's progress."""
        return self._planner.report()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """One partition for each range of the batch."""
        return [InputPartition(item) for item in self._planner.ranges(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of one partition as Arrow batches."""
        keep_modules()
        with connect(self._options.source) as wire:
            yield from read_range(wire, partition.value, self._options.source, self._names)

    def commit(self, end: dict[str, Any]) -> None:
        """Commit the offsets of a finished batch for ``groupId``."""
        self._planner.commit(end)

    def stop(self) -> None:
        """Close the connections."""
        if self._opened is not None:
            self._opened.wire.close()

    @property
    def _planner(self) -> StreamPlanner:
        if self._opened is None:
            self._opened = StreamPlanner(self._options, connect(self._options.source))
        return self._opened


@dataclass
class SentRows(WriterCommitMessage):
    """What one task has sent."""

    rows: int


class GantryWriter(TaskObject, DataSourceArrowWriter):
    """Sends the rows of a frame. ``job`` is the same in repeated tasks of a write."""

    def __init__(self, options: SinkOptions, job: str) -> None:
        self._options = options
        self._job = job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task; all are stored when this returns."""
        from gantrymq.spark.sink import send_rows  # with trio and all of the client, which reading does without

        keep_modules()
        return SentRows(send_rows(iterator, self._options, f"{self._job}-{_task().partitionId()}"))


class GantryStreamWriter(TaskObject, DataSourceStreamArrowWriter):
    """Sends the rows of a stream's batches."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task; all are stored when this returns."""
        from gantrymq.spark.sink import send_rows

        keep_modules()
        task = _task()
        query, batch = (task.getLocalProperty(name) for name in (_QUERY_PROPERTY, _BATCH_PROPERTY))
        if self._options.derive_dedup_keys and (query is None or batch is None):
            raise WrongOption("dedupKeys: this Spark does not tell its tasks their query and batch")
        return SentRows(send_rows(iterator, self._options, f"{query}-{batch}-{task.partitionId()}"))


def _sink_options(given: Mapping[str, str], schema: StructType, overwrite: bool) -> SinkOptions:
    if overwrite:
        raise WrongOption('a topic cannot be overwritten: write with .mode("append"), a stream in output mode append')
    from gantrymq.spark.sink import check_sink_columns

    options = read_sink_options(given)
    check_sink_columns({field.name: field.dataType.simpleString() for field in schema.fields}, options)
    return options


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None  # Spark calls writers in tasks only
    return task


def _column_names(schema: StructType) -> list[str]:
    for field in schema.fields:
        kind = COLUMNS.get(field.name)
        if kind is None or _TYPES[kind] != field.dataType:
            raise WrongOption(
                f"column {field.name!r} of type {field.dataType.simpleString()} cannot be read; there are "
                + ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
            )
    return schema.fieldNames()


def _select(selection: Selection, condition: Filter) -> None:
    column = ".".join(getattr(condition, "attribute", ()))
    value = getattr(condition, "value", None)
    match condition:
        case EqualTo() | EqualNullSafe():
            selection.one_of(column, [value])
        case In():
            selection.one_of(column, condition.value)
        case GreaterThanOrEqual():
            selection.at_least(column, value)
        case GreaterThan():
            selection.at_least(column, value + 1 if isinstance(value, int) else value)
        case LessThanOrEqual():
            selection.at_most(column, value)
        case LessThan():
            selection.at_most(column, value - 1 if isinstance(value, int) else value)

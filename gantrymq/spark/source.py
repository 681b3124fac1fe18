"""The data source ``gantrymq`` as Spark sees it. The only module here, besides ``local``, that imports pyspark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
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

from gantrymq.spark.columns import COLUMNS
from gantrymq.spark.errors import WrongOption
from gantrymq.spark.options import SourceOptions, read_options
from gantrymq.spark.ranges import plan_ranges
from gantrymq.spark.reader import read_range
from gantrymq.spark.selection import Selection
from gantrymq.spark.wire import Wire

if TYPE_CHECKING:
    import pyarrow as pa

_TYPES: dict[str, DataType] = {
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "binary": BinaryType(),
    "timestamp": TimestampType(),
    "map<string,string>": MapType(StringType(), StringType()),
}


class GantryDataSource(DataSource):
    """``spark.read.format("gantrymq")``: a batch read of topics over the wire, from any RocketMQ-speaking cluster.

    Options are those of :mod:`gantrymq.spark.options`. A schema given by the user may name some of the columns, in any
    order; only those are built.
    """

    @classmethod
    def name(cls) -> str:
        """The name for ``format``."""
        return "gantrymq"

    def schema(self) -> StructType:
        """All columns, each nullable."""
        schema = StructType()
        for name, kind in COLUMNS.items():
            schema.add(name, _TYPES[kind])
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of the columns that ``schema`` names."""
        for field in schema.fields:
            kind = COLUMNS.get(field.name)
            if kind is None or _TYPES[kind] != field.dataType:
                raise WrongOption(
                    f"column {field.name!r} of type {field.dataType.simpleString()} cannot be read; there are "
                    + ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
                )
        return GantryReader(read_options(self.options), schema.fieldNames())


class GantryReader(DataSourceReader):
    """Plans on the driver, reads in the tasks; holds plain values alone, so that it pickles."""

    def __init__(self, options: SourceOptions, names: Sequence[str]) -> None:
        self._options = options
        self._names = tuple(names)
        self._selection = Selection()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  (Spark's name)
        """Leave out queues and offsets that ``filters`` exclude. Spark applies all of them again to the rows."""
        for item in filters:
            _select(self._selection, item)
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        """One partition for each queue range, determined now: messages that arrive later are not read."""
        with Wire() as wire:
            return [InputPartition(item) for item in plan_ranges(self._options, wire, self._selection.cut)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of one partition as Arrow batches."""
        if partition.value is None:  # Spark's own partition, if there is no range
            return
        with Wire() as wire:
            yield from read_range(wire, partition.value, self._options, self._names)


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
        case GreaterThan() if isinstance(value, int):
            selection.at_least(column, value + 1)
        case LessThanOrEqual():
            selection.at_most(column, value)
        case LessThan() if isinstance(value, int):
            selection.at_most(column, value - 1)

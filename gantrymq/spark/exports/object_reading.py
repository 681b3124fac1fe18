"""Reads the files of an export in an object store into a DataFrame: pyarrow does it, in Spark's Python workers."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import attrs
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from gantrymq.spark.columns import COLUMNS
from gantrymq.spark.exports.manifest import NULL_DATE, DataFile, folder_of
from gantrymq.spark.exports.object_store import open_store
from gantrymq.spark.exports.parquet_output import FILE_COLUMNS, read_batches

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

FORMAT = "gantrymq-export-files"


def read_objects(spark: SparkSession, url: str, files: Sequence[DataFile]) -> DataFrame:
    """The columns of the data source and ``date``, from ``files`` below ``url``; a task reads one file."""
    spark.dataSource.register(_Files)
    rows = [(file.path, file.span.topic, folder_of(file).rpartition("date=")[2]) for file in files]
    return spark.read.format(FORMAT).option("url", url).option("files", json.dumps(rows)).load()


class _Files(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return ", ".join(f"`{name}` {kind}" for name, kind in COLUMNS.items()) + ", date date"

    def reader(self, schema: Any) -> DataSourceReader:
        return _Reader(self.options["url"], json.loads(self.options["files"]))


@attrs.frozen
class _File(InputPartition):
    path: str
    topic: str
    date: str


class _Reader(DataSourceReader):
    def __init__(self, url: str, files: list[tuple[str, str, str]]) -> None:
        self._url, self._files = url, files

    def partitions(self) -> Sequence[InputPartition]:
        return [_File(*file) for file in self._files]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not isinstance(partition, _File):  # what Spark reads if there is no file
            return
        date = None if partition.date == NULL_DATE else datetime.date.fromisoformat(partition.date)
        with open_store(self._url).open(partition.path) as source, pq.ParquetFile(source) as opened:
            for batch in read_batches(opened):
                columns = {name: batch.column(name) for name in FILE_COLUMNS}
                columns["topic"] = pa.array([partition.topic] * batch.num_rows, pa.string())
                columns["date"] = pa.array([date] * batch.num_rows, pa.date32())
                names = [*COLUMNS, "date"]
                yield pa.RecordBatch.from_arrays([columns[name] for name in names], names)

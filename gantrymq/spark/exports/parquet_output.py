"""Reads the Parquet files of an export, and writes them: row groups of a bounded size, to a work folder or a store."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from uuid import uuid4

from gantrymq.spark.columns import COLUMNS, arrow_schema
from gantrymq.spark.exports import disk
from gantrymq.spark.exports.manifest import Span

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

FILE_COLUMNS = [name for name in COLUMNS if name != "topic"]
"""The columns of a file; its topic and the date are in its path, as Hive has partitions."""
GROUP_ROWS = 100_000
GROUP_BYTES = 32 * 1024 * 1024
"""A row group is written when it has this many messages, or bytes: what one task keeps in memory."""
BATCH_ROWS = 8192
"""The most messages of a batch that is read."""


def read_batches(file: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
    """The batches of a file. None has messages of two row groups, so that each is of a bounded size."""
    for number in range(file.num_row_groups):
        yield from file.iter_batches(BATCH_ROWS, row_groups=[number], columns=FILE_COLUMNS)


class _ParquetOutput:
    def __init__(self, output: BinaryIO, span: Span) -> None:
        import pyarrow.parquet as pq

        self._output = output
        self._schema = arrow_schema(FILE_COLUMNS)
        self._writer = pq.ParquetWriter(self._output, self._schema, compression="zstd")
        about = {"gantrymq.topic": span.topic, "gantrymq.broker": span.broker, "gantrymq.queueId": str(span.queue_id)}
        self._writer.add_key_value_metadata(about)
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Write a batch."""
        if batch.nbytes >= GROUP_BYTES:  # what was read from a row group; groups must not grow with each compaction
            self._write_group()
        self._waiting.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= GROUP_ROWS or self._bytes >= GROUP_BYTES:
            self._write_group()

    def _end(self) -> int:
        """Write the footer; the size of the file."""
        self._write_group()
        self._writer.close()
        self._output.flush()
        return self._output.tell()

    def _write_group(self) -> None:
        import pyarrow as pa

        if self._waiting:
            table = pa.Table.from_batches(self._waiting).replace_schema_metadata(None)
            self._writer.write_table(table.cast(self._schema), row_group_size=self._rows)
        self._waiting, self._rows, self._bytes = [], 0, 0


class FolderOutput(_ParquetOutput):
    """A Parquet file under a name of its own in ``work``, until it is complete and durable."""

    def __init__(self, work: Path, span: Span) -> None:
        work.mkdir(parents=True, exist_ok=True)
        self._work = work
        self._temporary = work / f"{uuid4()}.partial"
        super().__init__(self._temporary.open("wb"), span)

    def close(self, path: str) -> int:
        """Make the file durable and give it its name, relative to the work folder; its size."""
        size = self._end()
        os.fsync(self._output.fileno())
        self._output.close()
        disk.move(self._temporary, self._work / path)
        return size

    def abandon(self) -> None:
        """Remove what was written."""
        self._output.close()
        self._temporary.unlink(missing_ok=True)


class ObjectOutput(_ParquetOutput):
    """A Parquet file in an unnamed temporary file of this machine, until ``upload`` gets it with its name."""

    def __init__(self, upload: Callable[[str, BinaryIO], None], span: Span) -> None:
        self._upload = upload
        super().__init__(tempfile.TemporaryFile(), span)  # noqa: SIM115 - close and abandon close it

    def close(self, path: str) -> int:
        """Upload the file as ``path``; its size."""
        size = self._end()
        self._output.seek(0)
        self._upload(path, self._output)
        self._output.close()
        return size

    def abandon(self) -> None:
        """Remove what was written."""
        self._output.close()

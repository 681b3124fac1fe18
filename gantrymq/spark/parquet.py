"""Topics to Parquet files through Spark."""

from __future__ import annotations

import re
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import attrs
import msgspec

from gantrymq.spark.errors import FolderInUse, SparkError, SparkMissing
from gantrymq.spark.folders import local_folder
from gantrymq.spark.job import Progress, run_job
from gantrymq.spark.local import spark_status
from gantrymq.spark.options import Offsets, read_options
from gantrymq.spark.ranges import QueueRange, settle_ranges
from gantrymq.spark.wire import Wire

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE_ROWS = 500_000
"""A queue with more messages than that is read by several tasks, each of which writes a file of its own."""
_SUCCESS = "_SUCCESS"
_PARTIAL = ".partial-"
_EXPORTED = re.compile(r"part-.+\.parquet|_SUCCESS|\..+\.crc|\.partial-.+")


@attrs.frozen
class ExportResult:
    """What an export wrote: messages, bytes and number of Parquet files, and how long it took."""

    rows: int
    bytes: int
    files: int
    seconds: float
    folder: Path


def export(
    topic: str,
    to: str | Path,
    nameserver: str = "127.0.0.1:9876",
    *,
    starting_offsets: str = "earliest",
    ending_offsets: str = "latest",
    fail_on_data_loss: bool = True,
    overwrite: bool = False,
    spark: SparkSession | None = None,
    progress: Progress | None = None,
) -> ExportResult:
    """Write the messages of ``topic`` (or a comma list) into the folder ``to`` as Parquet, compressed by zstd.

    What is exported is settled at the start: messages that come later are left out. The folder must be new or empty;
    with ``overwrite``, files of an earlier export are replaced. ``spark`` is a session to use; without one a local one
    is started and stopped. Offsets are those of the data source. ``progress`` is called with the files that are done,
    and all of them. An interrupted export (KeyboardInterrupt) is cancelled in Spark before the interrupt goes on.

    Raises :class:`SparkMissing`, :class:`FolderInUse`, and what reading raises, all of them :class:`SparkError`; what
    can be checked is checked before Spark starts.
    """
    started = time.monotonic()
    folder = local_folder(to)
    given = {
        "nameserver": nameserver,
        "topic": topic,
        "startingOffsets": starting_offsets,
        "endingOffsets": ending_offsets,
        "failOnDataLoss": str(fail_on_data_loss).lower(),
    }
    _check_folder(folder, overwrite)
    status = spark_status()
    if not status:
        raise SparkMissing(status.reason)
    with Wire() as wire:
        ranges = settle_ranges(read_options(given), wire)
    given |= _settled(ranges)
    existed = folder.exists()
    partial = _make_partial(folder)
    try:
        run_job(lambda running: _write(running, given, partial), spark, progress)
        rows, size, files = _measure(partial)
        wanted = sum(item.rows for item in ranges)
        if rows < wanted and fail_on_data_loss:
            raise SparkError(f"{wanted} messages were to be exported, Spark wrote {rows}")
        _replace(folder, partial)
    except OSError as error:
        raise SparkError(f"cannot write to {folder}: {error.strerror or error}") from None
    finally:
        _drop_partial(folder, partial, existed)
    if progress is not None:
        progress(files, files)
    return ExportResult(rows, size, files, time.monotonic() - started, folder)


def _settled(ranges: list[QueueRange]) -> dict[str, str]:
    """The options that make the data source read exactly ``ranges``, in tasks of bounded size."""
    starting: Offsets = {}
    ending: Offsets = {}
    for item in ranges:
        queue = item.queue
        starting.setdefault(queue.topic, {}).setdefault(queue.broker, {})[queue.queue_id] = item.start
        ending.setdefault(queue.topic, {}).setdefault(queue.broker, {})[queue.queue_id] = item.end
    tasks = sum(-(-item.rows // FILE_ROWS) for item in ranges)
    return {
        "startingOffsets": msgspec.json.encode(starting).decode(),
        "endingOffsets": msgspec.json.encode(ending).decode(),
        "minPartitions": str(max(tasks, 1)),
    }


def _write(spark: SparkSession, options: dict[str, str], folder: Path) -> None:
    frame = spark.read.format("gantrymq").options(**options).load()
    frame.write.mode("append").option("compression", "zstd").parquet(
        str(folder)
    )  # a Hadoop path: an escaped URI would be a folder with % in its name


def _check_folder(folder: Path, overwrite: bool) -> None:
    try:
        names = sorted(item.name for item in folder.iterdir()) if folder.exists() else []
    except NotADirectoryError:
        raise FolderInUse(f"{folder} is a file, not a folder") from None
    except OSError as error:
        raise SparkError(f"cannot read {folder}: {error.strerror}") from None
    foreign = [name for name in names if not _EXPORTED.fullmatch(name)]
    if foreign and overwrite:
        raise FolderInUse(f"{folder} holds {foreign[0]!r}, which no export wrote: it will not be overwritten")
    if any(not name.startswith(_PARTIAL) for name in names) and not overwrite:
        raise FolderInUse(f"{folder} is not empty: name another folder, or allow to overwrite an earlier export")


def _make_partial(folder: Path) -> Path:
    """A hidden folder inside ``folder``, so that moving files out of it is a rename even where that is a mount."""
    partial = folder / f"{_PARTIAL}{uuid4()}"
    try:
        partial.mkdir(parents=True)
    except OSError as error:
        raise SparkError(f"cannot write to {folder}: {error.strerror}") from None
    return partial


def _drop_partial(folder: Path, partial: Path, existed: bool) -> None:
    shutil.rmtree(partial, ignore_errors=True)
    if not existed:
        with suppress(OSError):  # not empty: it holds the export
            folder.rmdir()


def _measure(folder: Path) -> tuple[int, int, int]:
    """Rows, bytes and number of the Parquet files, from their footers."""
    import pyarrow.parquet as pq

    files = sorted(folder.glob("*.parquet"))
    return (
        sum(pq.read_metadata(file).num_rows for file in files),
        sum(file.stat().st_size for file in files),
        len(files),
    )


def _replace(folder: Path, partial: Path) -> None:
    """Put the new files in an earlier export's place; _SUCCESS, the mark of a whole one, goes first and comes last."""
    (folder / _SUCCESS).unlink(missing_ok=True)
    for old in folder.iterdir():
        if old == partial or not _EXPORTED.fullmatch(old.name):
            continue
        if old.is_dir():  # what an export left that was killed
            shutil.rmtree(old)
        else:
            old.unlink()
    for new in sorted(partial.iterdir(), key=lambda file: file.name == _SUCCESS):
        new.rename(folder / new.name)

"""What an export has: as a DataFrame, as a list of files, as figures."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, cast, overload

import attrs

from gantrymq.spark.columns import COLUMNS
from gantrymq.spark.errors import ExportDamaged, UnknownTopic
from gantrymq.spark.exports.destination import Destination
from gantrymq.spark.exports.destinations import find_destination
from gantrymq.spark.exports.manifest import QueueKey, State, count
from gantrymq.spark.exports.object_destination import ObjectDestination
from gantrymq.spark.exports.parquet_output import FILE_COLUMNS
from gantrymq.spark.exports.table_formats import TABLE_FORMATS, find_table
from gantrymq.spark.exports.tables import QueueState
from gantrymq.spark.local import session
from gantrymq.spark.options import SourceOptions, read_addresses
from gantrymq.spark.security import Security, read_security
from gantrymq.spark.wire import Wire

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@attrs.frozen
class QueueStatus:
    """One exported queue: messages, files and bytes, where it continues, and how many messages are not exported yet.

    With the lag, also a queue that its broker has got since the last run.
    ``lost`` counts messages that were gone before they could be exported. ``lag`` is None if it was not asked for, or
    no broker has the queue.
    """

    topic: str
    broker: str
    queue_id: int
    next_offset: int
    rows: int
    files: int
    bytes: int
    lost: int
    lag: int | None = None


@attrs.frozen
class ExportStatus:
    """An export by its last manifest: ``number`` (0 before the first), the seconds since then, its queues.

    ``unfinished`` is True if a run was stopped, or runs now, whose messages are not published yet.
    """

    folder: Path | str
    number: int
    age: float | None
    unfinished: bool
    queues: list[QueueStatus]


def export_status(
    to: str | Path,
    nameserver: str | None = None,
    options: Mapping[str, str] | None = None,
    file_format: str = "parquet",
) -> ExportStatus:
    """What the export in ``to`` has; with ``nameserver`` also the lag of each queue.

    Of a table (``file_format`` ``delta`` or ``iceberg``) the files and bytes are not counted. ``options`` are those of
    the data source about security, such as ``accessKey`` and ``tls``.

    Raises :class:`ExportDamaged`, :class:`FolderInUse`, and what asking the brokers raises.
    """
    security = read_security(options or {})
    if file_format in TABLE_FORMATS:
        return _table_status(file_format, to, nameserver, security)
    export = existing_export(to)
    state = export.read_state()
    bounds = _find_bounds(state, nameserver, security) if nameserver is not None else {}
    queues: list[QueueStatus] = []
    for key, end in sorted(_new_queues(state, bounds) | set(state.ends.items())):
        files = [file for file in state.files.values() if file.span.key == key]
        lag = max(bounds[key][1] - end, 0) if key in bounds else None
        lost = count(span for span in state.lost if span.key == key)
        rows, size = count(file.span for file in files), sum(file.bytes for file in files)
        queues.append(QueueStatus(*key, end, rows, len(files), size, lost, lag))
    age = time.time() - state.created if state.number else None
    unfinished = export.read_plan(state.number + 1) is not None
    return ExportStatus(export.name, state.number, age, unfinished, queues)


def _table_status(file_format: str, to: str | Path, nameserver: str | None, security: Security) -> ExportStatus:
    table = find_table(file_format, to)
    state = table.read_state()
    if not state.number:
        raise ExportDamaged(f"{table.name} has no export")
    known = State(ends=state.ends)
    bounds = _find_bounds(known, nameserver, security) if nameserver is not None else {}
    found = dict(state.queues) | {key: QueueState(*key, first) for key, first in _new_queues(known, bounds)}
    queues = [
        QueueStatus(
            *key, queue.next_offset, queue.rows, 0, 0, queue.lost,
            max(bounds[key][1] - queue.next_offset, 0) if key in bounds else None,
        )
        for key, queue in sorted(found.items())
    ]  # fmt: skip
    return ExportStatus(table.name, state.number, time.time() - state.created, False, queues)


@overload
def export_files(to: Path, topic: str | None = None) -> list[Path]: ...


@overload
def export_files(to: str | Path, topic: str | None = None) -> list[Path] | list[str]: ...


def export_files(to: str | Path, topic: str | None = None) -> list[Path] | list[str]:
    """The Parquet files of the export's last manifest, of one topic or of all, for readers other than Spark.

    Of an export in an object store their URLs, in which % escapes nothing.
    """
    export = existing_export(to)
    state = export.read_state()
    found = [export.locate(file) for _, file in sorted(state.files.items()) if topic in (None, file.span.topic)]
    return cast("list[Path] | list[str]", found)


def read_export(to: str | Path, spark: SparkSession | None = None) -> DataFrame:
    """The export's last manifest as a DataFrame: the columns of the data source, and ``date`` (UTC, of storeTimestamp).

    ``spark`` is the session to use; without one :func:`gantrymq.spark.session` gives it. Files in an object store are
    read by pyarrow in Spark's Python workers, which need the package and the credentials that exports need. A
    replacement that is published while the DataFrame is used removes its files; read again then. Raises
    :class:`ExportDamaged`.
    """
    export = existing_export(to)
    files = [file for _, file in sorted(export.read_state().files.items())]
    spark = spark or session()
    if isinstance(export, ObjectDestination):
        from gantrymq.spark.exports.object_reading import read_objects

        return read_objects(spark, str(export.name), files)
    from pyspark.sql import DataFrame  # not before the session has told what is missing

    schema = ", ".join(f"`{name}` {COLUMNS[name]}" for name in FILE_COLUMNS) + ", topic string, date date"
    roots: dict[str, list[str]] = {}
    for path in (Path(export.locate(file)) for file in files):
        root = path.parents[2]  # above topic= and date=
        # With the scheme: the file system of a bare path is the cluster's, which may be HDFS.
        roots.setdefault(f"file://{root}", []).append(f"file://{path}")
    reader = spark.read.schema(schema).option("__globPaths__", "false")  # names with [] and * are taken as they are
    frames = [reader.option("basePath", root).parquet(*found) for root, found in roots.items()]
    frame = functools.reduce(DataFrame.unionByName, frames) if frames else spark.createDataFrame([], schema)
    return frame.select(*COLUMNS, "date")


def existing_export(to: str | Path) -> Destination:
    """An export that has begun. Raises :class:`ExportDamaged`, :class:`FolderInUse`."""
    export = find_destination(to)
    export.check()
    if not export.exists():
        raise ExportDamaged(f"{export.name} has no export")
    return export


def _find_bounds(state: State, nameserver: str, security: Security) -> dict[QueueKey, tuple[int, int]]:
    """The first readable offset and the end of each queue that the topics of the export have now."""
    bounds: dict[QueueKey, tuple[int, int]] = {}
    with Wire(security=security) as wire:
        options = SourceOptions(read_addresses(nameserver), tuple(sorted({topic for topic, _, _ in state.ends})))
        for topic in options.topics:
            with suppress(UnknownTopic):  # it was deleted, and its queues have no lag
                for queue in wire.find_queues(options.nameservers, topic):
                    key = (queue.topic, queue.broker, queue.queue_id)
                    bounds[key] = wire.find_bounds(queue)
    return bounds


def _new_queues(state: State, bounds: Mapping[QueueKey, tuple[int, int]]) -> set[tuple[QueueKey, int]]:
    """Queues that the export does not have yet, and their first offsets.

    Those of other brokers are not among them: they may have exports of their own.
    """
    brokers = {(topic, broker) for topic, broker, _ in state.ends}
    return {(key, first) for key, (first, _) in bounds.items() if key not in state.ends and key[:2] in brokers}

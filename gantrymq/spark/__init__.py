"""RocketMQ topics in Spark: a Python data source, a local session that is set up for it, and an export to Parquet.

``spark = gantrymq.spark.session()`` starts a local Spark session with the format; ``gantrymq.spark.register(spark)``
adds the format to an existing session. Then ``spark.read.format("gantrymq").option("nameserver",
"127.0.0.1:9876").option("topic", "orders").load()`` is a DataFrame. :func:`export` writes new messages of a topic into
Parquet files, and :func:`read_export` reads them.

Importing this package imports neither pyspark nor pyarrow; :func:`spark_status` returns whether Spark can run here.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gantrymq.spark.errors import (
        BrokenRecord,
        DataLoss,
        ExportDamaged,
        ExportFenced,
        FolderInUse,
        FolderLocked,
        Refused,
        SendFailed,
        SparkError,
        SparkMissing,
        UnknownTopic,
        Unreachable,
        WrongOption,
        reason,
    )
    from gantrymq.spark.exports.compacting import CompactResult, compact_export
    from gantrymq.spark.exports.measuring import ExportProgress
    from gantrymq.spark.exports.reading import ExportStatus, QueueStatus, export_files, export_status, read_export
    from gantrymq.spark.exports.run import ExportResult, export
    from gantrymq.spark.local import SparkStatus, java_available, register, session, spark_status
    from gantrymq.spark.progress import lag

_HOMES = {
    "BrokenRecord": "gantrymq.spark.errors",
    "CompactResult": "gantrymq.spark.exports.compacting",
    "DataLoss": "gantrymq.spark.errors",
    "ExportDamaged": "gantrymq.spark.errors",
    "ExportFenced": "gantrymq.spark.errors",
    "ExportProgress": "gantrymq.spark.exports.measuring",
    "ExportResult": "gantrymq.spark.exports.run",
    "ExportStatus": "gantrymq.spark.exports.reading",
    "FolderInUse": "gantrymq.spark.errors",
    "FolderLocked": "gantrymq.spark.errors",
    "QueueStatus": "gantrymq.spark.exports.reading",
    "Refused": "gantrymq.spark.errors",
    "SendFailed": "gantrymq.spark.errors",
    "SparkError": "gantrymq.spark.errors",
    "SparkMissing": "gantrymq.spark.errors",
    "SparkStatus": "gantrymq.spark.local",
    "UnknownTopic": "gantrymq.spark.errors",
    "Unreachable": "gantrymq.spark.errors",
    "WrongOption": "gantrymq.spark.errors",
    "compact_export": "gantrymq.spark.exports.compacting",
    "export": "gantrymq.spark.exports.run",
    "export_files": "gantrymq.spark.exports.reading",
    "export_status": "gantrymq.spark.exports.reading",
    "java_available": "gantrymq.spark.local",
    "lag": "gantrymq.spark.progress",
    "read_export": "gantrymq.spark.exports.reading",
    "reason": "gantrymq.spark.errors",
    "register": "gantrymq.spark.local",
    "session": "gantrymq.spark.local",
    "spark_status": "gantrymq.spark.local",
}

__all__ = [
    "BrokenRecord",
    "CompactResult",
    "DataLoss",
    "ExportDamaged",
    "ExportFenced",
    "ExportProgress",
    "ExportResult",
    "ExportStatus",
    "FolderInUse",
    "FolderLocked",
    "QueueStatus",
    "Refused",
    "SendFailed",
    "SparkError",
    "SparkMissing",
    "SparkStatus",
    "UnknownTopic",
    "Unreachable",
    "WrongOption",
    "compact_export",
    "export",
    "export_files",
    "export_status",
    "java_available",
    "lag",
    "read_export",
    "reason",
    "register",
    "session",
    "spark_status",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'gantrymq.spark' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})

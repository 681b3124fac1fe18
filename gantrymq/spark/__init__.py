"""RocketMQ topics in Spark: a Python data source, a local session that is set up for it, and an export to Parquet.

``spark = gantrymq.spark.session()`` gives a local Spark that knows the format; in a session of one's own,
``gantrymq.spark.register(spark)`` adds it. Then ``spark.read.format("gantrymq").option("nameserver",
"127.0.0.1:9876").option("topic", "orders").load()`` is a DataFrame, and :func:`export` writes Parquet files.

Importing this package imports neither pyspark nor pyarrow; :func:`spark_status` tells whether Spark can run here.
"""

from __future__ import annotations

from gantrymq.spark.errors import (
    BrokenRecord,
    DataLoss,
    FolderInUse,
    Refused,
    SparkError,
    SparkMissing,
    UnknownTopic,
    Unreachable,
    WrongOption,
    reason,
)
from gantrymq.spark.local import SparkStatus, java_available, register, session, spark_status
from gantrymq.spark.parquet import ExportResult, export

__all__ = [
    "BrokenRecord",
    "DataLoss",
    "ExportResult",
    "FolderInUse",
    "Refused",
    "SparkError",
    "SparkMissing",
    "SparkStatus",
    "UnknownTopic",
    "Unreachable",
    "WrongOption",
    "export",
    "java_available",
    "reason",
    "register",
    "session",
    "spark_status",
]

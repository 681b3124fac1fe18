"""The formats of tables, beside the Parquet files of an export with manifests."""

from __future__ import annotations

from pathlib import Path

from gantrymq.spark.exports.tables import Table

TABLE_FORMATS = ("delta", "iceberg")


def find_table(file_format: str, to: str | Path) -> Table:
    """The table that ``to`` names. Raises :class:`WrongOption`, and :class:`SparkMissing` with what to install."""
    if file_format == "delta":
        from gantrymq.spark.exports.delta import DeltaTarget

        return DeltaTarget(to)
    from gantrymq.spark.exports.iceberg import IcebergTarget

    return IcebergTarget(to)

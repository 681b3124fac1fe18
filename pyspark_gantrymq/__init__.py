"""Lets Spark find the data source ``gantrymq`` without registration.

Spark imports every module on its Python path whose name begins with ``pyspark_``, and registers its ``DefaultSource``.
An import that failed would take all Python data sources from the session, and a slow one would delay them. Therefore
this module imports neither GantryMQ nor pyarrow before the source is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

    from gantrymq.spark.source import GantryDataSource


class DefaultSource(DataSource):
    """The source of :mod:`gantrymq.spark.source`, which is imported when a query uses it.

    Each method raises :class:`gantrymq.spark.SparkMissing` if this Spark is too old for it.
    """

    @classmethod
    def name(cls) -> str:
        """The name for ``format``."""
        return "gantrymq"

    def schema(self) -> StructType:
        """The columns of a read."""
        return self._find().schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """The batch reader."""
        return self._find().reader(schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  (Spark's name)
        """The stream reader."""
        return self._find().streamReader(schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The writer of a batch."""
        return self._find().writer(schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802  (Spark's name)
        """The writer of a stream."""
        return self._find().streamWriter(schema, overwrite)

    def _find(self) -> GantryDataSource:
        from gantrymq.spark.local import check_pyspark

        check_pyspark()
        from gantrymq.spark.source import GantryDataSource

        return GantryDataSource(self.options)

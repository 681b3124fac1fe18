"""An Apache Iceberg table as the target of an export, by the library ``pyiceberg``.

Where each queue continues is a property of the table, which a commit changes together with the rows. The commit
requires that the table still has the snapshot that the run began from.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gantrymq.spark.errors import ExportFenced, FolderInUse, SparkError, SparkMissing, WrongOption
from gantrymq.spark.exports.manifest import QueueKey
from gantrymq.spark.exports.tables import (
    DESCRIPTION,
    PARTITIONS,
    QueueState,
    TableState,
    decode_queues,
    encode_queues,
    table_schema,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

_RECORD = "gantrymq.queues"
"""The property that has the queues."""
_RETRIES = "commit.retry.num-retries"
COMMITS_MAX = 5
"""How often a commit is tried beside writers of other queues, and those that do not export, such as a compaction."""


class IcebergTarget:
    """The table ``catalog.namespace.table``; the catalog is configured as pyiceberg has it."""

    def __init__(self, to: str | Path) -> None:
        if importlib.util.find_spec("pyiceberg") is None:
            raise SparkMissing("pyiceberg is not installed: pip install 'gantrymq[iceberg]'")
        self.name: str | Path = str(to)
        parts = str(to).split(".")
        if len(parts) < 3 or not all(parts) or "/" in str(to):
            raise WrongOption(f"an Iceberg table is named as catalog.namespace.table, not {str(to)!r}")
        self._catalog_name, *self._identifier = parts
        self._catalog: Catalog | None = None
        self._table: Table | None = None
        self._known: Mapping[QueueKey, QueueState] = {}
        """The queues as this writer has read or committed them."""

    def read_state(self, wanted: Collection[QueueKey] = ()) -> TableState:
        """As :class:`~gantrymq.spark.exports.tables.Table` says."""
        self._known = {}
        with _errors_of(self.name):
            table = self._table = self._load()
        if table is None:
            return TableState()
        text = table.properties.get(_RECORD)
        if text is None:
            raise FolderInUse(f"{self.name} is a table that no export made: name another one")
        snapshot = table.current_snapshot()
        created = (table.metadata.last_updated_ms if snapshot is None else snapshot.timestamp_ms) / 1000
        number = 0 if snapshot is None or snapshot.sequence_number is None else snapshot.sequence_number
        self._known = decode_queues(text, self.name)
        return TableState(number + 1, created, self._known)

    def append(self, rows: pa.Table, queues: Mapping[QueueKey, QueueState]) -> tuple[int, int]:
        """As :class:`~gantrymq.spark.exports.tables.Table` says."""
        from pyiceberg.exceptions import CommitFailedException

        with _errors_of(self.name):
            table = self._table or self._create()
            reason: object = "its offsets have moved"
            for _ in range(COMMITS_MAX):
                before = decode_queues(table.properties.get(_RECORD, "[]"), self.name)
                # At the first try, too: after an earlier commit of this run the table may be newer than what was read.
                if any(before.get(key) != self._known.get(key) for key in queues):
                    break
                changed = encode_queues({**before, **queues})
                # pyiceberg would repeat the commit on top of what another writer has made of the table meanwhile.
                table.metadata.properties[_RETRIES] = "0"
                try:
                    with table.transaction() as transaction:
                        transaction.set_properties({_RECORD: changed})
                        transaction.append(rows, snapshot_properties={_RECORD: encode_queues(queues)})
                except CommitFailedException as error:
                    reason = error
                else:
                    self._known = {**self._known, **queues}
                    snapshot = table.current_snapshot()
                    summary = {} if snapshot is None or snapshot.summary is None else snapshot.summary
                    return int(summary.get("added-data-files") or 0), int(summary.get("added-files-size") or 0)
                found = self._load()
                if found is None:
                    break
                table = self._table = found
        raise ExportFenced(
            f"another writer has committed to {self.name}: nothing of this commit counts; run the export again "
            f"({reason})"
        )

    def _open_catalog(self) -> Catalog:
        from pyiceberg.catalog import load_catalog

        if self._catalog is None:
            self._catalog = load_catalog(self._catalog_name)
        return self._catalog

    def _load(self) -> Table | None:
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        try:
            return self._open_catalog().load_table(tuple(self._identifier))
        except (NoSuchTableError, NoSuchNamespaceError):
            return None

    def _create(self) -> Table:
        from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError

        catalog = self._open_catalog()
        catalog.create_namespace_if_not_exists(tuple(self._identifier[:-1]))
        properties = {_RECORD: encode_queues({}), "comment": DESCRIPTION}
        try:
            with (
                catalog.create_table_transaction(
                    tuple(self._identifier), schema=table_schema(), properties=properties
                ) as transaction,
                transaction.update_spec() as partitions,
            ):
                for name in PARTITIONS:
                    partitions.add_identity(name)
        except (CommitFailedException, TableAlreadyExistsError):
            raise ExportFenced(f"another writer has made {self.name}: run the export again") from None
        self._table = catalog.load_table(tuple(self._identifier))
        return self._table


@contextmanager
def _errors_of(name: str | Path) -> Iterator[None]:
    try:
        yield
    except SparkError:
        raise
    except Exception as error:  # those of pyiceberg, and of what a catalog is made with, have no base in common
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise SparkError(f"Iceberg table {name}: {first}") from error

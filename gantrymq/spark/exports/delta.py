"""A Delta Lake table as the target of an export, by the library ``deltalake``.

Where each queue continues is a transaction identifier of the table: the id names the queue, the version is the offset.
Delta Lake commits it with the rows and refuses two writers that move the same one.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

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
from gantrymq.spark.exports.target import local_folder

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

_URL = re.compile(r"(?:s3a?|gs|abfss?|az|adl|azure)://.+", re.IGNORECASE)
_RECORD = "gantrymq.queues"
"""The key of the queues in a commit's metadata."""
_UNUSABLE = re.compile(r"[\[\]|\\^%<>`\x00-\x1f]")
"""What deltalake 1.6 cannot have in the path of a folder: it takes the path for a URL."""


class DeltaTarget:
    """The table in a folder, or at the URL of an object store, whose credentials are in the environment."""

    def __init__(self, to: str | Path) -> None:
        if importlib.util.find_spec("deltalake") is None:
            raise SparkMissing("deltalake is not installed: pip install 'gantrymq[delta]'")
        self.name: str | Path = str(to) if isinstance(to, str) and _URL.fullmatch(to) else local_folder(to)
        if isinstance(self.name, Path) and (found := _UNUSABLE.search(str(self.name))):
            raise WrongOption(f"cannot write a Delta table to {str(to)!r}: deltalake cannot use {found[0]!r} in a path")
        self._uri = str(self.name)
        self._table: DeltaTable | None = None

    def read_state(self) -> TableState:
        """As :class:`~gantrymq.spark.exports.tables.Table` says."""
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        with _errors_of(self.name):
            try:
                table = self._table = DeltaTable(self._uri)
            except TableNotFoundError:
                self._check_folder()
                return TableState()
            if table.metadata().description != DESCRIPTION:
                raise FolderInUse(f"{self.name} is a table that no export made: name another one")
            recorded = _last_record(table.history())
            created = table.history(1)[0]["timestamp"] / 1000
        queues = decode_queues(recorded, self.name) if recorded is not None else {}
        # The identifiers count: the record is there to know which of them exist.
        settled = {key: self._settle(table, queue) for key, queue in queues.items()}
        return TableState(table.version() + 1, created, settled)

    def append(self, rows: pa.Table, queues: Mapping[QueueKey, QueueState]) -> tuple[int, int]:
        """As :class:`~gantrymq.spark.exports.tables.Table` says."""
        from deltalake import CommitProperties, Transaction, write_deltalake
        from deltalake.exceptions import CommitFailedError

        with _errors_of(self.name):
            table = self._table or self._create()
            before = _files(table)
            recorded = _last_record(table.history())
            known = decode_queues(recorded, self.name) if recorded is not None else {}
            properties = CommitProperties(
                app_transactions=[Transaction(_id_of(key), queue.next_offset) for key, queue in queues.items()],
                custom_metadata={_RECORD: encode_queues({**known, **queues})},
            )
            try:
                write_deltalake(table, rows, mode="append", commit_properties=properties)
            except CommitFailedError as error:
                raise ExportFenced(
                    f"another writer has committed to {self.name}: nothing of this commit counts; run the export again "
                    f"({error})"
                ) from None
            added = {path: size for path, size in _files(table).items() if path not in before}
        return len(added), sum(added.values())

    def _create(self) -> DeltaTable:
        from deltalake import DeltaTable

        self._table = DeltaTable.create(
            self._uri, schema=table_schema(), mode="ignore", partition_by=list(PARTITIONS), description=DESCRIPTION
        )
        return self._table

    def _check_folder(self) -> None:
        if not isinstance(self.name, Path) or not self.name.exists():
            return
        if not self.name.is_dir():
            raise FolderInUse(f"{self.name} is a file, not a folder")
        for item in self.name.iterdir():
            raise FolderInUse(f"{self.name} has {item.name!r} and no Delta table: name another folder")

    @staticmethod
    def _settle(table: DeltaTable, queue: QueueState) -> QueueState:
        version = table.transaction_version(_id_of(queue.key))
        return queue if version is None else attrs.evolve(queue, next_offset=version)


def _id_of(key: QueueKey) -> str:
    return f"gantrymq/{key[0]}/{key[1]}/{key[2]}"


def _last_record(history: list[dict[str, Any]]) -> str | None:
    """Of the newest commit that an export made: others may have changed the table since."""
    return next((str(commit[_RECORD]) for commit in history if _RECORD in commit), None)


def _files(table: DeltaTable) -> dict[str, int]:
    import pyarrow as pa

    actions = pa.table(table.get_add_actions())
    return dict(zip(actions.column("path").to_pylist(), actions.column("size_bytes").to_pylist(), strict=True))


@contextmanager
def _errors_of(name: str | Path) -> Iterator[None]:
    from deltalake.exceptions import DeltaError

    try:
        yield
    except (DeltaError, OSError) as error:
        raise SparkError(f"Delta table {name}: {error}") from None

"""A Delta Lake table as the target of an export, by the library ``deltalake``.

Where each queue continues is a transaction identifier of the table: the id names the queue, the version is the offset.
Delta Lake commits it with the rows and refuses two writers that move the same one.
"""

from __future__ import annotations

import importlib.util
import re
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
from gantrymq.spark.exports.target import local_folder

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

_URL = re.compile(r"(?:s3a?|gs|abfss?|az|adl|azure)://.+", re.IGNORECASE)
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_RECORD = "gantrymq.queues"
"""The key of the queues in a commit's metadata."""
HISTORY = 100
"""How many commits are searched for the names of queues."""
_FENCED = "another writer has committed to {}: nothing of this commit counts; run the export again ({})"
_LOG = "_delta_log"
_COMMIT = re.compile(r"\d+\.(json|checkpoint.*|crc)$")
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
        self._known: Mapping[QueueKey, QueueState] = {}
        """The queues as this writer has read or committed them."""

    def read_state(self, wanted: Collection[QueueKey] = ()) -> TableState:
        """As :class:`~gantrymq.spark.exports.tables.Table` says."""
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        self._known = {}
        with _errors_of(self.name):
            try:
                table = self._table = DeltaTable(self._uri)
            except TableNotFoundError:
                self._check_folder()
                return TableState()
            if table.metadata().description != DESCRIPTION:
                raise FolderInUse(f"{self.name} is a table that no export made: name another one")
            created = table.history(1)[0]["timestamp"] / 1000
            keys = {*_recorded(table, self.name), *wanted}
            self._known = {key: found for key in keys if (found := _read_queue(table, key)) is not None}
        return TableState(table.version() + 1, created, self._known)

    def append(self, rows: pa.Table, queues: Mapping[QueueKey, QueueState]) -> tuple[int, int]:
        """As :class:`~gantrymq.spark.exports.tables.Table` says."""
        from deltalake import CommitProperties, Transaction, WriterProperties, write_deltalake
        from deltalake.exceptions import CommitFailedError

        with _errors_of(self.name):
            table = self._table or self._create()
            # deltalake compares a commit only with those after the version that the table object has. That is a later
            # one than was read if another writer made the table, or committed before an earlier commit of this run.
            if any(_read_queue(table, key) != self._known.get(key) for key in queues):
                raise ExportFenced(_FENCED.format(self.name, "its offsets have moved"))
            before = _files(table)
            properties = CommitProperties(
                app_transactions=[
                    Transaction(name, version)
                    for queue in queues.values()
                    for name, version in zip(_ids_of(queue.key), _figures_of(queue), strict=True)
                ],
                custom_metadata={_RECORD: encode_queues({**_recorded(table, self.name), **queues})},
            )
            try:
                write_deltalake(
                    table,
                    rows,
                    mode="append",
                    commit_properties=properties,
                    writer_properties=WriterProperties(compression="ZSTD"),
                )
            except CommitFailedError as error:
                raise ExportFenced(_FENCED.format(self.name, error)) from None
            self._known = {**self._known, **queues}
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
            if item.name == _LOG and not any(_COMMIT.match(record.name) for record in item.iterdir()):
                continue  # of a run that was killed while it made the table
            raise FolderInUse(f"{self.name} has {item.name!r} and no Delta table: name another folder")


def _ids_of(key: QueueKey) -> tuple[str, str, str]:
    """The identifiers of a queue, in the order of :func:`_figures_of`."""
    name = f"gantrymq/{key[0]}/{key[1]}/{key[2]}"
    return name, f"{name}/rows", f"{name}/lost"


def _figures_of(queue: QueueState) -> tuple[int, int, int]:
    return queue.next_offset, queue.rows, queue.lost


def _read_queue(table: DeltaTable, key: QueueKey) -> QueueState | None:
    next_offset, rows, lost = (table.transaction_version(name) for name in _ids_of(key))
    return None if next_offset is None else QueueState(*key, next_offset, rows or 0, lost or 0)


def _recorded(table: DeltaTable, name: str | Path) -> dict[QueueKey, QueueState]:
    """Which queues newest commits name, for those that cannot name them; their identifiers have the offsets.

    One commit does not suffice: it lacks the queues of one that was made at the same time.
    """
    found: dict[QueueKey, QueueState] = {}
    for commit in reversed(table.history(HISTORY)):
        if _RECORD in commit:
            found |= decode_queues(str(commit[_RECORD]), name)
    return found


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
        lines = _STYLE.sub("", str(error)).replace("\u21b3", "").splitlines()
        raise SparkError(f"Delta table {name}: {': '.join(filter(None, map(str.strip, lines)))}") from None

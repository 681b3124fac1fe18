"""Where an export is: the operations that a run needs of a folder or of an object store."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from gantrymq.spark.exports.manifest import DataFile, Manifest, Plan, Span, State, Written

if TYPE_CHECKING:
    import pyarrow as pa


class Output(Protocol):
    """A Parquet file that is being written."""

    def add(self, batch: pa.RecordBatch) -> None:
        """Write a batch."""

    def close(self, path: str) -> int:
        """Make the file complete and durable under ``path``, relative to the export; its size in bytes."""

    def abandon(self) -> None:
        """Remove what was written."""


class Destination(Protocol):
    """One export, which may not exist yet. Nothing is read or made before a method needs it."""

    name: Path | str

    def check(self) -> None:
        """Raise :class:`FolderInUse` if it has what no export wrote, :class:`SparkError` if unreadable."""

    def exists(self) -> bool:
        """Whether an export has begun here."""

    def lock(self) -> AbstractContextManager[None]:
        """Be its writer. Raises :class:`FolderLocked` if another one is known."""

    def finish(self) -> None:
        """End runs that were stopped after their manifest was certain, except those with a plan to go on with."""

    def read_state(self) -> State:
        """What the export has by its last manifest. Raises :class:`ExportDamaged`."""

    def read_plan(self, number: int) -> Plan | None:
        """The plan of a run that has not ended."""

    def create_plan(self, plan: Plan) -> None:
        """Record ``plan`` by exclusive creation. Raises :class:`ExportFenced` if another writer was first."""

    def discard_plan(self, plan: Plan) -> bool:
        """Drop a plan; False if its manifest is certain already."""

    def finished(self, plan: Plan) -> set[int]:
        """The tasks of ``plan`` that have left a result."""

    def read_result(self, plan: Plan, task: int) -> Written | None:
        """What a task wrote, if it has ended."""

    def write_result(self, plan: Plan, task: int, written: Written) -> None:
        """Record that a task has ended."""

    def suffix(self, number: int, run: str, kind: str) -> str:
        """What the name of a file ends with, so that no other run makes the same name. ``run`` is the id of it.

        ``kind`` is ``r`` for a replacement, ``c`` for a compaction, else empty.
        """

    def open_output(self, number: int, span: Span) -> Output:
        """A file of run ``number`` for messages of ``span``."""

    def open_file(self, file: DataFile) -> Path | BinaryIO:
        """A published file, for pyarrow."""

    def locate(self, file: DataFile) -> Path | str:
        """Where a published file is now, for other readers."""

    def staged(self, number: int) -> Manifest | None:
        """The manifest of a run that is certain and has not ended."""

    def stage(self, plan: Plan) -> Manifest:
        """Check what the tasks wrote, and make the manifest. Raises :class:`ExportDamaged`, :class:`ExportFenced`."""

    def place(self, manifest: Manifest) -> None:
        """Publish a staged manifest and end its run. Raises :class:`ExportFenced` if another writer was first."""

    def publish_compaction(self, state: State, run: str, merged: Sequence[DataFile], removed: Sequence[str]) -> None:
        """Check the files of a compaction of ``state``, and publish that they replace ``removed``.

        Raises :class:`ExportFenced` if another writer has replaced files that they have.
        """

    def remove_unreferenced(self) -> None:
        """Remove old files that no manifest names, if there can be any."""

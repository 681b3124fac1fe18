"""An export in a folder. Files are moved into place before or after their manifest is published, see ``placing``."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from gantrymq.spark.errors import ExportFenced, SparkError
from gantrymq.spark.exports import disk, placing
from gantrymq.spark.exports.checking import check_file, check_results
from gantrymq.spark.exports.folder import ExportFolder, tasks_in
from gantrymq.spark.exports.manifest import (
    DataFile,
    Manifest,
    Plan,
    Span,
    State,
    Written,
    compaction_manifest,
    encode,
    folder_of,
    run_manifest,
    topic_folder,
)
from gantrymq.spark.exports.parquet_output import FolderOutput


class FolderDestination:
    """The :class:`~gantrymq.spark.exports.destination.Destination` for a folder of a mounted file system."""

    def __init__(self, path: Path) -> None:
        self.name: Path | str = path
        self._folder = ExportFolder(path)

    def check(self) -> None:
        self._folder.check()

    def exists(self) -> bool:
        return self._folder.records.is_dir()

    def lock(self) -> AbstractContextManager[None]:
        return self._folder.lock()

    def finish(self) -> None:
        placing.finish(self._folder)

    def read_state(self) -> State:
        return self._folder.read_state()

    def read_plan(self, number: int) -> Plan | None:
        return self._folder.read_plan(number)

    def create_plan(self, plan: Plan) -> None:
        try:
            disk.create_durably(self._folder.plan_path(plan.number), encode(plan))
        except FileExistsError:
            raise ExportFenced(f"another writer uses {self.name}: run the export again") from None

    def discard_plan(self, plan: Plan) -> bool:
        if self.staged(plan.number) is not None:
            return False
        placing.clean(self._folder, plan.number)
        return True

    def finished(self, plan: Plan) -> set[int]:
        work = self._folder.work_path(plan.number)
        return tasks_in((path.name for path in (work.iterdir() if work.is_dir() else ())), plan.id)

    def read_result(self, plan: Plan, task: int) -> Written | None:
        return self._folder.read_result(plan, task)

    def write_result(self, plan: Plan, task: int, written: Written) -> None:
        path = self._folder.result_path(plan, task)
        path.parent.mkdir(parents=True, exist_ok=True)
        disk.write_durably(path, encode(written))

    def suffix(self, number: int, run: str, kind: str) -> str:
        return f"-{kind}{number}" if kind else ""

    def open_output(self, number: int, span: Span) -> FolderOutput:
        return FolderOutput(self._folder.work_path(number), span)

    def open_file(self, file: DataFile) -> Path:
        return self._folder.path / file.path

    def locate(self, file: DataFile) -> Path:
        return self._folder.locate(file)

    def staged(self, number: int) -> Manifest | None:
        return self._folder.read_staged(number)

    def stage(self, plan: Plan) -> Manifest:
        work = self._folder.work_path(plan.number)
        work.mkdir(parents=True, exist_ok=True)
        results = [self.read_result(plan, index) for index in range(len(plan.tasks))]
        written = [result for result in results if result is not None]
        if len(written) < len(results):
            raise SparkError(
                f"{len(results) - len(written)} of {len(results)} tasks left no result in {work}: the folder must be "
                "on a file system that all machines of the Spark cluster share"
            )
        check_results(plan, written)
        files = [file for result in written for file in result.files]
        for file in files:
            check_file(work / file.path, file)
        placing.keep_only(work, [work / file.path for file in files])
        disk.sync_folders(work, [work / file.path for file in files])
        swapped = [topic_folder(topic) for topic in plan.replaced]
        return self._write_staged(run_manifest(plan, written, time.time(), swapped))

    def publish_compaction(self, state: State, run: str, merged: Sequence[DataFile], removed: Sequence[str]) -> None:
        work = self._folder.work_path(state.number + 1)
        for file in merged:
            check_file(work / file.path, file)
        swapped = sorted({folder_of(file) for file in merged})
        gone = set(removed)
        kept = [file for file in state.files.values() if folder_of(file) in swapped and file.path not in gone]
        for file in kept:
            os.link(self._folder.path / file.path, work / file.path)
        disk.sync_folders(work, [work / file.path for file in (*merged, *kept)])
        self.place(self._write_staged(compaction_manifest(state, run, time.time(), merged, removed, swapped)))

    def place(self, manifest: Manifest) -> None:
        placing.place(self._folder, manifest)

    def remove_unreferenced(self) -> None:
        pass  # a run's files are in its work folder until they are published

    def _write_staged(self, manifest: Manifest) -> Manifest:
        """Make the manifest durable; from here on it is certain."""
        disk.write_durably(self._folder.staged_path(manifest.number), encode(manifest))
        return manifest

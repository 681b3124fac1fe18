"""The folder of an export: where its records are, who may write to it, and what it has.

``_gantrymq/`` has the records; readers of Parquet skip names that begin with ``_``. A run with number N uses
``plan-N.json``, ``work-N/`` (its files, before they are in place), ``staged-N.json`` (the manifest, once every file of
it is durable) and publishes ``manifest-N.json``.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gantrymq.spark.errors import FolderInUse, FolderLocked, SparkError
from gantrymq.spark.exports import disk
from gantrymq.spark.exports.manifest import DataFile, Kind, Manifest, Plan, State, Written, decode, encode, sum_up

RECORDS = "_gantrymq"
COMPLETE_EVERY = 100
"""Every so many manifests one is complete, so that a reader never reads more of them."""
MANIFEST = re.compile(r"manifest-(\d{8,})\.json")
OURS = re.compile(r"_gantrymq|topic=.+")
_RESULT = re.compile(r"task-(\d{8,})(?:-([0-9a-f-]+))?\.json")


def result_name(task: int, run: str = "") -> str:
    """The name of the file or object with the result of a task. ``run`` is the id of the run where plans of several
    runs may have their results in one folder."""
    return f"task-{task:08}-{run}.json" if run else f"task-{task:08}.json"


def tasks_in(names: Iterable[str], run: str = "") -> set[int]:
    """The tasks whose results, under the names of :func:`result_name`, are among these names."""
    return {int(match[1]) for match in map(_RESULT.fullmatch, names) if match and (match[2] or "") == run}


class ExportFolder:
    """One export on disk. Paths are absolute; nothing is read or made before a method needs it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records = path / RECORDS

    def check(self) -> None:
        """Raise :class:`FolderInUse` if the folder has what no export wrote, :class:`SparkError` if unreadable."""
        try:
            names = sorted(item.name for item in self.path.iterdir()) if self.path.exists() else []
        except NotADirectoryError:
            raise FolderInUse(f"{self.path} is a file, not a folder") from None
        except OSError as error:
            raise SparkError(f"cannot read {self.path}: {error.strerror}") from None
        foreign = [name for name in names if not OURS.fullmatch(name)]
        if foreign:
            raise FolderInUse(f"{self.path} has {foreign[0]!r}, which no export wrote: name another folder")
        if names and RECORDS not in names:
            raise FolderInUse(f"{self.path} has {names[0]!r} but no {RECORDS}, so no export wrote it")

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Make the folder and be its only writer on this machine. Raises :class:`FolderInUse`, and its kind
        :class:`FolderLocked` if there is another writer."""
        self.check()
        self.records.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.records / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise FolderLocked(f"another export is writing to {self.path}: wait until it has ended") from None
        try:
            yield
        finally:
            os.close(descriptor)

    def numbers(self) -> list[int]:
        """The numbers of the published manifests, ascending."""
        if not self.records.is_dir():
            return []
        found = (MANIFEST.fullmatch(item.name) for item in self.records.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def read_state(self) -> State:
        """What the export has by its last manifest. Raises :class:`ExportDamaged`."""

        def read(number: int) -> Manifest:
            path = self.manifest_path(number)
            return decode(path.read_bytes(), Manifest, path)

        return sum_up(self.numbers(), read, self.manifest_path)

    def publish(self, manifest: Manifest) -> None:
        """Publish by exclusive creation. Raises FileExistsError if another writer has published that number."""
        if manifest.number % COMPLETE_EVERY == 0:
            state = self.read_state()
            state.apply(manifest)
            manifest = state.as_manifest(manifest)
        disk.create_durably(self.manifest_path(manifest.number), encode(manifest))

    def manifest_path(self, number: int) -> Path:
        """Where manifest ``number`` is."""
        return self.records / f"manifest-{number:08}.json"

    def plan_path(self, number: int) -> Path:
        """Where the plan of run ``number`` is until the run has ended."""
        return self.records / f"plan-{number:08}.json"

    def staged_path(self, number: int) -> Path:
        """Where the manifest of run ``number`` is from when it is certain until the run has ended."""
        return self.records / f"staged-{number:08}.json"

    def work_path(self, number: int) -> Path:
        """Where the files of run ``number`` are until they are in place."""
        return self.records / f"work-{number:08}"

    def result_path(self, plan: Plan, task: int) -> Path:
        """Where the result of one task of ``plan`` is. A task of a dropped plan with the same number, which a worker
        may still run, has another path."""
        return self.work_path(plan.number) / result_name(task, plan.id)

    def read_plan(self, number: int) -> Plan | None:
        """The plan of a run that has not ended."""
        return _read(self.plan_path(number), Plan)

    def read_staged(self, number: int) -> Manifest | None:
        """The manifest of a run that is certain and has not ended."""
        return _read(self.staged_path(number), Manifest)

    def read_result(self, plan: Plan, task: int) -> Written | None:
        """What a task wrote, if it has ended."""
        return _read(self.result_path(plan, task), Written)

    def locate(self, file: DataFile) -> Path:
        """Where ``file`` is now: in place, or still in the work folder of a replacement that was just published."""
        path = self.path / file.path
        if not path.exists():
            for work in sorted(self.records.glob("work-*")):
                if (work / file.path).exists():
                    return work / file.path
        return path


def _read(path: Path, kind: type[Kind]) -> Kind | None:
    try:
        return decode(path.read_bytes(), kind, path)
    except FileNotFoundError:
        return None

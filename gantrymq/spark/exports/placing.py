"""From staged files to published ones, so that a stop at any step can be finished by the next run.

New files are moved into place before their manifest is published: a reader of the folder sees each message once, and a
reader of manifests none of them yet. A replacement or compaction publishes first; its files are read from the work
folder until the folders of the topics or dates are exchanged, each in one step.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from gantrymq.spark.errors import ExportFenced
from gantrymq.spark.exports import disk
from gantrymq.spark.exports.folder import ExportFolder
from gantrymq.spark.exports.manifest import Manifest

_RUN_FILE = re.compile(r"(?:plan|staged)-(\d{8,})\.json|work-(\d{8,})")


def place(folder: ExportFolder, manifest: Manifest) -> None:
    """Publish a staged manifest and end its run. Raises :class:`ExportFenced` if another writer was first."""
    if not manifest.swapped:
        _move_in(folder, manifest)
    try:
        folder.publish(manifest)
    except FileExistsError:
        _withdraw(folder, manifest)
        raise ExportFenced(
            f"another writer has published manifest {manifest.number} of {folder.path}: nothing of this run counts; "
            "run the export again"
        ) from None
    show(folder, manifest)
    clean(folder, manifest.number)


def show(folder: ExportFolder, manifest: Manifest) -> None:
    """Exchange the folders that a replacement or compaction has written; a second call changes nothing."""
    work = folder.work_path(manifest.number)
    for name in manifest.swapped:
        shown, fresh = folder.path / name, work / name
        added = [folder.path / file.path for file in manifest.added if file.path.startswith(f"{name}/")]
        if not added:
            disk.move_away(shown, fresh)
        elif not all(path.exists() for path in added):
            if shown.exists():
                disk.exchange(fresh, shown)
            else:
                disk.move(fresh, shown)
        if shown.parent.exists():
            disk.sync_folder(shown.parent)


def clean(folder: ExportFolder, number: int) -> None:
    """Remove what run ``number`` leaves; the plan goes last, so that a stop in between is noticed."""
    disk.remove(folder.work_path(number))
    disk.remove(folder.staged_path(number))
    disk.remove(folder.plan_path(number))
    disk.sync_folder(folder.records)


def finish(folder: ExportFolder) -> None:
    """End runs that were stopped after their manifest was certain, except those that have a plan to go on with."""
    disk.remove_temporary(folder.records)
    state = folder.read_state()
    for number in _unfinished(folder):
        staged = folder.read_staged(number)
        if number <= state.number:
            if staged is not None and (staged.number, staged.plan) == (state.number, state.plan):
                show(folder, staged)
            clean(folder, number)
        elif folder.read_plan(number) is None:  # a compaction, which has no plan, or what is left of one
            if staged is not None and number == state.number + 1:
                place(folder, staged)
            else:
                clean(folder, number)


def keep_only(work: Path, files: Iterable[Path]) -> None:
    """Remove Parquet files of tasks that ran twice, whose other result counts."""
    kept = set(files)
    for path in work.glob("topic=*/date=*/*.parquet"):
        if path not in kept:
            disk.remove(path)


def _unfinished(folder: ExportFolder) -> list[int]:
    """The numbers of the runs that left anything."""
    found = (_RUN_FILE.fullmatch(item.name) for item in folder.records.iterdir())
    return sorted({int(match[1] or match[2]) for match in found if match})


def _move_in(folder: ExportFolder, manifest: Manifest) -> None:
    work = folder.work_path(manifest.number)
    for file in manifest.added:
        disk.move(work / file.path, folder.path / file.path)
    disk.sync_folders(folder.path, [folder.path / file.path for file in manifest.added])


def _withdraw(folder: ExportFolder, manifest: Manifest) -> None:
    counted = folder.read_state().files
    for file in manifest.added:
        if not manifest.swapped and file.path not in counted:
            disk.remove(folder.path / file.path)
    clean(folder, manifest.number)

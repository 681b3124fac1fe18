"""An export in an object store, where nothing can be renamed or locked, and the manifest alone says what counts.

Below the URL are the objects of ``_gantrymq/`` under the names that they have in a folder, and the data files, each
under its final name, which has the id of its run and a random part: no writer replaces the file of another. The order
of a run: create ``plan-N.json``, upload files, write the result of each task (``work-N-ID/``), check the footers,
create ``manifest-N.json``. Both creations are conditional writes, so of several writers one publishes number N.

Any of them may be alive, because no store says so. Therefore nothing of a run with number N is deleted before
manifest N is published: after that, no other run of number N can be. A plan that is dropped leaves
``plan-dropped-N-ID.json``, so that the files of ID are deleted once N is published. A compaction uploads its files,
then publishes them with the next number that is free. Before that it creates ``plan-compact-N-ID.json``, so that the
files that it replaces are deleted also if it is killed.

No manifest is deleted, because its name keeps a run of the same number from publishing. So that runs do not list all of
them, ``manifest-complete.json`` has the number of a complete one, and other records have names that come after theirs.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

import attrs

from gantrymq.spark.errors import ExportDamaged, ExportFenced, FolderInUse, SparkError
from gantrymq.spark.exports.checking import check_file, check_results
from gantrymq.spark.exports.folder import COMPLETE_EVERY, MANIFEST, OURS, RECORDS, result_name, tasks_in
from gantrymq.spark.exports.manifest import (
    DataFile,
    Kind,
    Manifest,
    Plan,
    Span,
    State,
    Written,
    compaction_manifest,
    decode,
    encode,
    folder_of,
    run_manifest,
    sum_up,
    topic_folder,
)
from gantrymq.spark.exports.object_store import Objects
from gantrymq.spark.exports.parquet_output import ObjectOutput

UNREFERENCED_AGE = timedelta(days=1)
"""A file that no manifest names and that is older belongs to no run that is alive."""
_OF_RUN = re.compile(r"plan-(?:(?:dropped|compact)-)?(\d{8,})(?:-[0-9a-f]{12})?\.json|work-(\d{8,})-[0-9a-f]{12}")
_PROBE = f"{RECORDS}/probe-"
_COMPLETE = f"{RECORDS}/manifest-complete.json"
_ID_LENGTH = 12


@attrs.frozen
class Marker:
    """A run that may have left files: its id, and the topics in whose folders they are."""

    id: str
    topics: list[str]


@attrs.frozen
class Complete:
    """The number of a complete manifest: the last one, or an earlier one if a writer was slow or was killed."""

    number: int


class ObjectDestination:
    """The :class:`~gantrymq.spark.exports.destination.Destination` for an object store."""

    def __init__(self, objects: Objects) -> None:
        self.name: Path | str = objects.url
        self._objects = objects
        self._may_have_left = False
        """Whether files may be left in other folders than those of the manifest."""
        self._complete: int | None = None

    def check(self) -> None:
        names = self._objects.names("")
        foreign = [name for name in names if not OURS.fullmatch(name)]
        if foreign:
            raise FolderInUse(f"{self.name} has {foreign[0]!r}, which no export wrote: name another place")
        if names and RECORDS not in names:
            raise FolderInUse(f"{self.name} has {names[0]!r} but no {RECORDS}, so no export wrote it")

    def exists(self) -> bool:
        return any(MANIFEST.fullmatch(name) or _OF_RUN.fullmatch(name) for name in self._record_names())

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Make sure that the store has conditional writes, on which exactly-once depends. It cannot be locked."""
        if not self._last_number():
            self._check_conditional_writes()
        yield

    def _check_conditional_writes(self) -> None:
        name = f"{_PROBE}{uuid4()}"
        self._objects.create(name, b"1")
        try:
            self._objects.create(name, b"2")
        except FileExistsError:
            return
        finally:
            self._objects.delete([name])
        raise SparkError(
            f"{self.name}: the store replaces an object that must not exist (it ignores If-None-Match), so two exports "
            "could publish the same messages: update the store, or export to a folder or a Delta table"
        )

    def finish(self) -> None:
        """Delete what runs left whose number is published."""
        last = self._last_number()
        for number in sorted({number for number, _ in self._leftovers() if number <= last}):
            self._may_have_left = True
            self._clean(self._read_manifest(number))

    def read_state(self) -> State:
        return self._state_at(self._last_number())

    def _state_at(self, number: int) -> State:
        """The state as of manifest ``number``."""
        numbers = range(1, number + 1)
        return sum_up(numbers, self._read_manifest, lambda missing: f"{self.name}/{_manifest_name(missing)}")

    def read_plan(self, number: int) -> Plan | None:
        plan = self._read(_plan_name(number), Plan)
        self._may_have_left = self._may_have_left or plan is not None
        return plan

    def create_plan(self, plan: Plan) -> None:
        try:
            self._objects.create(_plan_name(plan.number), encode(plan))
        except FileExistsError:
            raise ExportFenced(f"another writer uses {self.name}: run the export again") from None

    def discard_plan(self, plan: Plan) -> bool:
        marker = encode(Marker(plan.id, _topics_of(plan)))
        self._objects.write(f"{RECORDS}/plan-dropped-{plan.number:08}-{_short(plan.id)}.json", marker)
        self._objects.delete([_plan_name(plan.number)])
        return True

    def finished(self, plan: Plan) -> set[int]:
        return tasks_in(self._objects.names(_work_name(plan.number, plan.id)))

    def read_result(self, plan: Plan, task: int) -> Written | None:
        return self._read(f"{_work_name(plan.number, plan.id)}/{result_name(task)}", Written)

    def write_result(self, plan: Plan, task: int, written: Written) -> None:
        self._objects.write(f"{_work_name(plan.number, plan.id)}/{result_name(task)}", encode(written))

    def suffix(self, number: int, run: str, kind: str) -> str:
        return f"-{kind}{number}-{_short(run)}-{uuid4().hex[:_ID_LENGTH]}"

    def open_output(self, number: int, span: Span) -> ObjectOutput:
        return ObjectOutput(self._objects.upload, span)

    def open_file(self, file: DataFile) -> BinaryIO:
        try:
            return self._objects.open(file.path)
        except FileNotFoundError:
            raise ExportDamaged(f"{self.locate(file)} is missing") from None

    def locate(self, file: DataFile) -> str:
        return f"{self.name}/{file.path}"

    def staged(self, number: int) -> Manifest | None:
        return None  # a manifest is certain when it is published

    def stage(self, plan: Plan) -> Manifest:
        try:
            results = [self.read_result(plan, index) for index in range(len(plan.tasks))]
            written = [result for result in results if result is not None]
            if len(written) < len(results):
                raise SparkError(f"{len(results) - len(written)} of {len(results)} tasks left no result: run it again")
            check_results(plan, written)
            manifest = run_manifest(plan, written, time.time(), [])
            self._check(manifest.added)
        except SparkError:
            # The run that published this number deletes what others have written for it.
            self._check_fence(Marker(plan.id, _topics_of(plan)), plan.number)
            raise
        return manifest

    def place(self, manifest: Manifest) -> None:
        try:
            self._publish(manifest)
        except FileExistsError:
            self._check_fence(Marker(manifest.plan, _topics_in(manifest)), manifest.number)
            raise
        self._clean(manifest)

    def publish_compaction(self, state: State, run: str, merged: Sequence[DataFile], removed: Sequence[str]) -> None:
        """Runs that publish meanwhile only add files, so the compaction takes the next number that is free."""
        self._check(merged)
        while True:
            manifest = compaction_manifest(state, run, time.time(), merged, removed, [])
            marker = f"{RECORDS}/plan-compact-{manifest.number:08}-{_short(run)}.json"
            self._objects.write(marker, encode(Marker(run, [])))
            try:
                self._publish(manifest)
                break
            except FileExistsError:
                self._objects.delete([marker])
                state = self.read_state()
                if state.number < manifest.number:
                    raise
            if not state.files.keys() >= set(removed):
                self._objects.delete([file.path for file in merged])
                raise ExportFenced(
                    f"another writer has replaced files of {self.name} that this compaction merged: compact again"
                )
        self._clean(manifest)

    def _publish(self, manifest: Manifest) -> None:
        """Publish by a conditional write. Raises FileExistsError if another writer has published that number."""
        published = manifest
        if manifest.number % COMPLETE_EVERY == 0:
            state = self._state_at(manifest.number - 1)
            state.apply(manifest)
            published = state.as_manifest(manifest)
        self._objects.create(_manifest_name(manifest.number), encode(published))
        if published.complete:
            self._objects.write(_COMPLETE, encode(Complete(manifest.number)))

    def remove_unreferenced(self) -> None:
        """Delete data files that no manifest names, and probes, that are too old for a run that is alive."""
        named = self.read_state().files
        oldest = datetime.now(UTC) - UNREFERENCED_AGE
        for folder in self._objects.names(""):
            found = [name for name, modified in self._objects.walk(folder) if modified < oldest]
            if folder == RECORDS:
                self._objects.delete([name for name in found if name.startswith(_PROBE)])
            else:
                self._objects.delete([name for name in found if name not in named])

    def _check(self, files: Sequence[DataFile]) -> None:
        for file in files:
            with self.open_file(file) as source:
                check_file(source, file, self.locate(file))

    def _check_fence(self, marker: Marker, number: int) -> None:
        """If another run has published ``number``: delete what this one wrote, and raise :class:`ExportFenced`."""
        published = self._read(_manifest_name(number), Manifest)
        if published is None:
            return
        self._delete_files(marker, {file.path for file in published.added})
        self._may_have_left = True
        self._clean(published)
        raise ExportFenced(
            f"another writer has published manifest {number} of {self.name}: nothing of this run counts; run the "
            "export again"
        )

    def _clean(self, manifest: Manifest) -> None:
        """Delete what is left of a published number; the records go last, so that a stop is noticed."""
        number = manifest.number
        counted = {file.path for file in manifest.added}
        if manifest.complete or manifest.removed or manifest.replaced:  # a complete one does not name what is gone
            before, after = self._state_at(number - 1).files, self._state_at(number).files
            self._objects.delete([path for path in before if path not in after])
        for folder in sorted({folder_of(file) for file in manifest.added}):  # tasks that ran twice wrote the same days
            self._delete_in(folder, manifest.plan, counted)
        left = [name for found, name in self._leftovers() if found == number]
        for name in left:
            marker = self._read(name, Marker) if name.endswith(".json") else None  # a plan has what markers have
            if marker is not None and (self._may_have_left or marker.id != manifest.plan):
                self._delete_files(marker, counted)
        for name in sorted(left, key=lambda name: name.endswith(".json")):
            is_record = name.endswith(".json")
            self._objects.delete([name] if is_record else [path for path, _ in self._objects.walk(name)])

    def _delete_files(self, marker: Marker, counted: set[str]) -> None:
        for topic in marker.topics:
            self._delete_in(topic_folder(topic), marker.id, counted)

    def _delete_in(self, folder: str, run: str, counted: set[str]) -> None:
        part = f"-{_short(run)}-"
        found = [path for path, _ in self._objects.walk(folder) if part in path.rpartition("/")[2]]
        self._objects.delete([path for path in found if path not in counted])

    def _leftovers(self) -> list[tuple[int, str]]:
        """The number and the name of every record of a run that has not been cleaned."""
        found = ((name, _OF_RUN.fullmatch(name)) for name in self._record_names())
        return [(int(match[1] or match[2]), f"{RECORDS}/{name}") for name, match in found if match]

    def _last_number(self) -> int:
        found = (MANIFEST.fullmatch(name) for name in self._record_names())
        return max((int(match[1]) for match in found if match), default=0)

    def _record_names(self) -> list[str]:
        """The names of the records, without manifests before the last complete one: there may be millions of them."""
        if self._complete is None:
            found = self._read(_COMPLETE, Complete)
            self._complete = 0 if found is None else found.number
        names = self._objects.names_after(RECORDS, f"manifest-{self._complete:08}")
        if self._complete and not any(map(MANIFEST.fullmatch, names)):
            return self._objects.names(RECORDS)  # somebody has deleted manifests
        return names

    def _read_manifest(self, number: int) -> Manifest:
        manifest = self._read(_manifest_name(number), Manifest)
        if manifest is None:
            raise ExportDamaged(f"{self.name}/{_manifest_name(number)} is missing: restore it from a copy")
        return manifest

    def _read(self, name: str, kind: type[Kind]) -> Kind | None:
        data = self._objects.read(name)
        return None if data is None else decode(data, kind, f"{self.name}/{name}")


def _manifest_name(number: int) -> str:
    return f"{RECORDS}/manifest-{number:08}.json"


def _plan_name(number: int) -> str:
    return f"{RECORDS}/plan-{number:08}.json"


def _work_name(number: int, run: str) -> str:
    return f"{RECORDS}/work-{number:08}-{_short(run)}"


def _short(run: str) -> str:
    """What names of objects have of an id: its last twelve digits, which are random."""
    return run[-_ID_LENGTH:]


def _topics_of(plan: Plan) -> list[str]:
    return sorted({span.topic for span in plan.tasks})


def _topics_in(manifest: Manifest) -> list[str]:
    return sorted({file.span.topic for file in manifest.added})

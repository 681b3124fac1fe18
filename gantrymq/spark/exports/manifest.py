"""The records of an export: plans before it, manifests after it, and the state that manifests add up to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar
from urllib.parse import quote

import attrs
import msgspec

from gantrymq.spark.errors import ExportDamaged

FORMAT = 1
"""The version of these records and of the layout of the folder."""
NULL_DATE = "__HIVE_DEFAULT_PARTITION__"
"""The name that Hive, Spark and Arrow give to a partition whose value is null."""

QueueKey = tuple[str, str, int]
"""Topic, broker name, queue id."""
Kind = TypeVar("Kind")


@attrs.frozen
class Span:
    """The offsets ``first <= offset < end`` of one queue."""

    topic: str
    broker: str
    queue_id: int
    first: int
    end: int

    @property
    def key(self) -> QueueKey:
        """The queue."""
        return self.topic, self.broker, self.queue_id

    @property
    def rows(self) -> int:
        """How many offsets it has."""
        return self.end - self.first


@attrs.frozen
class DataFile:
    """A Parquet file with every offset of ``span``, at ``path`` within the folder; ``bytes`` is its size."""

    path: str
    span: Span
    bytes: int


@attrs.frozen
class Written:
    """What one task wrote: files, and the spans whose messages are no longer on the broker."""

    files: list[DataFile]
    lost: list[Span]


@attrs.frozen
class Plan:
    """What a run writes, fixed before it reads anything. ``number`` is that of the manifest that the run publishes.

    ``tasks`` are spans that are read one by one. With ``replaced`` the run removes everything that the export has of
    these topics. ``ends`` is where each queue continues afterwards; ``lost`` was gone when the plan was made.
    """

    format: int
    number: int
    id: str
    topics: list[str]
    tasks: list[Span]
    ends: list[Span]
    lost: list[Span]
    replaced: list[str]
    file_rows: int
    file_bytes: int
    body_max_bytes: int


@attrs.frozen
class Manifest:
    """What a run changed. With ``complete`` it is everything, and earlier manifests need not be read.

    ``swapped`` are folders of the export whose new content is in the work folder until it is exchanged.
    """

    format: int
    number: int
    plan: str
    created: float
    complete: bool
    added: list[DataFile]
    removed: list[str]
    lost: list[Span]
    ends: list[Span]
    replaced: list[str]
    swapped: list[str]


@attrs.define
class State:
    """What an export has: its files by path, where each queue continues, and what was lost before it was read."""

    number: int = 0
    created: float = 0.0
    plan: str = ""
    files: dict[str, DataFile] = attrs.field(factory=dict)
    ends: dict[QueueKey, int] = attrs.field(factory=dict)
    lost: list[Span] = attrs.field(factory=list)

    def apply(self, manifest: Manifest) -> None:
        """Add what ``manifest`` changed."""
        gone = set(manifest.replaced)
        if manifest.complete:
            self.files, self.ends, self.lost = {}, {}, []
        for path in [path for path, file in self.files.items() if file.span.topic in gone]:
            del self.files[path]
        self.ends = {key: end for key, end in self.ends.items() if key[0] not in gone}
        self.lost = [span for span in self.lost if span.topic not in gone]
        for path in manifest.removed:
            self.files.pop(path, None)
        self.files |= {file.path: file for file in manifest.added}
        self.ends |= {span.key: span.end for span in manifest.ends}
        self.lost += manifest.lost
        self.number, self.created, self.plan = manifest.number, manifest.created, manifest.plan

    def as_manifest(self, changed: Manifest) -> Manifest:
        """``changed`` in the form that needs no earlier manifest; this state has it already."""
        ends = [Span(*key, first=0, end=end) for key, end in sorted(self.ends.items())]
        return attrs.evolve(
            changed,
            complete=True,
            added=list(self.files.values()),
            removed=[],
            lost=self.lost,
            ends=ends,
            replaced=[],
            swapped=[],
        )


def run_manifest(plan: Plan, written: Iterable[Written], created: float, swapped: list[str]) -> Manifest:
    """What the run of ``plan`` changes, with what its tasks wrote."""
    results = list(written)
    files = [file for result in results for file in result.files]
    lost = [*plan.lost, *(span for result in results for span in result.lost)]
    return Manifest(
        FORMAT, plan.number, plan.id, created, False, files, [], lost, plan.ends, plan.replaced, swapped
    )  # fmt: skip


def compaction_manifest(
    state: State, run: str, created: float, merged: Iterable[DataFile], removed: Iterable[str], swapped: list[str]
) -> Manifest:
    """What a compaction of ``state`` changes."""
    return Manifest(
        FORMAT, state.number + 1, run, created, False, list(merged), sorted(removed), [], [], [], swapped
    )  # fmt: skip


def sum_up(numbers: Sequence[int], read: Callable[[int], Manifest], name: Callable[[int], object]) -> State:
    """What an export has by its manifests ``numbers``, ascending. Raises :class:`ExportDamaged` if one is missing."""
    manifests: list[Manifest] = []
    for number in reversed(numbers):
        if manifests and number != manifests[-1].number - 1:
            break
        manifests.append(read(number))
        if manifests[-1].complete:
            break
    if manifests and not manifests[-1].complete and manifests[-1].number != 1:
        raise ExportDamaged(f"{name(manifests[-1].number - 1)} is missing: restore it from a copy")
    state = State()
    for manifest in reversed(manifests):
        state.apply(manifest)
    return state


def encode(record: object) -> bytes:
    """The record as JSON."""
    return msgspec.json.encode(record)


def decode(data: bytes, kind: type[Kind], source: object) -> Kind:
    """A record from JSON. Raises :class:`~gantrymq.spark.errors.ExportDamaged`, which names ``source``."""
    try:
        version = msgspec.json.decode(data, type=dict[str, msgspec.Raw]).get("format")
        if version is not None and int(bytes(version)) > FORMAT:
            raise ExportDamaged(f"{source} was written by a later version of gantrymq: use that version")
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ExportDamaged(f"{source} cannot be read: {error}") from None


def file_path(span: Span, date: str, suffix: str = "") -> str:
    """Where a file is within the folder: ``topic=<topic>/date=<date>/<broker>-<queue>-<first>-<last>.parquet``."""
    name = f"{_escape(span.broker)}-{span.queue_id}-{span.first}-{span.end - 1}{suffix}.parquet"
    return f"{topic_folder(span.topic)}/date={date}/{name}"


def topic_folder(topic: str) -> str:
    """The name of a topic's folder."""
    return f"topic={_escape(topic)}"


def folder_of(file: DataFile) -> str:
    """The folder of a file, within the export."""
    return file.path.rpartition("/")[0]


def count(spans: Iterable[Span]) -> int:
    """How many offsets the spans have."""
    return sum(span.rows for span in spans)


def _escape(name: str) -> str:
    escaped = quote(name, safe="")
    return f"%{ord(escaped[0]):02X}{escaped[1:]}" if escaped[:1] in (".", "_") else escaped  # readers skip such names

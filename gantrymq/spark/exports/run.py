"""A run of an export: finish what an earlier run left, plan what is new, write, check, put in place, publish."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from gantrymq.spark.errors import SparkError, SparkMissing, Unreachable, WrongOption
from gantrymq.spark.exports.destination import Destination
from gantrymq.spark.exports.destinations import find_destination
from gantrymq.spark.exports.engines import Engine, find_engine
from gantrymq.spark.exports.manifest import DataFile, Plan, Span, count
from gantrymq.spark.exports.measuring import ExportProgress, Measure, Progress
from gantrymq.spark.exports.planning import FILE_BYTES, FILE_ROWS, Sizes, make_plan
from gantrymq.spark.exports.table_formats import TABLE_FORMATS, find_table
from gantrymq.spark.exports.tables import write_table
from gantrymq.spark.exports.writing import Task, make_task
from gantrymq.spark.local import arrow_status
from gantrymq.spark.options import SourceOptions, read_options
from gantrymq.spark.ranges import find_queues
from gantrymq.spark.wire import Queue, Wire, connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


NOT_FOR_EXPORTS = ("minPartitions", "maxRecordsPerPartition", "maxBytesPerPartition", "storeTimeTolerance")
"""Options of the data source about its own partitions."""


@attrs.frozen
class ExportResult:
    """What a run wrote: messages, bytes and number of Parquet files, and how long it took.

    ``folder`` may be the URL or the name of a table. ``number`` is the export's last manifest, ``lost`` counts messages
    that were gone before they could be exported, ``resumed`` is whether the run finished the plan of an earlier one,
    which is counted here.
    """

    rows: int
    bytes: int
    files: int
    seconds: float
    folder: Path | str
    number: int = 0
    lost: int = 0
    resumed: bool = False


def export(
    topic: str,
    to: str | Path,
    nameserver: str = "127.0.0.1:9876",
    *,
    starting_offsets: str = "earliest",
    ending_offsets: str = "latest",
    fail_on_data_loss: bool = True,
    overwrite: bool = False,
    discard_plan: bool = False,
    engine: str | None = None,
    file_format: str = "parquet",
    file_rows: int = FILE_ROWS,
    file_bytes: int = FILE_BYTES,
    options: Mapping[str, str] | None = None,
    spark: SparkSession | None = None,
    progress: Progress | None = None,
) -> ExportResult:
    """Write what is new of ``topic`` (or a comma list) since the last run into ``to``, each message exactly once.

    The first run writes everything, into a folder that is new or empty. What is written is settled at the start:
    messages that come later are for the next run. A run that fails or is killed is finished by the next one, which
    then writes what is new; with ``discard_plan`` it starts anew instead. With ``overwrite``, what the export has of
    these topics is replaced, for readers of manifests in one step.

    ``engine`` is ``spark`` (the default; ``spark`` is a session to use, without one a local one is started and
    stopped), or ``local``: in this process, without Spark. With ``file_format`` ``delta`` or ``iceberg``, ``to`` names
    a table (a folder or URL; ``catalog.namespace.table``) that its own library writes, in this process; overwrite and
    discard_plan are not for tables. A file has at most ``file_rows`` messages and about ``file_bytes`` of
    bodies. Offsets are those of the data source; they count for queues that the export does not have yet.
    ``options`` are further options of the data source, such as ``accessKey``, ``retrySeconds`` and ``badBodies``; those
    about its partitions are refused. ``progress`` is called with
    an :class:`ExportProgress` now and then.

    Raises :class:`SparkMissing`, :class:`FolderInUse`, :class:`ExportDamaged`, :class:`ExportFenced` and what reading
    raises, all of them :class:`SparkError`; what can be checked is checked before the folder is made.
    """
    given = {"nameserver": nameserver, "topic": topic, "failOnDataLoss": str(fail_on_data_loss).lower()}
    if starting_offsets != "earliest":  # the default; times in the options would be in its place
        given["startingOffsets"] = starting_offsets
    if ending_offsets != "latest":
        given["endingOffsets"] = ending_offsets
    for name in options or {}:
        if name.lower() in map(str.lower, NOT_FOR_EXPORTS):
            raise WrongOption(f"{name} is not for exports, whose tasks are bounded by file_rows and file_bytes")
    settings = read_options(given | dict(options or {}))
    if settings.subscription is not None or not settings.include_properties:
        raise WrongOption("subExpression and includeProperties are not for exports, which have complete queues")
    sizes = Sizes(file_rows, file_bytes)
    if file_format in TABLE_FORMATS:
        if engine not in (None, "local") or overwrite or discard_plan:
            raise WrongOption(
                f"{file_format} tables are written with the engine local, and neither overwrite nor discardPlan are "
                "for them: delete the table, or name another one"
            )
        return export_table(settings, file_format, to, sizes, progress=progress)
    if file_format != "parquet":
        raise WrongOption(f"the format is parquet, {' or '.join(TABLE_FORMATS)}, not {file_format!r}")
    if settings.topic_pattern is not None:  # a plan has the names of its topics
        raise WrongOption("topicPattern is not for exports to Parquet: name the topics, separated by commas")
    run_engine = find_engine(engine or "spark", spark)
    return export_with(
        settings, to, run_engine, sizes, overwrite=overwrite, discard_plan=discard_plan, progress=progress
    )


def export_table(
    options: SourceOptions,
    file_format: str,
    to: str | Path,
    sizes: Sizes,
    *,
    known: Sequence[Queue] = (),
    progress: Progress | None = None,
) -> ExportResult:
    """As :func:`export`, into a table. ``known`` are all queues of some topics, for which no nameserver is asked."""
    started = time.monotonic()
    status = arrow_status()
    if not status:
        raise SparkMissing(status.reason)
    table = find_table(file_format, to)
    run = write_table(options, table, sizes, known, progress)
    return ExportResult(run.rows, run.bytes, run.files, time.monotonic() - started, table.name, run.number, run.lost)


def export_with(
    options: SourceOptions,
    to: str | Path,
    engine: Engine,
    sizes: Sizes,
    *,
    known: Sequence[Queue] = (),
    overwrite: bool = False,
    discard_plan: bool = False,
    progress: Progress | None = None,
) -> ExportResult:
    """As :func:`export`. ``known`` are all queues of some topics, for which no nameserver is asked."""
    destination = find_destination(to)
    destination.check()
    run = _Run(destination, options, engine, sizes, progress)
    with _clear_errors(destination), connect(options, known) as wire:
        if not destination.exists():
            # What is wrong makes no folder.
            make_plan(run.options, destination.read_state(), wire, run.sizes, overwrite)
        with destination.lock():
            destination.finish()
            run.continue_plan(wire, discard_plan or overwrite)
            run.export_new(wire, overwrite)
    return run.result()


class _Run:
    """One call of :func:`export`; it sums up what its plans wrote."""

    def __init__(
        self, destination: Destination, options: SourceOptions, engine: Engine, sizes: Sizes, progress: Progress | None
    ) -> None:
        self.options, self.sizes = options, sizes
        self._destination, self._engine, self._progress = destination, engine, progress
        self._started = time.monotonic()
        self._resumed = False
        self._written: list[DataFile] = []
        self._lost: list[Span] = []

    def continue_plan(self, wire: Wire, discard: bool) -> None:
        """Finish the plan of a run that was stopped before it published, or drop it if that is still possible."""
        plan = self._destination.read_plan(self._destination.read_state().number + 1)
        if plan is None or (discard and self._destination.discard_plan(plan)):
            return
        self._resumed = True
        self._execute(plan, wire)

    def export_new(self, wire: Wire, overwrite: bool) -> None:
        """Plan and write what is new."""
        plan = make_plan(self.options, self._destination.read_state(), wire, self.sizes, overwrite)
        if plan is not None:
            self._destination.create_plan(plan)
            self._execute(plan, wire)

    def result(self) -> ExportResult:
        """The sum of all plans of this run."""
        files, number = self._written, self._destination.read_state().number
        return ExportResult(
            count(file.span for file in files), sum(file.bytes for file in files), len(files),
            time.monotonic() - self._started, self._destination.name, number, count(self._lost), self._resumed,
        )  # fmt: skip

    def _execute(self, plan: Plan, wire: Wire) -> None:
        manifest = self._destination.staged(plan.number)
        if manifest is None:
            self._write(plan, wire)
            manifest = self._destination.stage(plan)
        self._destination.place(manifest)
        self._written += manifest.added
        self._lost += manifest.lost

    def _write(self, plan: Plan, wire: Wire) -> None:
        queues = find_queues(SourceOptions(self.options.nameservers, tuple(plan.topics)), wire)
        tasks = self._tasks(plan, queues)
        progress = self._progress
        if progress is None:
            self._engine(tasks, None)
            return
        measure = Measure(self._destination, plan, wire, queues)
        last: ExportProgress | None = None

        def report(rows_begun: int) -> None:
            nonlocal last
            now = measure.look(rows_begun)
            if now != last:  # or a task that hangs would look like one that goes on
                progress(now)
            last = now

        report(0)
        self._engine(tasks, report)
        report(0)

    def _tasks(self, plan: Plan, queues: Sequence[Queue]) -> list[Task]:
        found = {(item.topic, item.broker, item.queue_id): item for item in queues}
        tasks: list[Task] = []
        finished = self._destination.finished(plan)
        for index, span in enumerate(plan.tasks):
            if index in finished:
                continue
            if span.key not in found:
                raise Unreachable(f"{span.topic} {span.broker} queue {span.queue_id} is planned, but no broker has it")
            tasks.append(make_task(self._destination.name, plan, index, found[span.key], self.options))
        return tasks


@contextmanager
def _clear_errors(destination: Destination) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SparkError(f"cannot write to {destination.name}: {error.strerror or error}") from None

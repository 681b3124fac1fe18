"""The program that the plugin ``exporter`` starts: it exports topics of one broker, and then ends.

The first line of stdin is a :class:`Job`. Then stdin stays open as long as the broker wants the run: at its end the
process exits at once. Each further line lets it go on after a report that ``waits``. Stdout gets one line for each
:class:`Report`. What a stop leaves is finished by the next run.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

import attrs
import msgspec

from gantrymq.exporter.job import Job, Report
from gantrymq.spark.errors import SparkError
from gantrymq.spark.exports.destination import Destination
from gantrymq.spark.exports.destinations import find_destination
from gantrymq.spark.exports.engines import Engine, find_engine
from gantrymq.spark.exports.manifest import Plan, QueueKey, State
from gantrymq.spark.exports.measuring import ExportProgress, Progress
from gantrymq.spark.exports.planning import Sizes
from gantrymq.spark.exports.run import ExportResult, export_table, export_with
from gantrymq.spark.exports.table_formats import TABLE_FORMATS, find_table
from gantrymq.spark.options import SourceOptions
from gantrymq.spark.security import read_security
from gantrymq.spark.wire import Queue

Export = Callable[[Job, SourceOptions, list[Queue], Callable[[Report], None]], Report]
"""Exports one topic, and returns what was exported of it."""
_AHEAD: Final = (
    "the export has offsets that the queues did not have when the broker started and gave to other messages since. The "
    "topic was deleted and created again, or the broker lost messages, such as by a restore: overwrite the export, or "
    "name another folder or table"
)


def main() -> None:
    """Run the job that stdin has."""
    output = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries and the JVM print is no report
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=Job)
    lines = threading.Semaphore(0)
    threading.Thread(target=_count_lines, args=(sys.stdin.fileno(), lines), daemon=True).start()
    if job.nice:
        os.nice(job.nice)

    def report(record: Report) -> None:
        output.write(msgspec.json.encode(record) + b"\n")
        output.flush()
        if record.waits:
            lines.acquire()

    run(job, report)


def run(job: Job, report: Callable[[Report], None]) -> None:
    """Export the topics of ``job`` one after another; a topic that fails does not keep the others from being exported.

    Raises :class:`SparkError` if nothing can be exported at all.
    """
    known = [
        Queue(topic, job.broker, queue_id, job.address)
        for topic, count in job.topics.items()
        for queue_id in range(count)
    ]
    security = read_security(job.security)
    export = _export_to_table if job.format in TABLE_FORMATS else _export_to_files(_find_engine(job))
    for topic in _in_order(job):
        options = SourceOptions(
            (), (topic,), fail_on_data_loss=not job.skip_lost, security=security, null_bad_bodies=job.null_bad_bodies
        )
        report(export(job, options, known, report))


def _export_to_files(engine: Engine) -> Export:
    def export(job: Job, options: SourceOptions, known: list[Queue], report: Callable[[Report], None]) -> Report:
        place = find_destination(job.to)

        def work(progress: Progress) -> ExportResult:
            discard = _is_obsolete(_read_plan(place), job, options, known)
            sizes = Sizes(job.file_rows, job.file_bytes)
            return export_with(options, job.to, engine, sizes, known=known, discard_plan=discard, progress=progress)

        return _export(job, options, work, lambda: _read_certain(place).ends, report)

    return export


def _export_to_table(job: Job, options: SourceOptions, known: list[Queue], report: Callable[[Report], None]) -> Report:
    def work(progress: Progress) -> ExportResult:
        sizes = Sizes(job.file_rows, job.file_bytes)
        return export_table(options, job.format, job.to, sizes, known=known, progress=progress)

    keys = [(queue.topic, queue.broker, queue.queue_id) for queue in known]
    return _export(job, options, work, lambda: find_table(job.format, job.to).read_state(keys).ends, report)


def _export(
    job: Job,
    options: SourceOptions,
    work: Callable[[Progress], ExportResult],
    read_ends: Callable[[], dict[QueueKey, int]],
    report: Callable[[Report], None],
) -> Report:
    (topic,) = options.topics
    ended = Report(topic, ended=True)
    last: Report | None = Report(topic)

    def take(now: ExportProgress) -> None:
        nonlocal last
        record = _as_report(topic, now)
        if record != last:  # with each message that arrives, a run that hangs would look like one that goes on
            report(record)
        last = record

    def find_ends() -> dict[int, int]:
        return {key[2]: end for key, end in read_ends().items() if key[:2] == (topic, job.broker)}

    try:
        ends = find_ends() if topic in job.ahead or topic in job.starts else {}
        if _is_ahead(job, topic, ends):
            return attrs.evolve(ended, error=_AHEAD, is_ahead=True, ends=ends)
        if job.compares_only:  # without ends, the folder may be on a file system that is not mounted yet
            return ended if ends else attrs.evolve(ended, error="the topic is not exported yet")
        report(Report(topic, waits=topic in job.starts))
        result = work(take)
        ended = attrs.evolve(
            ended, rows=result.rows, bytes=result.bytes, files=result.files, lost=result.lost, manifest=result.number
        )
    except SparkError as failure:
        ended = attrs.evolve(ended, error=str(failure))
    try:
        return attrs.evolve(ended, ends=find_ends())
    except SparkError as failure:
        return attrs.evolve(ended, error=ended.error or str(failure))


def _is_ahead(job: Job, topic: str, ends: Mapping[int, int]) -> bool:
    """Whether an export with these ``ends`` has offsets that the queues got a second time."""
    if topic in job.ahead:
        return bool(ends) and ends.items() <= job.ahead[topic].items()
    starts = job.starts.get(topic)
    return starts is not None and any(end > starts.get(queue_id, 0) for queue_id, end in ends.items())


def _as_report(topic: str, now: ExportProgress) -> Report:
    return Report(topic, now.tasks, now.tasks_total, rows=now.rows, rows_total=now.rows_total, bytes=now.bytes)


def _in_order(job: Job) -> list[str]:
    """The topics of ``job``: first the one that a stopped run has planned, whose plan the others would drop, and at the
    end the one whose export may end this process.

    A comparison leaves the planned one to the run that finishes or drops the plan, which may have lost messages.
    """
    plan = None
    if job.format not in TABLE_FORMATS:
        with suppress(SparkError):  # the export of each topic raises it again
            plan = _read_plan(find_destination(job.to))
    planned = set() if plan is None else set(plan.topics)
    topics = job.topics.keys() - planned if job.compares_only else job.topics
    return sorted(topics, key=lambda topic: (topic == job.last, topic not in planned))


def _read_certain(place: Destination) -> State:
    """What the export has, with what a stopped run is certain to publish."""
    place.check()
    state = place.read_state()
    manifest = place.staged(state.number + 1)
    if manifest is not None:
        state.apply(manifest)
    return state


def _read_plan(place: Destination) -> Plan | None:
    place.check()
    return place.read_plan(place.read_state().number + 1)


def _is_obsolete(plan: Plan | None, job: Job, options: SourceOptions, known: list[Queue]) -> bool:
    """Whether ``plan`` has what this export does not have: other topics, queues that are no longer there, or offsets
    that the queues got a second time.

    To finish it could fail each time, and would so keep this topic from being exported, or publish lost messages.
    """
    if plan is None:
        return False
    (topic,) = options.topics
    keys = {(queue.topic, queue.broker, queue.queue_id) for queue in known if queue.topic == topic}
    ends = {span.queue_id: span.end for span in plan.ends if span.topic == topic}
    return any(span.key not in keys for span in plan.tasks) or _is_ahead(job, topic, ends)


def _find_engine(job: Job) -> Engine:
    if job.engine != "spark":
        return find_engine(job.engine, None)
    from gantrymq.spark.local import session

    return find_engine("spark", session("gantrymq-exporter", cores=job.cores, memory=job.memory, log_level="off"))


def _count_lines(descriptor: int, lines: threading.Semaphore) -> None:
    """Release ``lines`` for each line, all of which are empty, and exit at the end."""
    while os.read(descriptor, 1):  # without a buffer, whose lock would end a process that exits with SIGABRT
        lines.release()
    os._exit(1)


if __name__ == "__main__":
    try:
        main()
    except SparkError as error:
        sys.exit(str(error))

"""The command ``gantrymq export``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs
import rich_click as click

from gantrymq.kernel.env import environment

if TYPE_CHECKING:
    from gantrymq.spark import ExportResult, ExportStatus
    from gantrymq.spark.job import Progress


class SparkNotHere(click.ClickException):
    """A requirement of Spark is not installed."""

    exit_code = 2


NAMESERVER = click.option(
    "--nameserver",
    default="127.0.0.1:9876",
    envvar="GANTRYMQ_NAMESERVER",
    show_default=True,
    show_envvar=True,
    metavar="HOST:PORT",
    help="One, or several with ;.",
)


BROKER = click.option(
    "--broker",
    default="127.0.0.1:10911",
    show_default=True,
    metavar="HOST:PORT",
    help="The broker whose plugin `exporter` is meant.",
)


@click.group(invoke_without_command=True, subcommand_metavar="[status | compact | run-now | pause | resume]")
@click.option("--topic", metavar="TOPIC", help="Required. The topic, or several with commas between.")
@click.option("--to", "folder", metavar="DIR", help="Required. The folder of the export; the first run makes it.")
@NAMESERVER
@click.option("--format", "file_format", type=click.Choice(["parquet"]), default="parquet", show_default=True)
@click.option(
    "--starting-offsets",
    default="earliest",
    show_default=True,
    metavar="OFFSETS",
    help='earliest, or JSON: {"topic": {"broker-a": {"0": 23}}}; for queues that the export does not have yet.',
)
@click.option(
    "--ending-offsets",
    default="latest",
    show_default=True,
    metavar="OFFSETS",
    help="latest, or JSON of the same form; the message at the ending offset is not exported.",
)
@click.option("--skip-lost", is_flag=True, help="Export what is left when wanted messages are no longer there.")
@click.option("--overwrite", is_flag=True, help="Replace what the export has of these topics.")
@click.option("--discard-plan", is_flag=True, help="Drop what a stopped run has not published instead of finishing it.")
@click.option(
    "--engine",
    type=click.Choice(["spark", "local"]),
    default="spark",
    show_default=True,
    help="local runs in this process, without Spark and Java.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_context
def export(
    context: click.Context,
    topic: str | None,
    folder: str | None,
    nameserver: str,
    file_format: str,
    starting_offsets: str,
    ending_offsets: str,
    skip_lost: bool,
    overwrite: bool,
    discard_plan: bool,
    engine: str,
    as_json: bool,
) -> None:
    """Write the messages of a topic that are new since the last run to Parquet files."""
    if context.invoked_subcommand is not None:
        return
    if topic is None or folder is None:
        raise click.UsageError(f"Missing option '{'--topic' if topic is None else '--to'}'.")
    from gantrymq import spark

    status = spark.spark_status()
    if engine == "spark" and not status:
        raise SparkNotHere(f"the export runs in Spark, which cannot start here: {status.reason}")
    with _progress("exporting", engine == "spark") as progress:
        result = spark.export(
            topic,
            folder,
            nameserver,
            starting_offsets=starting_offsets,
            ending_offsets=ending_offsets,
            fail_on_data_loss=not skip_lost,
            overwrite=overwrite,
            discard_plan=discard_plan,
            engine=engine,
            options=security_options(),
            progress=progress,
        )
    click.echo(_as_json(topic, file_format, result) if as_json else _as_line(topic, result))


@export.command("status")
@click.argument("folder", metavar="[DIR]", required=False)
@click.option("--nameserver", metavar="HOST:PORT", help="Ask the brokers for the lag, too.")
@click.option("--broker", metavar="HOST:PORT", help="Instead of DIR: ask this broker's plugin `exporter`.")
@click.option("--json", "as_json", is_flag=True, help="Print the status as JSON.")
def show_status(folder: str | None, nameserver: str | None, broker: str | None, as_json: bool) -> None:
    """Show what an export has, queue by queue, and whether a run was stopped; or what a broker's exporter does."""
    from gantrymq import spark

    if (folder is None) == (broker is None):
        raise click.UsageError("Give either DIR, the folder of an export, or --broker.")
    if broker is not None:
        _show_exporter(broker, "status", as_json)
        return
    assert folder is not None
    status = spark.export_status(folder, nameserver, security_options())
    if as_json:
        click.echo(json.dumps(attrs.asdict(status) | {"folder": str(status.folder)}))
        return
    for line in _status_lines(status):
        click.echo(line)


@export.command("run-now")
@BROKER
@click.option("--json", "as_json", is_flag=True, help="Print the exporter's status as JSON.")
def run_now(broker: str, as_json: bool) -> None:
    """Let a broker's exporter start a run now, also while it is paused. The command does not wait for its end."""
    _show_exporter(broker, "run", as_json)


@export.command("pause")
@BROKER
@click.option("--json", "as_json", is_flag=True, help="Print the exporter's status as JSON.")
def pause(broker: str, as_json: bool) -> None:
    """Let a broker's exporter start no further run until `export resume`, also after a restart.

    Log files with messages that are not exported yet are still kept, within `hold_bytes` and `hold_age`.
    """
    _show_exporter(broker, "pause", as_json)


@export.command("resume")
@BROKER
@click.option("--json", "as_json", is_flag=True, help="Print the exporter's status as JSON.")
def resume(broker: str, as_json: bool) -> None:
    """End a pause."""
    _show_exporter(broker, "resume", as_json)


def security_options() -> dict[str, str]:
    """The options of the data source that the variables ``GANTRYMQ_ACCESS_KEY`` and its like set."""
    from gantrymq.spark.security import options_of

    return options_of(environment)


def _show_exporter(broker: str, action: str, as_json: bool) -> None:
    from gantrymq.plugins.spark.exporter_status import ask_exporter, status_lines

    status = ask_exporter(broker, action, security_options())
    if as_json:
        click.echo(json.dumps(status))
        return
    for line in status_lines(status):
        click.echo(line)


@export.command("compact")
@click.argument("folder", metavar="DIR")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def compact(folder: str, as_json: bool) -> None:
    """Merge small files of an export; readers of manifests see the old or the new ones."""
    from gantrymq import spark

    with _progress("compacting") as progress:
        result = spark.compact_export(folder, progress=progress)
    if as_json:
        click.echo(json.dumps(attrs.asdict(result)))
    else:
        click.echo(f"{result.before} files became {result.after}: {folder}, {result.seconds:.1f} s")


def _status_lines(status: ExportStatus) -> Iterator[str]:
    age = "no run has published" if status.age is None else f"manifest {status.number}, {status.age:,.0f} s old"
    yield f"{status.folder}: {age}"
    for queue in status.queues:
        lag = "" if queue.lag is None else f", lag {queue.lag:,}"
        lost = f", {queue.lost:,} lost" if queue.lost else ""
        yield (
            f"{queue.topic} {queue.broker} queue {queue.queue_id}: {queue.rows:,} messages in {queue.files} files, "
            f"{queue.bytes:,} bytes, continues at {queue.next_offset}{lag}{lost}"
        )
    if status.unfinished:
        yield "a run is going on or was stopped: the next run finishes it"


def _as_line(topic: str, result: ExportResult) -> str:
    rate = result.rows / max(result.seconds, 0.001)
    lost = f", {result.lost:,} messages were no longer there" if result.lost else ""
    return (
        f"{result.rows:,} messages of {topic} in {result.files} Parquet files, {result.bytes:,} bytes, "
        f"{result.seconds:.1f} s ({rate:,.0f} a second): {result.folder}{lost}"
    )


def _as_json(topic: str, file_format: str, result: ExportResult) -> str:
    return json.dumps(
        {
            "topic": topic,
            "format": file_format,
            "rows": result.rows,
            "bytes": result.bytes,
            "files": result.files,
            "seconds": round(result.seconds, 3),
            "folder": str(result.folder),
            "manifest": result.number,
            "lost": result.lost,
            "resumed": result.resumed,
        }
    )


@contextmanager
def _progress(work: str, in_spark: bool = False) -> Iterator[Progress | None]:
    """A progress bar on stderr if that is a terminal, one line otherwise; stdout has only the result."""
    if not sys.stderr.isatty():
        click.echo(f"{work} with Spark" if in_spark else work, err=True)
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("tasks"))
    with Bar(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting Spark" if in_spark else work, total=None)

        def show(done: int, total: int) -> None:
            bar.update(task, description=work, completed=done, total=total)

        yield show

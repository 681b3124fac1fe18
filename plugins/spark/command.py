"""The command ``gantrymq export``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import attrs
import rich_click as click
import trio
from click.core import ParameterSource

from gantrymq.cli.connecting import context_option, nameserver_option, optional_nameserver_option, plain_settings
from gantrymq.kernel.config.fields import parse_duration
from gantrymq.remoting.tls import UNVERIFIED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gantrymq.spark import ExportProgress, ExportResult, ExportStatus
    from gantrymq.spark.exports.measuring import Progress


EVERY_LEAST_S: Final = 0.1
"""The shortest time between two runs with ``--follow``."""


class SparkNotHere(click.ClickException):
    """A requirement of Spark is not installed."""

    exit_code = 2


BROKER = click.option(
    "--broker",
    default="127.0.0.1:10911",
    show_default=True,
    metavar="HOST:PORT",
    help="The broker whose plugin `exporter` is meant.",
)


FORMAT = click.option(
    "--format",
    "file_format",
    type=click.Choice(["parquet", "delta", "iceberg"]),
    default="parquet",
    show_default=True,
    help="With delta, DIR may be a URL such as s3://bucket/table; with iceberg it is catalog.namespace.table.",
)


class ExportGroup(click.RichGroup):
    """Runs an export, or a sub-command, which has its own options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """click's method. If a sub-command comes first, the options of a run load no context: it may not need one."""
        before = ctx.resilient_parsing
        ctx.resilient_parsing = before or (bool(args) and args[0] in self.commands)
        try:
            return super().parse_args(ctx, args)
        finally:
            ctx.resilient_parsing = before


@click.group(
    cls=ExportGroup, invoke_without_command=True, subcommand_metavar="[status | compact | run-now | pause | resume]"
)
@click.option("--topic", metavar="TOPIC", help="Required. The topic, or several with commas between.")
@click.option(
    "--to",
    "folder",
    metavar="DIR",
    help="Required. The folder of the export, or a URL such as s3://bucket/folder; the first run makes it.",
)
@nameserver_option
@FORMAT
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
@click.option(
    "--since",
    metavar="TIME",
    help="Start at the first message stored at this time or later: 2026-11-22T08:00 (UTC unless it says otherwise), or "
    "milliseconds since 1970; for queues that the export does not have yet.",
)
@click.option("--until", metavar="TIME", help="End before the first message stored at this time or later.")
@click.option("--follow", is_flag=True, help="Export again and again, until stopped.")
@click.option(
    "--every",
    default="10s",
    show_default=True,
    metavar="DURATION",
    callback=lambda context, parameter, text: _read_duration(text),
    help="With --follow: from the end of one run to the start of the next.",
)
@click.option("--skip-lost", is_flag=True, help="Export what is left when wanted messages are no longer there.")
@click.option(
    "--bad-bodies",
    type=click.Choice(["fail", "null"]),
    default="fail",
    show_default=True,
    help="With null, a body that cannot be decompressed is null; with fail, it ends the run.",
)
@click.option("--overwrite", is_flag=True, help="Replace what the export has of these topics.")
@click.option("--discard-plan", is_flag=True, help="Drop what a stopped run has not published instead of finishing it.")
@click.option(
    "--engine",
    type=click.Choice(["spark", "local"]),
    help="local runs in this process, without Spark and Java: always so for delta and iceberg.  [default: spark]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def export(
    topic: str | None,
    folder: str | None,
    follow: bool,
    every: float,
    as_json: bool,
    **given: Any,
) -> None:
    """Write the messages of a topic that are new since the last run to Parquet files."""
    context = click.get_current_context()
    if context is not None and context.invoked_subcommand is not None:
        _refuse_options(context, context.invoked_subcommand)
        return
    if topic is None or folder is None:
        raise click.UsageError(f"Missing option '{'--topic' if topic is None else '--to'}'.")
    if follow and (given["overwrite"] or given["until"]):
        raise click.UsageError("--follow goes with neither --overwrite nor --until: these are for one run.")
    from gantrymq import spark

    in_spark = given["engine"] != "local" and given["file_format"] == "parquet"
    status = spark.spark_status()
    if in_spark and not status:
        raise SparkNotHere(f"the export runs in Spark, which cannot start here: {status.reason}")
    # Without --follow, export starts the session: it can be cancelled meanwhile.
    running = spark.session(log_level="off") if in_spark and follow else None
    has_run = False
    while True:
        try:
            with _export_progress(in_spark) as progress:
                result = _export_once(topic, folder, running, progress, given)
        # A nameserver that was just started knows no topic; a compaction locks a folder, or overtakes a run elsewhere.
        except (spark.Unreachable, spark.UnknownTopic, spark.FolderLocked, spark.ExportFenced) as error:
            if not has_run:
                raise
            click.echo(f"gantrymq: {error}; the next run tries again", err=True)
        else:
            has_run = follow
            given["starting_offsets"] = "earliest"  # the export has the queues now, and refuses other offsets for them
            if not follow or result.rows or result.lost:
                show = _as_json if as_json else _as_line
                click.echo(show(topic, given["file_format"], result))
        if not follow:
            return
        given["discard_plan"] = False
        trio.run(trio.sleep, every)


def _refuse_options(context: click.Context, subcommand: str) -> None:
    for parameter in context.command.params:
        if context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE:
            raise click.UsageError(
                f"write {parameter.opts[0]} after {subcommand!r}, if it is an option of that", context
            )


def _export_once(
    topic: str, folder: str, running: SparkSession | None, progress: Progress | None, given: dict[str, Any]
) -> ExportResult:
    from gantrymq import spark

    options = security_options() | {"badBodies": given["bad_bodies"]}
    if given["since"]:
        options["startingTimestamp"] = _read_time("--since", given["since"])
    if given["until"]:
        options["endingTimestamp"] = _read_time("--until", given["until"])
    return spark.export(
        topic,
        folder,
        given["nameserver"],
        starting_offsets=given["starting_offsets"],
        ending_offsets=given["ending_offsets"],
        fail_on_data_loss=not given["skip_lost"],
        overwrite=given["overwrite"],
        discard_plan=given["discard_plan"],
        engine=given["engine"],
        file_format=given["file_format"],
        options=options,
        spark=running,
        progress=progress,
    )


def _read_duration(text: str) -> float:
    """Seconds, from a duration with a unit or a number of seconds."""
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r}: {error}") from None
    if seconds < EVERY_LEAST_S:
        raise click.BadParameter(f"{text!r} is too short: at least {EVERY_LEAST_S:g}s is needed")
    return seconds


def _read_time(name: str, text: str) -> str:
    """Milliseconds since 1970, as the options of the data source have them."""
    if text.isascii() and text.isdigit():
        return text
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is neither a time such as 2026-11-22T08:00 nor milliseconds", param_hint=name
        ) from None
    return str(int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000))


@export.command("status")
@click.argument("folder", metavar="[DIR]", required=False)
@optional_nameserver_option
@click.option("--broker", metavar="HOST:PORT", help="Instead of DIR: ask this broker's plugin `exporter`.")
@FORMAT
@click.option("--json", "as_json", is_flag=True, help="Print the status as JSON.")
def show_status(
    folder: str | None, nameserver: str | None, broker: str | None, file_format: str, as_json: bool
) -> None:
    """Show what an export has, queue by queue, and whether a run was stopped; or what a broker's exporter does.

    With --nameserver or --context the brokers are asked for the lag, too.
    """
    from gantrymq import spark

    if (folder is None) == (broker is None):
        raise click.UsageError("Give either DIR, the folder of an export, or --broker.")
    if broker is not None:
        _show_exporter(broker, "status", as_json)
        return
    assert folder is not None
    status = spark.export_status(folder, nameserver, security_options(), file_format)
    if as_json:
        click.echo(json.dumps(attrs.asdict(status) | {"folder": str(status.folder)}))
        return
    for line in _status_lines(status, file_format):
        click.echo(line)


@export.command("run-now")
@BROKER
@context_option
@click.option("--json", "as_json", is_flag=True, help="Print the exporter's status as JSON.")
def run_now(broker: str, as_json: bool) -> None:
    """Let a broker's exporter start a run now, also while it is paused. The command does not wait for its end."""
    _show_exporter(broker, "run", as_json)


@export.command("pause")
@BROKER
@context_option
@click.option("--json", "as_json", is_flag=True, help="Print the exporter's status as JSON.")
def pause(broker: str, as_json: bool) -> None:
    """Let a broker's exporter start no further run until `export resume`, also after a restart.

    Log files with messages that are not exported yet are still kept, within `hold_bytes` and `hold_age`.
    """
    _show_exporter(broker, "pause", as_json)


@export.command("resume")
@BROKER
@context_option
@click.option("--json", "as_json", is_flag=True, help="Print the exporter's status as JSON.")
def resume(broker: str, as_json: bool) -> None:
    """End a pause."""
    _show_exporter(broker, "resume", as_json)


def security_options() -> dict[str, str]:
    """The options of the data source for the keys and the TLS settings of the context or the environment."""
    names = {
        "access_key": "accessKey", "secret_key": "secretKey", "security_token": "securityToken",
        "authority": "tlsCaFile",
    }  # fmt: skip
    settings = plain_settings()
    options = {option: settings[name] for name, option in names.items() if settings.get(name)}
    if settings["tls"]:
        options["tls"] = UNVERIFIED if settings["tls"] == UNVERIFIED else "true"
    return options


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

    with _compact_progress() as progress:
        result = spark.compact_export(folder, progress=progress)
    if as_json:
        click.echo(json.dumps(attrs.asdict(result)))
    else:
        noun = "file" if result.before == 1 else "files"
        click.echo(f"{result.before} {noun} became {result.after}: {folder}, {result.seconds:.1f} s")


def _status_lines(status: ExportStatus, file_format: str) -> Iterator[str]:
    version = "manifest" if file_format == "parquet" else "version"
    age = "no run has published" if status.age is None else f"{version} {status.number}, {status.age:,.0f} s old"
    yield f"{status.folder}: {age}"
    for queue in status.queues:
        lag = "" if queue.lag is None else f", lag {queue.lag:,}"
        lost = f", {queue.lost:,} lost" if queue.lost else ""
        noun = "file" if queue.files == 1 else "files"
        files = f" in {queue.files} {noun}, {queue.bytes:,} bytes" if file_format == "parquet" else ""
        yield (
            f"{queue.topic} {queue.broker} queue {queue.queue_id}: {queue.rows:,} messages{files}, "
            f"continues at {queue.next_offset}{lag}{lost}"
        )
    if status.unfinished:
        yield "a run is going on or was stopped: the next run finishes it"


def _as_line(topic: str, file_format: str, result: ExportResult) -> str:
    rate = result.rows / max(result.seconds, 0.001)
    lost = f", {result.lost:,} messages were no longer there" if result.lost else ""
    kind = {"parquet": "Parquet {}", "delta": "{} of a Delta table", "iceberg": "{} of an Iceberg table"}
    files = kind[file_format].format("file" if result.files == 1 else "files")
    messages = "message" if result.rows == 1 else "messages"
    return (
        f"{result.rows:,} {messages} of {topic} in {result.files} {files}, {result.bytes:,} bytes, "
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
def _export_progress(in_spark: bool) -> Iterator[Progress | None]:
    """A bar with messages, bytes, lag and remaining time on stderr if that is a terminal, one line otherwise."""
    from rich.filesize import decimal

    def show(now: ExportProgress) -> None:
        figures = f"{now.rows:,}/{now.rows_total:,} messages, {decimal(now.bytes)}, lag {now.lag:,}"
        update("exporting", now.rows, now.rows_total, figures)

    with _bar("exporting with Spark" if in_spark else "exporting", in_spark) as update:
        yield show if sys.stderr.isatty() else None


@contextmanager
def _compact_progress() -> Iterator[Callable[[int, int], None]]:
    """A bar with the merged files, as :func:`_export_progress`."""
    with _bar("compacting") as update:
        yield lambda done, total: update("compacting", done, total, f"{done}/{total} files")


@contextmanager
def _bar(work: str, in_spark: bool = False) -> Iterator[Callable[[str, int, int, str], None]]:
    """A bar that is updated with its text, what is done, all of it, and figures."""
    if not sys.stderr.isatty():
        click.echo(work, err=True)
        yield lambda text, done, total, figures: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting Spark" if in_spark else work, total=None, figures="")
        yield lambda text, done, total, figures: bar.update(
            task, description=text, completed=done, total=total, figures=figures
        )

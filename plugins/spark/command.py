"""The command ``gantrymq export``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import rich_click as click

if TYPE_CHECKING:
    from gantrymq.spark import ExportResult
    from gantrymq.spark.job import Progress


class SparkNotHere(click.ClickException):
    """A requirement of Spark is not installed."""

    exit_code = 2


@click.command()
@click.option("--topic", required=True, metavar="TOPIC", help="The topic, or several with commas between.")
@click.option("--to", "folder", required=True, metavar="DIR", help="The folder for the files: new or empty.")
@click.option(
    "--nameserver",
    default="127.0.0.1:9876",
    envvar="GANTRYMQ_NAMESERVER",
    show_default=True,
    show_envvar=True,
    metavar="HOST:PORT",
    help="One, or several with ;.",
)
@click.option("--format", "file_format", type=click.Choice(["parquet"]), default="parquet", show_default=True)
@click.option(
    "--starting-offsets",
    default="earliest",
    show_default=True,
    metavar="OFFSETS",
    help='earliest, or JSON: {"topic": {"broker-a": {"0": 23}}}.',
)
@click.option(
    "--ending-offsets",
    default="latest",
    show_default=True,
    metavar="OFFSETS",
    help="latest, or JSON of the same form; the message at the ending offset is not exported.",
)
@click.option("--skip-lost", is_flag=True, help="Export what is left when wanted messages are no longer there.")
@click.option("--overwrite", is_flag=True, help="Replace the files of an earlier export.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def export(
    topic: str,
    folder: str,
    nameserver: str,
    file_format: str,
    starting_offsets: str,
    ending_offsets: str,
    skip_lost: bool,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Write the messages of a topic to Parquet files through Spark."""
    from gantrymq import spark

    status = spark.spark_status()
    if not status:
        raise SparkNotHere(f"the export runs in Spark, which cannot start here: {status.reason}")
    with _progress() as progress:
        result = spark.export(
            topic,
            folder,
            nameserver,
            starting_offsets=starting_offsets,
            ending_offsets=ending_offsets,
            fail_on_data_loss=not skip_lost,
            overwrite=overwrite,
            progress=progress,
        )
    click.echo(_as_json(topic, file_format, result) if as_json else _as_line(topic, result))


def _as_line(topic: str, result: ExportResult) -> str:
    rate = result.rows / max(result.seconds, 0.001)
    return (
        f"{result.rows:,} messages of {topic} in {result.files} Parquet files, {result.bytes:,} bytes, "
        f"{result.seconds:.1f} s ({rate:,.0f} a second): {result.folder}"
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
        }
    )


@contextmanager
def _progress() -> Iterator[Progress | None]:
    """A progress bar on stderr if that is a terminal, one line otherwise; stdout has only the result."""
    if not sys.stderr.isatty():
        click.echo("exporting with Spark", err=True)
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("files"))
    with Bar(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting Spark", total=None)

        def show(done: int, total: int) -> None:
            bar.update(task, description="exporting", completed=done, total=total)

        yield show

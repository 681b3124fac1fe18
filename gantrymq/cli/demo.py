"""``make demo``: the whole pipeline end to end on a real broker, with a table of the message counts of each step.

The demo sends every line of a file as a message with a key and a tag, consumes and compares them, restarts the broker
on the same store, lets Spark write the topic to Parquet, and compares the rows too.
"""

from __future__ import annotations

import re
import shutil
import sys
import time
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import rich_click as click

from gantrymq.cli.children import ServerChild
from gantrymq.cli.failures import CommandFailed, guarded
from gantrymq.cli.progress import Meter
from gantrymq.cli.tables import print_table

if TYPE_CHECKING:
    from gantrymq.cli.lines import Sending
    from gantrymq.cli.tally import Tally
    from gantrymq.client import Client
    from gantrymq.message import Message
    from gantrymq.spark import ExportProgress

TOPIC = "demo"
GROUP = "demo-readers"
MARK = ".gantrymq-demo"
SILENCE_SECONDS = 30.0
CONFIG = """# what `make demo` ran; try: gantrymq serve --config {path}
[broker]
data = "{data}"

[store]
commit_log_file_bytes = "64 MiB"
"""
_METHOD = re.compile(rb'"([A-Z]{3,7}) ')


@attrs.define
class Row:
    """A line of the table: a step, the messages it handled (None: skipped), and how long it took."""

    step: str
    count: int | None
    seconds: float
    place: str = ""


@click.command()
@click.option("--file", "path", metavar="FILE", help="Send the lines of this file; default a small sample.")
@click.option(
    "--folder",
    default="gantrymq-demo",
    show_default=True,
    metavar="DIR",
    help="Folder for the output; each run replaces it.",
)
def demo(path: str | None, folder: str) -> int:
    """Run the whole pipeline end to end and print each step; exit code 1 when a count or a body differs."""
    from gantrymq.cli.logs import configure_logs

    configure_logs("error")
    root = recreate(Path(folder))
    if path is not None:
        return run(Path(path), root)
    with resources.as_file(resources.files("gantrymq.cli") / "sample.log") as sample:
        return run(sample, root)


def run(source: Path, root: Path) -> int:
    """All steps, one line each, then the table. Returns the exit code."""
    from gantrymq.cli.tally import Tally

    with source.open("rb") as file:
        if not file.read(1 << 20).strip(b"\n"):
            raise CommandFailed(f"{source} has no lines to send")
    config = root / "gantrymq.toml"
    config.write_text(CONFIG.format(path=config, data=root / "store"), "utf-8")
    arguments = ["--config", str(config), "--listen", "127.0.0.1:0", "--nameserver-listen", "127.0.0.1:0"]
    log = root / "broker.log"
    sent, consumed = Tally(), Tally()
    rows: list[Row] = []
    print_line(f"GantryMQ demo: the lines of {source} through a broker in {root}")
    with ServerChild(arguments, log) as server:
        rows.append(Row("start the broker", None, server.seconds, server.broker))
        print_line(f"broker {server.broker} and nameserver {server.nameserver} run")
        sending = produce(server.nameserver, source, sent)
        rows.append(Row("produce", sending.sent, sending.seconds, f"topic {TOPIC}"))
        print_line(
            describe("produced", rows[-1]) + (f", {sending.skipped} empty lines skipped" if sending.skipped else "")
        )
        rows.append(Row("consume", *consume(server.nameserver, sent, consumed), f"group {GROUP}"))
        print_line(describe("consumed", rows[-1]))
    print_line("broker stopped")
    with ServerChild(arguments, log) as server:
        rows.append(Row("start again", stored(server.nameserver), server.seconds, f"store {root / 'store'}"))
        print_line(describe("broker runs again on the same store, it has", rows[-1]))
        exported = export(server.nameserver, root / "parquet", sent, rows)
    faults = [*consumed.differences(sent, "consumed"), *exported]
    if rows[3].count != sending.sent:
        faults.append(f"after the restart the store has {rows[3].count} of {sending.sent} messages")
    report(rows, log)
    for fault in faults:
        click.echo(f"gantrymq: {fault}", err=True)
    print_line("FAILED" if faults else "ok: every message came out as it went in")
    return 1 if faults else 0


def recreate(root: Path) -> Path:
    """Create an empty folder ``root``. :class:`CommandFailed` for an existing folder that no demo created."""
    root = root.absolute()
    if root.exists():
        if not (root / MARK).is_file() and (not root.is_dir() or any(root.iterdir())):
            raise CommandFailed(f"{root} is not a folder of an earlier demo; move it away, or choose --folder")
        shutil.rmtree(root)
    root.mkdir(parents=True)
    (root / MARK).touch()
    return root


def produce(nameserver: str, source: Path, tally: Tally) -> Sending:
    """Send every line of ``source`` that is not empty, and record it in ``tally``."""
    from gantrymq.cli.connecting import with_client
    from gantrymq.cli.lines import send_lines
    from gantrymq.message import Message

    def make(number: int, line: bytes) -> Message:
        tag = tag_of(line)
        tally.note(number, tag, line)
        return Message(TOPIC, line, tag, f"line-{number}")

    async def work(client: Client) -> Sending:
        with source.open("rb") as file, Meter("produce", count_lines(source)) as meter:
            async with client.producer() as producer:
                return await send_lines(producer, file.fileno(), make, meter)

    return with_client(nameserver, work)


def consume(nameserver: str, wanted: Tally, tally: Tally) -> tuple[int, float]:
    """Consume until all messages have arrived, or none for a while; returns their number and the seconds."""
    import trio

    from gantrymq.cli.connecting import with_client

    async def work(client: Client) -> tuple[int, float]:
        started = time.monotonic()
        with Meter("consume", wanted.count) as meter:
            async with client.consumer(TOPIC, GROUP, start="first") as consumer:
                while tally.count < wanted.count:
                    with trio.move_on_after(SILENCE_SECONDS) as silence:
                        message = await anext(consumer)
                    if silence.cancelled_caught:
                        break
                    tally.note_key(message.keys, message.tags, message.body)
                    await message.ack()
                    meter.set(tally.count)
                return tally.count, time.monotonic() - started

    return with_client(nameserver, work)


def stored(nameserver: str) -> int:
    """The number of messages in all queues of the topic."""
    from gantrymq.cli.connecting import with_client

    async def work(client: Client) -> int:
        queues = await client.admin.queues(TOPIC)
        return sum([await client.admin.max_offset(queue) - await client.admin.min_offset(queue) for queue in queues])

    return with_client(nameserver, work)


def export(nameserver: str, folder: Path, sent: Tally, rows: list[Row]) -> list[str]:
    """Write the topic to Parquet with Spark and compare its rows; without Java the step is skipped and reported.

    Adds a row to ``rows``; returns the differences.
    """
    from gantrymq import spark
    from gantrymq.cli.tally import tally_parquet

    status = spark.spark_status()
    if not status:
        print_line(f"no export to Parquet: {status.reason}")
        rows.append(Row("export to Parquet", None, 0.0, f"left out: {status.reason}"))
        return []
    print_line("exporting with Spark, whose start takes some seconds")
    with Meter("export, messages") as meter:
        meter.show()
        result = spark.export(TOPIC, folder, nameserver, progress=partial(_show, meter))
    exported = tally_parquet(folder)
    rows.append(Row("export to Parquet", exported.count, result.seconds, f"{result.files} files in {folder}"))
    print_line(describe("exported", rows[-1]))
    return exported.differences(sent, "exported")


def report(rows: list[Row], log: Path) -> None:
    """The table."""
    print_line("")
    cells = [
        (
            row.step,
            "-" if row.count is None else f"{row.count:,}",
            f"{row.seconds:.2f}",
            "-" if not row.count or row.step == "start again" else f"{row.count / row.seconds:,.0f}",
            row.place,
        )
        for row in rows
    ]
    print_table(("step", "messages", "seconds", "messages/s", "where"), cells)
    print_line(f"the broker's log: {log}")


def tag_of(line: bytes) -> str:
    """The method of an access log's line, else ``line``."""
    match = _METHOD.search(line)
    return match[1].decode("ascii") if match else "line"


def count_lines(path: Path) -> int:
    """The number of newlines, for the progress bar."""
    total = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            total += block.count(b"\n")
    return total


def describe(done: str, row: Row) -> str:
    """One step as text."""
    return f"{done} {row.count:,} messages in {row.seconds:.2f} s"


def print_line(line: str) -> None:
    """One line on stdout, at once."""
    click.echo(line)
    sys.stdout.flush()


def _show(meter: Meter, now: ExportProgress) -> None:
    meter.set(now.rows, now.rows_total)


if __name__ == "__main__":
    sys.exit(guarded(lambda: demo.main(sys.argv[1:], prog_name="make demo", standalone_mode=False)))

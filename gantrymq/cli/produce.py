"""``gantrymq produce``: the lines of a file or of stdin as messages."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from gantrymq.cli.connecting import nameserver_option, with_client
from gantrymq.cli.options import Duration, json_option, print_result, topic_parameter

if TYPE_CHECKING:
    from gantrymq.cli.lines import Sending
    from gantrymq.client import Client
    from gantrymq.message import Message


@click.command()
@topic_parameter("The topic, created on first use unless the broker forbids it.")
@nameserver_option
@click.option("--file", "path", metavar="FILE", help="Read lines from this file instead of stdin.")
@click.option("--tag", metavar="TAG", help="The tag of every message.")
@click.option("--key", metavar="KEY", help="The key of every message; {n} is replaced by the line number.")
@click.option(
    "--delay",
    "after",
    type=Duration(0, least_excluded=True),
    metavar="DURATION",
    help="Deliver each message after this time, such as 30s.",
)
@click.option(
    "--delay-level",
    "level",
    type=click.IntRange(min=1),
    metavar="N",
    help="Deliver each message after the delay of this level.",
)
@click.option(
    "--deliver-at", "at", metavar="TIME", help="Deliver all messages at this time, such as 2026-11-21T20:00:00Z."
)
@json_option()
def produce(
    topic: str,
    nameserver: str,
    path: str | None,
    tag: str | None,
    key: str | None,
    after: float | None,
    level: int | None,
    at: str | None,
    as_json: bool,
) -> None:
    """Send each line of a file, or of stdin, as a message. Empty lines are skipped.

    The command sends the lines in order, in batches; each batch goes to one queue, the next batch to the next queue.
    Delayed lines are sent one by one. Use at most one of --delay, --delay-level and --deliver-at; a time in the past
    means at once.
    """
    from gantrymq.cli.delays import read_delay

    delay = read_delay(after, level, at)

    async def work(client: Client) -> Sending:
        from gantrymq.cli.lines import BATCH_LINES, send_lines
        from gantrymq.cli.progress import Meter
        from gantrymq.message import Message

        def make(number: int, line: bytes) -> Message:
            keys = key.replace("{n}", str(number)) if key else ()
            return Message(topic, line, tag, keys, delay.properties, delay_level=delay.level)

        with Meter(f"produce {topic}") as meter:
            async with client.producer() as producer:
                most = BATCH_LINES if delay.is_none else 1
                return await send_lines(producer, source.fileno(), make, meter, most=most)

    with Path(path).open("rb") if path is not None else nullcontext(sys.stdin) as source:
        result = with_client(nameserver, work)
    statuses = ", ".join(sorted(result.late_statuses))
    text = (
        f"sent {result.sent} messages, {result.bytes} bytes in {result.seconds:.2f} s ({result.rate:.0f} messages/s)"
        + (f", skipped {result.skipped} empty lines" if result.skipped else "")
        + (f", {result.late} stored, but not yet safe ({statuses})" if result.late else "")
    )
    fields = {name: getattr(result, name) for name in ("sent", "bytes", "seconds", "skipped", "late")}
    print_result(text, {"topic": topic, **fields}, as_json)

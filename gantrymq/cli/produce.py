"""``gantrymq produce``: the lines of a file or of stdin as messages."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from gantrymq.cli.connecting import nameserver_option, with_client

if TYPE_CHECKING:
    from gantrymq.cli.lines import Sending
    from gantrymq.client import Client
    from gantrymq.message import Message


@click.command()
@click.option("--topic", required=True, metavar="TOPIC", help="Created on first use unless the broker forbids it.")
@nameserver_option
@click.option("--file", "path", metavar="FILE", help="Read lines from here instead of stdin.")
@click.option("--tag", metavar="TAG", help="The tag of every message.")
@click.option("--key", metavar="KEY", help="The key of every message; {n} in it becomes the line's number.")
def produce(topic: str, nameserver: str, path: str | None, tag: str | None, key: str | None) -> None:
    """Send each line of a file, or of stdin, as a message. Empty lines are skipped.

    The lines go in their order, a batch of them to one queue, the next to the next.
    """

    async def work(client: Client) -> Sending:
        from gantrymq.cli.lines import send_lines
        from gantrymq.cli.progress import Meter
        from gantrymq.message import Message

        def make(number: int, line: bytes) -> Message:
            return Message(topic, line, tag, key.replace("{n}", str(number)) if key else ())

        with Meter(f"produce {topic}") as meter:
            async with client.producer() as producer:
                return await send_lines(producer, source.fileno(), make, meter)

    with Path(path).open("rb") if path is not None else nullcontext(sys.stdin) as source:
        result = with_client(nameserver, work)
    click.echo(
        f"sent {result.sent} messages, {result.bytes} bytes in {result.seconds:.2f} s ({result.rate:.0f} messages/s)"
        + (f", skipped {result.skipped} empty lines" if result.skipped else "")
        + (f", {result.late} stored but not flushed in time" if result.late else "")
    )

"""``gantrymq consume``: print messages to stdout, one per line."""

from __future__ import annotations

import base64
import json
import math
import sys
from typing import TYPE_CHECKING, Any, Final

import attrs
import rich_click as click

from gantrymq.cli.connecting import nameserver_option, with_client
from gantrymq.cli.options import duration_option, topic_parameter

if TYPE_CHECKING:
    from gantrymq.client import Client
    from gantrymq.message import DeliveredRecord


TOPIC_WAIT_S: Final = 3.0
"""How long a topic may be unknown to the nameservers before the command fails."""
TOPIC_POLL_S: Final = 0.1


@attrs.frozen
class Wanted:
    """The messages to consume, and when to stop."""

    topic: str
    group: str
    tags: str
    start: Any
    limit: float
    timeout: float
    as_json: bool
    wait: bool


@click.command()
@topic_parameter()
@click.option("--group", required=True, metavar="GROUP", help="The consumer group; its members share the queues.")
@nameserver_option
@click.option("--tags", default="*", metavar="EXPRESSION", help='Only these tags, such as "a || b".')
@click.option(
    "--from",
    "start",
    type=click.Choice(["first", "last"]),
    default="first",
    show_default=True,
    help="Where a new group starts.",
)
@click.option("--max", "limit", type=click.IntRange(min=1), metavar="N", help="End after N messages.")
@duration_option("--timeout", None, "End when no message arrived for this time.", least=0, least_excluded=True)
@click.option("--wait", is_flag=True, help="Wait for a topic that no broker has yet.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per message, with properties and offsets.")
def consume(
    topic: str,
    group: str,
    nameserver: str,
    tags: str,
    start: str,
    limit: int | None,
    timeout: float | None,
    wait: bool,
    as_json: bool,
) -> int:
    """Print the bodies of messages, one per line, and acknowledge each after it is printed.

    Runs until Ctrl-C, --max or --timeout. The number of messages is printed to stderr.
    """
    wanted = Wanted(topic, group, tags, start, limit or math.inf, timeout or math.inf, as_json, wait)

    async def work(client: Client) -> tuple[int, int]:
        return await print_messages(client, wanted)

    count, code = with_client(nameserver, work)
    click.echo(f"consumed {count} messages", err=True)
    return code


async def print_messages(client: Client, wanted: Wanted) -> tuple[int, int]:
    """Print until the limit, the time-out, a signal, or until stdout is closed; returns the count and the exit code."""
    import trio

    from gantrymq.cli.signals import ending_by_signal

    count = 0
    scope = trio.CancelScope()
    subscribed = client.consumer(wanted.topic, wanted.group, tags=wanted.tags, start=wanted.start)
    if not wanted.wait:
        await _find_topic(client, wanted.topic)
    async with subscribed as consumer:
        with ending_by_signal(scope.cancel) as first, scope:
            while count < wanted.limit:
                with trio.move_on_after(wanted.timeout) as silence:
                    message = await anext(consumer)
                if silence.cancelled_caught:
                    break
                try:
                    await trio.to_thread.run_sync(write_line, render(message, wanted.as_json))
                except BrokenPipeError:
                    break
                await message.ack()
                count += 1
    return count, first.exit_code


async def _find_topic(client: Client, topic: str) -> None:
    """Raise NoRoute for an unknown topic, for which a consumer would wait. A new topic gets a short time, because
    brokers report it a moment after its first message."""
    import trio

    from gantrymq.client.errors import NoRoute

    deadline = trio.current_time() + TOPIC_WAIT_S
    while True:
        try:
            await client.admin.route(topic)
            return
        except NoRoute:
            if trio.current_time() > deadline:
                raise
        await trio.sleep(TOPIC_POLL_S)


def render(message: DeliveredRecord, as_json: bool) -> bytes:
    """The line to print, without its newline. A body that is not UTF-8 is printed as ``body_base64``."""
    if not as_json:
        return message.body
    fields: dict[str, object] = {
        "topic": message.topic,
        "broker": message.broker_name,
        "queue": message.queue_id,
        "queue_offset": message.queue_offset,
        "message_id": message.message_id,
        "tags": message.tags,
        "keys": list(message.keys),
        "born_ms": message.born_timestamp,
        "stored_ms": message.store_timestamp,
        "properties": message.properties,
    }
    try:
        fields["body"] = message.body.decode("utf-8")
    except UnicodeDecodeError:
        fields["body_base64"] = base64.b64encode(message.body).decode("ascii")
    return json.dumps(fields, ensure_ascii=False).encode("utf-8", "replace")


def write_line(line: bytes) -> None:
    """One line on stdout, at once."""
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()

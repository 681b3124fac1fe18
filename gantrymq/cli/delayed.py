"""``gantrymq delayed``: list timed messages that wait, and recall them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import rich_click as click

from gantrymq.cli.connecting import nameserver_option, with_client
from gantrymq.cli.failures import CommandFailed, warn
from gantrymq.cli.options import topic_parameter

if TYPE_CHECKING:
    from gantrymq.client import Client


@click.group()
def delayed() -> None:
    """List and recall waiting timed messages (not messages with a delay level)."""


@delayed.command("list")
@topic_parameter("Show only messages for this topic.", required=False)
@click.option(
    "--max", "limit", type=click.IntRange(min=1), default=100, show_default=True, help="The most messages to show."
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, one object per message.")
@nameserver_option
def list_delayed(topic: str | None, limit: int, as_json: bool, nameserver: str) -> None:
    """List the waiting messages with their handles for `recall`, the next one first.

    The command reads the timer topic of the brokers, GantryMQ's or RocketMQ 5's. A million waiting messages take a
    while.
    """

    from gantrymq.operations.delayed import Waiting, waiting_messages

    async def work(client: Client) -> list[Waiting]:
        found = await waiting_messages(client, topic)
        for broker in found.unread:
            warn(f"broker {broker} has no master now and cannot be read, so its messages are missing")
        return found.messages

    found = with_client(nameserver, work)
    shown = found[:limit]
    if as_json:
        rows = [
            {
                "due_ms": one.due,
                "topic": one.topic,
                "broker": one.broker,
                "queue": one.queue_id,
                "message_id": one.message_id,
                "recall_handle": one.handle,
                "body_bytes": one.body_bytes,
            }
            for one in shown
        ]
        click.echo(json.dumps(rows, indent=2))
        return
    from gantrymq.cli.tables import print_table
    from gantrymq.operations.clock import clock

    cells = [(clock(one.due), one.topic, one.broker, one.queue_id, one.message_id, one.handle) for one in shown]
    print_table(("due", "topic", "broker", "queue", "id", "handle"), cells)
    if len(found) > limit:
        click.echo(f"{len(found) - limit} more wait: --max shows them", err=True)


@delayed.command()
@click.argument("place", nargs=-1, metavar="[TOPIC] HANDLE")
@click.option("--topic", metavar="TOPIC", help="The topic, if it is not given by position.")
@click.option(
    "--group", default="gantrymq-cli", show_default=True, metavar="GROUP", help="The producer group of the request."
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object with the id of the message.")
@nameserver_option
def recall(place: tuple[str, ...], topic: str | None, group: str, as_json: bool, nameserver: str) -> None:
    """Recall the message with this HANDLE, which its send returned and `list` shows.

    The broker records the recall; it does not report whether the message was still waiting.
    """

    if len(place) != (2 if topic is None else 1):
        raise click.UsageError("give a topic (by position or with --topic) and a handle")
    name, handle = topic if topic is not None else place[0], place[-1]

    from gantrymq.operations.delayed import NotRecalled, recall_message
    from gantrymq.remoting.recall_handles import decode_handle

    try:
        decode_handle(handle)
    except ValueError as error:
        raise click.UsageError(str(error)) from None

    async def work(client: Client) -> str:
        return await recall_message(client, name, handle, group)

    try:
        message_id = with_client(nameserver, work)
    except NotRecalled as error:
        raise CommandFailed(str(error)) from None
    click.echo(json.dumps({"message_id": message_id}) if as_json else f"recalled {message_id}")

"""``gantrymq query``: find single messages by key, by id, or by queue offset."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import rich_click as click

from gantrymq.cli.connecting import nameserver_option, with_client
from gantrymq.cli.consume import render
from gantrymq.cli.failures import CommandFailed
from gantrymq.cli.options import topic_parameter

if TYPE_CHECKING:
    from gantrymq.client import Client
    from gantrymq.message import DeliveredRecord


@click.command()
@topic_parameter()
@click.option("--key", metavar="KEY", help="One of the message's keys.")
@click.option("--id", "message_id", metavar="ID", help="The message id of the producer or of the broker.")
@click.option("--offset", type=click.IntRange(min=0), metavar="N", help="The queue offset; needs --queue.")
@click.option("--queue", type=click.IntRange(min=0), metavar="N", help="With --offset: the queue id.")
@click.option("--broker", metavar="NAME", help="With --offset: the broker name, if the topic has several.")
@click.option(
    "--max",
    "limit",
    type=click.IntRange(1, 64),
    default=32,
    show_default=True,
    help="With --key: the most messages, newest first.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per message, with properties and offsets.")
@nameserver_option
def query(
    topic: str,
    key: str | None,
    message_id: str | None,
    offset: int | None,
    queue: int | None,
    broker: str | None,
    limit: int,
    as_json: bool,
    nameserver: str,
) -> None:
    """Print the messages with a key or an id, or at a queue offset, one per line, oldest first.

    Use exactly one of --key, --id and --offset. The exit code is 1 when no message was found.
    """
    if [key, message_id, offset].count(None) != 2:
        raise click.UsageError("give one of --key, --id and --offset")
    if (queue is None) != (offset is None):
        raise click.UsageError("--offset and --queue belong together")

    async def work(client: Client) -> list[DeliveredRecord]:
        if key is not None:
            return await client.admin.find(topic, key, limit=limit)
        if message_id is not None:
            return await client.admin.find_by_id(topic, message_id)
        return await _at(client, topic, queue or 0, broker, offset or 0)

    print_found(with_client(nameserver, work), topic, as_json)


def print_found(messages: Sequence[DeliveredRecord], topic: str, as_json: bool) -> None:
    """Print the messages, one per line; CommandFailed if there is none."""
    for message in messages:
        sys.stdout.buffer.write(render(message, as_json) + b"\n")
    if not messages:
        raise CommandFailed(f"no such message in topic {topic}")


async def _at(client: Client, topic: str, number: int, broker: str | None, offset: int) -> list[DeliveredRecord]:
    queues = [queue for queue in await client.admin.queues(topic) if queue.queue_id == number]
    found = [await client.admin.message_at(queue, offset) for queue in queues if broker in (None, queue.broker_name)]
    return [message for message in found if message is not None]

"""``gantrymq dlq``: list, print and replay dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import rich_click as click

from gantrymq.cli.connecting import nameserver_option, with_client
from gantrymq.cli.failures import CommandFailed, warn
from gantrymq.cli.options import json_option, print_result
from gantrymq.cli.tables import plural, print_rows

if TYPE_CHECKING:
    from gantrymq.client import Client
    from gantrymq.operations.dead_letters import DeadLetters


@click.group()
def dlq() -> None:
    """List, print and replay dead letters: messages that a group could not consume."""


@dlq.command("list")
@click.argument("group", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, one object per group.")
@nameserver_option
def list_letters(group: str | None, as_json: bool, nameserver: str) -> None:
    """Count the dead letters of all groups, or of one, and those that were not replayed yet."""
    from gantrymq.operations.dead_letters import dead_letters

    async def work(client: Client) -> list[DeadLetters]:
        return await dead_letters(client, group)

    print_rows(
        ("group", "messages", "unreplayed"), [attrs.asdict(row) for row in with_client(nameserver, work)], as_json
    )


@dlq.command()
@click.argument("group")
@click.option("--max", "limit", type=click.IntRange(min=1), default=10, show_default=True, metavar="N")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per message, with properties and offsets.")
@nameserver_option
def peek(group: str, limit: int, as_json: bool, nameserver: str) -> int:
    """Print the oldest dead letters of a group, one per line. Nothing is committed."""
    from gantrymq.cli.messages import print_all
    from gantrymq.remoting.names import dlq_topic

    async def work(client: Client) -> int:
        await _ensure_letters(client, group)
        async with client.reader(dlq_topic(group), until="end") as reader:
            return await print_all(reader, limit, as_json)

    return with_client(nameserver, work)


@dlq.command()
@click.argument("group")
@click.option("--to", metavar="TOPIC", help="Send them to this topic; default to the retry topic of the group.")
@click.option("--max", "limit", type=click.IntRange(min=1), metavar="N", help="Replay at most N messages.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), metavar="N", help="At most N messages per second.")
@click.option("--again", is_flag=True, help="Begin with the oldest dead letter, also if it was replayed before.")
@json_option()
@nameserver_option
def replay(
    group: str, to: str | None, limit: int | None, rate: float | None, again: bool, as_json: bool, nameserver: str
) -> None:
    """Send the dead letters of a group again.

    By default they go to the group's retry topic: only this group gets them, with all of its attempts. The command
    remembers how far it came, so that a later one continues there; a dead letter stays until its retention ends.
    """
    from gantrymq.cli.progress import Meter
    from gantrymq.operations import dead_letters

    async def work(client: Client) -> int:
        await _ensure_letters(client, group)
        with Meter(f"replay {group}") as meter:
            return await dead_letters.replay(
                client, group, to=to, limit=limit, rate=rate, again=again, sent=lambda _: meter.advance(1),
                skipped=lambda broker: warn(f"broker {broker} has no master now, so its dead letters wait"),
            )  # fmt: skip

    count = with_client(nameserver, work)
    print_result(f"replayed {plural(count, 'message')}", {"group": group, "to": to, "messages": count}, as_json)


async def _ensure_letters(client: Client, group: str) -> None:
    """Raise :class:`CommandFailed` if the group has no topic of dead letters, or has dead letters that cannot be
    read."""
    from gantrymq.cli.topics import permission
    from gantrymq.client.errors import NoRoute
    from gantrymq.operations.topics import all_queues
    from gantrymq.remoting.codes import PERM_READ
    from gantrymq.remoting.names import dlq_topic

    topic = dlq_topic(group)
    try:
        route = await client.admin.route(topic)
    except NoRoute:
        raise CommandFailed(f"group {group} has no dead letters; gantrymq dlq list has the groups") from None
    unreadable = {data.broker_name: data.perm for data in route.queue_datas if not data.perm & PERM_READ}
    clusters = {data.broker_name: data.cluster for data in route.broker_datas}
    for queue in all_queues(topic, route):
        broker = queue.broker_name
        if broker in unreadable and await client.admin.max_offset(queue) > await client.admin.min_offset(queue):
            raise CommandFailed(
                f"topic {topic} cannot be read at {broker}: its permission is {permission(unreadable[broker])}; "
                f"mqadmin updateTopicPerm -c {clusters[broker]} -t {topic} -p 6 changes it"
            )

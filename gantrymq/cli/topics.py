"""``gantrymq topic``: create, list and describe topics."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

import rich_click as click

from gantrymq.cli.connecting import nameserver_option, with_client
from gantrymq.cli.failures import CommandFailed, warn
from gantrymq.cli.options import confirm, json_option, print_result, topic_parameter

if TYPE_CHECKING:
    from gantrymq.client import Client
    from gantrymq.client.options import Start

PERMISSIONS = {4: "read", 2: "write"}


@click.group("topic")
def topic_commands() -> None:
    """Create, list, describe, read and delete topics."""


@topic_commands.command()
@topic_parameter()
@click.option("--queues", type=click.IntRange(1, 1024), default=8, show_default=True, help="Queues on each broker.")
@click.option("--cluster", metavar="CLUSTER", help="Use only the brokers of this cluster.")
@click.option("--update", is_flag=True, help="Change the number of queues of a topic that exists.")
@click.option("--force", is_flag=True, help="Remove queues even if they have messages.")
@json_option()
@nameserver_option
def create(
    topic: str, queues: int, cluster: str | None, update: bool, force: bool, as_json: bool, nameserver: str
) -> None:
    """Create a topic on every master broker, or change its number of queues.

    A topic that exists changes only with --update, and keeps its permissions and other settings. A master that lacks a
    topic of others, such as one that was down or is new, gets it with their settings, if --queues is their number.

    Consumers do not read messages in queues that were removed; the command refuses to remove such queues without
    --force. The messages can be read again when the queues are added again.
    """

    _set_queues(topic, queues, cluster, as_json, nameserver, update=update, force=force)


@topic_commands.command()
@topic_parameter()
@click.option("--queues", type=click.IntRange(1, 1024), required=True, metavar="N", help="Queues on each broker.")
@click.option("--cluster", metavar="CLUSTER", help="Use only the brokers of this cluster.")
@click.option("--force", is_flag=True, help="Remove queues even if they have messages.")
@json_option()
@nameserver_option
def update(topic: str, queues: int, cluster: str | None, force: bool, as_json: bool, nameserver: str) -> None:
    """Change the number of queues of a topic that exists, on every master broker.

    As `gantrymq topic create --update`, but it fails for a topic that does not exist. The topic keeps its permissions
    and other settings.
    """
    _set_queues(topic, queues, cluster, as_json, nameserver, update=True, force=force, must_exist=True)


def _set_queues(
    topic: str, queues: int, cluster: str | None, as_json: bool, nameserver: str, *, update: bool, force: bool,
    must_exist: bool = False,
) -> None:  # fmt: skip
    from gantrymq.operations.brokers import brokers_without_master

    async def work(client: Client) -> list[str]:
        await _check_existing(client, topic, queues, cluster, update=update, force=force, must_exist=must_exist)
        if update:
            for broker in await brokers_without_master(client, cluster):
                warn(f"broker {broker} has no master now: run the command again when it has one")
        return await client.admin.create_topic(topic, queues, cluster=cluster)

    brokers = with_client(nameserver, work)
    text = f"topic {topic} has {queues} queues on each of: {', '.join(brokers)}"
    print_result(text, {"topic": topic, "queues": queues, "brokers": list(brokers)}, as_json)


@topic_commands.command()
@topic_parameter()
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option()
@nameserver_option
def delete(topic: str, yes: bool, as_json: bool, nameserver: str) -> None:
    """Delete a topic with its messages on every master, and from the nameservers."""
    from gantrymq.client.errors import NoRoute
    from gantrymq.operations.topics import all_queues, is_routed

    async def count(client: Client) -> int:
        try:
            queues = all_queues(topic, await client.admin.route(topic))
        except NoRoute:
            # A nameserver that could not be reached by an earlier deletion still has the topic.
            if not await is_routed(client, topic):
                raise
            return 0
        return sum([await client.admin.max_offset(queue) - await client.admin.min_offset(queue) for queue in queues])

    messages = with_client(nameserver, count)
    if not yes:
        confirm(f"delete topic {topic} with {messages} messages?")
    with_client(nameserver, lambda client: client.admin.delete_topic(topic))
    print_result(f"topic {topic} is deleted, with {messages} messages", {"topic": topic, "messages": messages}, as_json)


@topic_commands.command()
@topic_parameter()
@click.option("--from", "start", default="first", show_default=True, metavar="first|last|TIME")
@click.option("--queue", type=click.IntRange(min=0), metavar="N", help="Only the queues with this id.")
@click.option("--max", "limit", type=click.IntRange(min=1), metavar="N", help="End after N messages.")
@click.option("--follow", is_flag=True, help="Wait for further messages at the end; Ctrl-C ends.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per message, with properties and offsets.")
@nameserver_option
def peek(
    topic: str, start: str, queue: int | None, limit: int | None, follow: bool, as_json: bool, nameserver: str
) -> int:
    """Print the messages of a topic, one per line, without a consumer group: nothing is committed.

    The order is kept within each queue.
    """
    from gantrymq.cli.delays import read_moment
    from gantrymq.cli.messages import print_all

    begin: Start = "first" if start == "first" else "last" if start == "last" else read_moment(start, "--from")

    async def work(client: Client) -> int:
        await client.admin.route(topic)
        until: Literal["end"] | None = None if follow else "end"
        async with client.reader(topic, start=begin, until=until) as reader:
            if queue is not None:
                chosen = [each for each in await client.admin.queues(topic) if each.queue_id == queue]
                if not chosen:
                    raise CommandFailed(f"topic {topic} has no queue {queue}")
                await reader.assign(chosen)
            return await print_all(reader, limit, as_json)

    return with_client(nameserver, work)


async def _check_existing(
    client: Client, name: str, queues: int, cluster: str | None, *, update: bool, force: bool, must_exist: bool
) -> None:
    """Refuse to change a topic without --update, to hide messages without --force, or to create one that must exist.

    Without --update a topic may be created on masters that lack it, if that does not change it on others.
    """
    from gantrymq.client.errors import NoRoute
    from gantrymq.operations.topics import all_queues

    try:
        route = await client.admin.route(name)
    except NoRoute:
        if must_exist:
            raise CommandFailed(f"topic {name} does not exist; gantrymq topic create creates it") from None
        return
    brokers = {data.broker_name for data in route.broker_datas if cluster in (None, data.cluster)}
    present = [data for data in route.queue_datas if data.broker_name in brokers]
    counts = {data.broker_name: data.read_queue_nums for data in present}
    if not counts:  # it exists in another cluster
        if must_exist and await _masters_of(client, cluster):
            advice = f"gantrymq topic create --cluster {cluster} creates it there"
            raise CommandFailed(f"topic {name} does not exist in cluster {cluster}; {advice}")
        return
    if not update:
        lacking = await _masters_of(client, cluster) - counts.keys()
        numbers = {number for data in present for number in (data.read_queue_nums, data.write_queue_nums)}
        if lacking and numbers == {queues}:
            return
        places = ", ".join(f"{count} queues on {broker}" for broker, count in sorted(counts.items()))
        can_add = lacking and len(numbers) == 1
        also = f"--queues {numbers.pop()} creates it on {', '.join(sorted(lacking))}, " if can_add else ""
        raise CommandFailed(f"topic {name} exists with {places}; {also}--update changes it")
    if force:
        return
    hidden = {}
    for queue in all_queues(name, route):
        if queue.broker_name in brokers and queue.queue_id >= queues:
            count = await client.admin.max_offset(queue) - await client.admin.min_offset(queue)
            if count > 0:
                hidden[f"queue {queue.queue_id} of {queue.broker_name}"] = count
    if hidden:
        raise CommandFailed(
            f"consumers could no longer read {sum(hidden.values())} messages of topic {name}, in {', '.join(hidden)}; "
            "--force removes the queues all the same"
        )


async def _masters_of(client: Client, cluster: str | None) -> set[str]:
    """The names of the brokers that have a master, of one cluster or of all."""
    from gantrymq.client.routes import MASTER_ID

    brokers = (await client.admin.cluster()).broker_addr_table
    return {
        name for name, data in brokers.items() if MASTER_ID in data.broker_addrs and cluster in (None, data.cluster)
    }


@topic_commands.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, one object per topic.")
@nameserver_option
def list_topics(as_json: bool, nameserver: str) -> None:
    """List all topics, including the brokers' system topics.

    In the JSON, `system` says that brokers create the topic themselves, as they do retry and dead-letter topics.
    """
    from gantrymq.operations.topics import is_brokers_topic, named_after

    async def work(client: Client) -> list[dict[str, Any]]:
        named = named_after(await client.admin.cluster())
        return [{"topic": name, "system": is_brokers_topic(name, named)} for name in await client.admin.topics()]

    rows = with_client(nameserver, work)
    click.echo(json.dumps(rows, indent=2) if as_json else "\n".join(row["topic"] for row in rows))


@topic_commands.command()
@topic_parameter()
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, one object per queue.")
@nameserver_option
def describe(topic: str, as_json: bool, nameserver: str) -> None:
    """Show the queues of a topic with their brokers and numbers of messages.

    Offsets count the messages of one queue: `min` is the oldest message that still exists, `max` the next one.
    """

    from gantrymq.operations.topics import all_queues

    async def work(client: Client) -> list[dict[str, Any]]:
        route = await client.admin.route(topic)
        perms = {data.broker_name: permission(data.perm) for data in route.queue_datas}
        rows = []
        for queue in all_queues(topic, route):
            low, high = await client.admin.min_offset(queue), await client.admin.max_offset(queue)
            place = {"broker": queue.broker_name, "queue": queue.queue_id, "perm": perms.get(queue.broker_name, "")}
            rows.append(place | {"min": low, "max": high, "messages": high - low})
        return rows

    rows = with_client(nameserver, work)
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    from gantrymq.cli.tables import print_table

    print_table(("broker", "queue", "perm", "min", "max", "messages"), [tuple(row.values()) for row in rows])


def permission(bits: int) -> str:
    """``read+write``, ``read``, ``write`` or ``none``."""
    return "+".join(word for bit, word in PERMISSIONS.items() if bits & bit) or "none"

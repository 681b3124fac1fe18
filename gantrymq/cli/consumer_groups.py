"""``gantrymq group``: list, describe, reset offsets, delete."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import attrs
import rich_click as click

from gantrymq.cli.connecting import nameserver_option, warn_of_missing_masters, with_client
from gantrymq.cli.delays import read_moment
from gantrymq.cli.failures import CommandFailed, warn
from gantrymq.cli.options import confirm, json_option, print_result
from gantrymq.cli.tables import plural, print_rows, print_table

if TYPE_CHECKING:
    from gantrymq.client import Client
    from gantrymq.client.groups import OffsetReset, QueueLag
    from gantrymq.operations.groups import Member, Overview


@click.group("group")
def group_commands() -> None:
    """List and describe consumer groups, reset their offsets, delete them."""


QUEUE_COLUMNS = ("topic", "broker", "queue", "committed", "end", "lag", "behind")


@group_commands.command("list")
@click.option("--system", is_flag=True, help="Include RocketMQ's own groups.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, one object per group.")
@nameserver_option
def list_groups(system: bool, as_json: bool, nameserver: str) -> None:
    """List the consumer groups with their connected members, their topics, and the messages that wait for them."""
    from gantrymq.client.groups import group_names
    from gantrymq.operations.groups import overview

    async def work(client: Client) -> list[Overview]:
        await warn_of_missing_masters(client)
        return await overview(client, await group_names(client.admin, system=system))

    print_rows(
        ("group", "members", "topics", "lag"), [attrs.asdict(row) for row in with_client(nameserver, work)], as_json
    )


@group_commands.command()
@click.argument("group")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@nameserver_option
def describe(group: str, as_json: bool, nameserver: str) -> None:
    """Show the members of a group, and its offset and lag in each queue.

    `behind` is how long the next message of the queue has waited, in seconds. Members whose subscriptions differ get
    only a part of each other's messages; the command warns about them.
    """
    from gantrymq.client.groups import group_lags
    from gantrymq.operations.groups import differing, group_members

    async def work(client: Client) -> tuple[list[Member], list[QueueLag]]:
        await warn_of_missing_masters(client)
        return await group_members(client, group, ask=True), await group_lags(client.admin, group, times=True)

    members, lags = with_client(nameserver, work)
    if not members and not lags:
        raise CommandFailed(f"no broker has members or offsets of a group {group}; gantrymq group list has the names")
    queues = _queue_rows(lags)
    if differing(members):
        warn(f"members of group {group} subscribe to different topics or expressions, so each misses messages")
    if as_json:
        rows = [attrs.asdict(member) for member in members]
        click.echo(json.dumps({"group": group, "members": rows, "queues": queues}, indent=2))
        return
    print_table(
        ("client_id", "address", "language", "subscriptions"),
        [(each.client_id, each.address, each.language, _expressions(each)) for each in members],
        title=plural(len(members), "member"),
    )
    print_rows(QUEUE_COLUMNS, queues, title=_waiting(lags))


@group_commands.command("lag")
@click.argument("group")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, one object per queue.")
@nameserver_option
def show_lag(group: str, as_json: bool, nameserver: str) -> None:
    """Show the offset and the lag of a group in each queue, without asking its members.

    `behind` is how long the next message of the queue has waited, in seconds.
    """
    from gantrymq.client.groups import group_lags

    async def work(client: Client) -> list[QueueLag]:
        await warn_of_missing_masters(client)
        return await group_lags(client.admin, group, times=True)

    lags = with_client(nameserver, work)
    if not lags:
        raise CommandFailed(f"no broker has offsets of a group {group}; gantrymq group list has the names")
    print_rows(QUEUE_COLUMNS, _queue_rows(lags), as_json, title=_waiting(lags))


def _waiting(lags: list[QueueLag]) -> str:
    count = sum(lag.lag for lag in lags)
    return f"{plural(count, 'message')} {'waits' if count == 1 else 'wait'}"


def _queue_rows(lags: list[QueueLag]) -> list[dict[str, Any]]:
    return [
        {
            "topic": lag.queue.topic,
            "broker": lag.queue.broker_name,
            "queue": lag.queue.queue_id,
            "committed": lag.committed,
            "end": lag.end,
            "lag": lag.lag,
            "behind": None if lag.behind_ms is None else round(lag.behind_ms / 1000, 1),
        }
        for lag in lags
    ]


@group_commands.command("reset-offsets")
@click.argument("group")
@click.option("--to", "to", required=True, metavar="first|last|TIME", help="Where to continue: 2026-11-21T20:00:00Z.")
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Only this topic. Repeatable.")
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, one object per queue.")
@nameserver_option
def reset_offsets(group: str, to: str, topics: tuple[str, ...], dry_run: bool, as_json: bool, nameserver: str) -> None:
    """Let a group continue at the first message, at the last, or at the first one stored at or after a time.

    Running members continue there at once. The group consumes messages again, or skips some.
    """
    from gantrymq.client import groups
    from gantrymq.operations.brokers import brokers_without_master
    from gantrymq.operations.groups import flat

    target = to if to in ("first", "last") else read_moment(to, "--to")

    async def work(client: Client) -> list[OffsetReset]:
        plan = await groups.plan_reset(client.admin, group, topics, target)
        for broker in () if topics else await brokers_without_master(client):
            warn(f"broker {broker} has no master now, so offsets of group {group} that only it has are left out")
        if dry_run:
            return plan
        done = await groups.reset_offsets(client.admin, group, plan, target)
        changed = {each.queue for each in done}
        for queue in (each.queue for each in plan if each.queue not in changed):
            left_out = f"broker {queue.broker_name} left out queue {queue.queue_id} of topic {queue.topic}"
            warn(f"{left_out}; it keeps its offset")
        return done

    resets = with_client(nameserver, work)
    print_rows(("topic", "broker", "queue", "before", "after"), [flat(each) for each in resets], as_json)
    click.echo(f"offsets of {plural(len(resets), 'queue')} {'would be set' if dry_run else 'set'}", err=True)


@group_commands.command()
@click.argument("group")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--force", is_flag=True, help="Delete a group that has members.")
@json_option()
@nameserver_option
def delete(group: str, yes: bool, force: bool, as_json: bool, nameserver: str) -> None:
    """Delete a group with its offsets, its retry topic and its dead letters on every master."""
    from gantrymq.client.topics import NOTHING_DELETED
    from gantrymq.operations.brokers import require_masters
    from gantrymq.operations.groups import delete_group, group_exists, group_members

    async def exists(client: Client) -> bool:
        await require_masters(client, NOTHING_DELETED)
        return await group_exists(client, group)

    if not with_client(nameserver, exists):
        raise CommandFailed(f"no broker knows a group {group}; gantrymq group list has the names")
    if not yes:
        confirm(f"delete group {group}, its offsets and its dead letters?")

    async def work(client: Client) -> None:
        if not force and (members := await group_members(client, group)):
            count = plural(len(members), "member")
            raise CommandFailed(f"group {group} has {count}; stop them first, or use --force")
        await delete_group(client, group)

    with_client(nameserver, work)
    print_result(f"group {group} is deleted", {"group": group, "deleted": True}, as_json)


def _expressions(member: Member) -> str:
    if member.subscriptions is None:
        return "-"
    return ", ".join(f"{topic}: {expression}" for topic, expression in sorted(member.subscriptions.items()))

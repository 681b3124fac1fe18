"""``gantrymq definitions``: export topics and groups with their settings, and import them."""

from __future__ import annotations

import json
from typing import IO, TYPE_CHECKING, Any

import rich_click as click

from gantrymq.cli.connecting import nameserver_option, with_client
from gantrymq.cli.failures import CommandFailed
from gantrymq.cli.progress import Meter
from gantrymq.cli.tables import plural, print_rows

if TYPE_CHECKING:
    from gantrymq.client import Client
    from gantrymq.operations.definitions import Change

FILE_MAX_BYTES = 64 * 1024 * 1024


@click.group()
def definitions() -> None:
    """Export topics and consumer groups with their settings, and import them into a cluster."""


@definitions.command("export")
@click.option("--file", type=click.File("w", atomic=True), default="-", metavar="FILE", help="Write to this file.")
@nameserver_option
def export_definitions(file: IO[str], nameserver: str) -> None:
    """Write the topics and groups of all masters as JSON, without messages and offsets."""
    from gantrymq.operations import definitions as work

    document = with_client(nameserver, work.export_definitions)
    file.write(json.dumps(document, indent=2) + "\n")
    counts = plural(len(document["topics"]), "topic"), plural(len(document["groups"]), "group")
    click.echo(f"exported {' and '.join(counts)}", err=True)


@definitions.command("import")
@click.argument("file", type=click.File("r", encoding="utf-8"))
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@click.option("--force", is_flag=True, help="Remove queues of topics that have more, even if they have messages.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, one object per change.")
@nameserver_option
def import_definitions(file: IO[str], dry_run: bool, force: bool, as_json: bool, nameserver: str) -> None:
    """Create the topics and groups of a file that are missing, and change those that differ. Nothing is deleted.

    An entry goes to the brokers that it names, or to all masters if the cluster has none of them. Consumers do not
    read messages in queues that were removed; the command changes nothing if a topic would lose queues, unless --force
    is given.
    """
    from gantrymq.operations import definitions as work

    try:
        text = file.read(FILE_MAX_BYTES + 1)
        if len(text) > FILE_MAX_BYTES:
            raise CommandFailed(f"{file.name} has more than {FILE_MAX_BYTES} bytes")
        document: Any = json.loads(text)
    except UnicodeDecodeError as error:
        raise CommandFailed(f"{file.name} is not UTF-8 text: {error}; export the definitions again") from None
    except (ValueError, RecursionError) as error:
        raise CommandFailed(f"{file.name} is not JSON: {error}") from None

    async def run(client: Client) -> list[Change]:
        changes = await work.plan_import(client, document)
        lost = [change for change in changes if change.removed_queues]
        if lost and not (force or dry_run):
            raise CommandFailed(
                f"topic {lost[0].name} would lose {lost[0].removed_queues} queues on {lost[0].broker}"
                f" ({len(lost)} such changes); nothing was changed; --dry-run lists them, --force makes them"
            )
        if not dry_run:
            with Meter("importing") as meter:
                await work.apply(client, changes, meter.set)
        return changes

    try:
        changes = with_client(nameserver, run)
    except work.BadDefinitions as error:
        raise CommandFailed(f"{file.name}: {error}") from None
    columns = ("kind", "name", "broker", "action", "removed_queues")
    print_rows(columns, [{name: getattr(change, name) for name in columns} for change in changes], as_json)
    made = "would be" if dry_run else "was" if len(changes) == 1 else "were"
    click.echo(f"{plural(len(changes), 'change')} {made} made", err=True)

"""``gantrymq client``: list the connected clients, disconnect one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import rich_click as click

from gantrymq.cli.connecting import nameserver_option, warn_of_missing_masters, with_client
from gantrymq.cli.failures import CommandFailed, warn
from gantrymq.cli.tables import print_rows
from gantrymq.remoting.versions import version_name

if TYPE_CHECKING:
    from gantrymq.client import Client
    from gantrymq.operations.clients import ConnectedClient, Disconnected


@click.group("client")
def client_commands() -> None:
    """List the connected producers and consumers, and disconnect one."""


@client_commands.command("list")
@click.option("--group", metavar="GROUP", help="Show only clients of this consumer or producer group.")
@click.option("--system", is_flag=True, help="Include RocketMQ's own groups.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, one object per client and group.")
@nameserver_option
def list_clients(group: str | None, system: bool, as_json: bool, nameserver: str) -> None:
    """List the clients that are connected to the masters, one row for each of their groups."""
    from gantrymq.operations.clients import connected_clients

    async def work(client: Client) -> list[ConnectedClient]:
        await warn_of_missing_masters(client)
        return await connected_clients(client, system=system)

    rows = [
        {**attrs.asdict(each), "version": version_name(each.version)}
        for each in with_client(nameserver, work)
        if group in (None, each.group)
    ]
    if not as_json:
        rows = [{**row, "brokers": " ".join(row["brokers"])} for row in rows]
    print_rows(("client_id", "kind", "group", "address", "language", "version", "brokers"), rows, as_json)


@client_commands.command()
@click.argument("client_id", metavar="CLIENT")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, one object per broker.")
@nameserver_option
def kick(client_id: str, as_json: bool, nameserver: str) -> None:
    """Close all connections of a client, which `gantrymq client list` shows by its id.

    Its queues go to the other members of its groups at once. Use it for a member that hangs: a client that works
    connects again; access control keeps one out. RocketMQ's brokers cannot do this. The exit code is 1 if no broker has
    closed a connection, or if a broker could not be asked.
    """
    from gantrymq.operations.clients import disconnect

    async def work(client: Client) -> list[Disconnected]:
        return await disconnect(client, client_id)

    rows = with_client(nameserver, work)
    print_rows(("broker", "address", "closed"), [attrs.asdict(each) for each in rows], as_json)
    failed = [each for each in rows if each.error is not None]
    for each in failed:
        warn(f"{each.broker} ({each.address}): {each.error}")
    if not any(each.closed for each in rows):
        raise CommandFailed(f"no connection of client {client_id} was closed; gantrymq client list has the ids")
    if failed:
        raise CommandFailed(f"{len(failed)} of {len(rows)} brokers have not closed the client's connections")

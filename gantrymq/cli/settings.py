"""``gantrymq config``: show and change the settings of running brokers and nameservers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, TypeVar

import rich_click as click

from gantrymq.cli.connecting import nameserver_option, with_client
from gantrymq.cli.failures import CommandFailed
from gantrymq.cli.options import json_option, print_result
from gantrymq.cli.tables import print_rows, print_table

if TYPE_CHECKING:
    from gantrymq.client import Client

F = TypeVar("F", bound=Callable[..., Any])


def _server_options(function: F) -> F:
    broker = click.option(
        "--broker", metavar="NAME|HOST:PORT", help="Only this broker, or the broker at this address; default all."
    )
    nameservers = click.option("--nameservers", is_flag=True, help="The nameservers' settings instead of the brokers'.")
    return broker(nameservers(function))


@click.group()
def config() -> None:
    """Show and change the settings of running brokers and nameservers."""


@config.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@_server_options
@json_option("Print a JSON list, one object per server.")
@nameserver_option
def show(names: tuple[str, ...], broker: str | None, nameservers: bool, as_json: bool, nameserver: str) -> None:
    """Show the settings NAME, or all; `*` stands for any text.

    GantryMQ's brokers have each setting under RocketMQ's name (fileReservedTime), if there is one, and under their own
    (plugin.retention.keep).
    """
    from gantrymq.operations.settings import read_settings

    async def ask(client: Client, address: str) -> dict[str, str]:
        found = await read_settings(client, address, nameserver=nameservers)
        return {
            name: value for name, value in found.items()
            if not names or any(fnmatchcase(name, pattern) for pattern in names)
        }  # fmt: skip

    rows = with_client(nameserver, _on_each(broker, nameservers, ask))
    if as_json:
        print_rows(
            (), [{"server": row["server"], "address": row["address"], "settings": row["answer"]} for row in rows], True
        )
        return
    if names and not any(row["answer"] for row in rows):
        raise CommandFailed(f"no server has a setting {', '.join(names)}")
    cells = [(row["server"], name, value) for row in rows for name, value in row["answer"].items()]
    print_table(("server", "name", "value"), cells)


@config.command("set")
@click.argument("changes", nargs=-1, required=True, metavar="NAME=VALUE...")
@_server_options
@json_option("Print a JSON list, one object per server that has changed.")
@nameserver_option
def set_(changes: tuple[str, ...], broker: str | None, nameservers: bool, as_json: bool, nameserver: str) -> None:
    """Change settings while the servers run.

    Brokers keep the change for their next start; GantryMQ's have it in config/overrides.toml. Nameservers lose it when
    they stop. An error names the settings that a server can change.
    """
    from gantrymq.operations.settings import change_settings

    wanted = {}
    for change in changes:
        name, equals, value = change.partition("=")
        if not equals or not name.strip():
            raise click.UsageError(f"{change!r} is not NAME=VALUE")
        wanted[name.strip()] = value.strip()

    done: list[str] = []

    async def ask(client: Client, address: str) -> None:
        from gantrymq.client.errors import GantryError

        try:
            await change_settings(client, address, wanted, nameserver=nameservers)
        except GantryError as error:
            so_far = f"; changed already: {', '.join(done)}" if done else ""
            text = str(error)
            named = text if text.startswith(address) else f"{address}: {text}"
            raise CommandFailed(f"{named}{so_far}") from None
        done.append(address)

    rows = with_client(nameserver, _on_each(broker, nameservers, ask))
    result = [{"server": row["server"], "address": row["address"]} for row in rows]
    if as_json:
        print_rows((), result, True)
    else:
        for row in result:
            print_result(f"{row['server']} at {row['address']}: changed {', '.join(wanted)}", {}, False)


def _on_each(
    broker: str | None, nameservers: bool, ask: Callable[[Client, str], Awaitable[Any]]
) -> Callable[[Client], Awaitable[list[dict[str, Any]]]]:
    async def work(client: Client) -> list[dict[str, Any]]:
        from gantrymq.operations.settings import servers

        found = await servers(client, broker, nameservers=nameservers)
        if not found:
            raise CommandFailed(f"the nameservers know no broker {broker}" if broker else "no broker is registered")
        return [
            {"server": label, "address": address, "answer": await ask(client, address)}
            for address, label in found.items()
        ]

    return work

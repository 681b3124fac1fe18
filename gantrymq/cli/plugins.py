"""``gantrymq plugins``: what is plugged in, and in which order it is called."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import rich_click as click

from gantrymq.cli.loading import ConfigFlags, config_options, load

if TYPE_CHECKING:
    from gantrymq.kernel.manager import PluginManager


@click.group()
def plugins() -> None:
    """Show the plugins."""


@plugins.command("list")
@config_options
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, one object per plugin, in call order.")
def list_plugins(as_json: bool, **flags: Any) -> None:
    """List the plugins that this configuration loads, in call order, and the hooks that each implements.

    The number at a hook is the plugin's place in that hook's call order.
    """
    rows = describe(load(ConfigFlags(**flags)).manager)
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    from gantrymq.cli.tables import print_table

    columns = ("order", "name", "version", "slot", "origin", "hooks")
    cells = [
        (
            row["order"],
            row["name"] + (" *" if row["essential"] else ""),
            row["version"],
            row["slot"] or "-",
            row["origin"],
            " ".join(f"{hook}:{place}" for hook, place in row["hooks"].items()),
        )
        for row in rows
    ]
    print_table(columns, cells)
    click.echo("* cannot be disabled")


def describe(manager: PluginManager) -> list[dict[str, Any]]:
    """One object a plugin, in the order of the configuration; ``hooks`` maps a hook to the place in its call order."""
    rows = []
    for order, info in enumerate(manager.plugins, 1):
        hooks = {}
        for name in info.hooks:
            # pluggy keeps the implementation that it calls first at the end of its list
            called = [
                implementation.plugin_name for implementation in reversed(getattr(manager.hook, name).get_hookimpls())
            ]
            hooks[name] = called.index(info.name) + 1
        rows.append(
            {
                "order": order,
                "name": info.name,
                "version": info.version,
                "origin": info.origin,
                "slot": info.slot,
                "essential": info.essential,
                "hooks": hooks,
            }
        )
    return rows

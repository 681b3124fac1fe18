"""``gantrymq plugins``: what is plugged in, and in which order it is called."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from gantrymq.cli.loading import ConfigFlags, Loaded, config_options, load

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


@plugins.command("show")
@click.argument("name")
@config_options
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def show_plugin(name: str, as_json: bool, **flags: Any) -> None:
    """Show one plugin that this configuration loads: purpose, settings with their origins, hooks in their call order.

    NAME is the plugin's name as `plugins list` prints it. The broker is not started.
    """
    loaded = load(ConfigFlags(**flags))
    found = explain(loaded, name)
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    from gantrymq.cli.tables import print_table
    from gantrymq.kernel.config.sources import show

    facts = ("version", "origin", "slot", "essential", "api_version", "on_error", "sources", "order")
    click.echo(f"{found['name']}: {found['purpose'] or 'says nothing of its purpose'}\n")
    for fact in facts:
        value = found[fact]
        text = ", ".join(value) if isinstance(value, list) else value
        if value is None or isinstance(value, bool):
            text = {None: "-", True: "yes", False: "no"}[value]
        click.echo(f"{fact.replace('_', ' '):<12}{text}")
    if found["config"]:
        click.echo(f"\n[{found['section']}]")
        rows = [(row["key"], show(row["value"]), f"{row['origin']} {row['source']}") for row in found["config"]]
        print_table(("key", "value", "origin"), rows)
    click.echo("\nhooks")
    print_table(("hook", "called", "of"), [(hook, place, of) for hook, (place, of) in found["hooks"].items()])


@plugins.command("new")
@click.argument("name")
@click.option(
    "--into",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=".",
    show_default=True,
    metavar="DIR",
    help="The folder in which the package gets its own folder.",
)
def new_plugin(name: str, into: Path) -> None:
    """Write a package for a new plugin: code, typed settings, entry point, tests, README and a CI file.

    NAME is the plugin's name, for example `order-audit`: the folder is `gantrymq-order-audit`, the module
    `gantrymq_order_audit`, the section of the configuration `[plugin.order_audit]`. The tests pass as they are.
    """
    from gantrymq.cli.plugin_project import check_name, write_project

    try:
        check_name(name)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="NAME") from None
    folder, files = write_project(name, into)
    click.echo(f"{folder}:")
    for file in files:
        click.echo(f"  {file}")
    click.echo(f"\nRun its tests: cd {folder} && pytest")


def explain(loaded: Loaded, name: str) -> dict[str, Any]:
    """What is known of the loaded plugin ``name``; ``StartError`` where there is none."""
    from gantrymq.kernel.config.declarations import PluginsSection
    from gantrymq.kernel.errors import StartError
    from gantrymq.kernel.hookspecs import GANTRYMQ_API
    from gantrymq.kernel.manager import did_you_mean
    from gantrymq.kernel.plugin_faults import PluginFaults

    manager = loaded.manager
    row = next((row for row in describe(manager) if row["name"] == name), None)
    if row is None:
        names = [info.name for info in manager.plugins]
        raise StartError(f"no plugin {name!r} is loaded{did_you_mean(name, names)}; `gantrymq plugins list` shows all")
    info = next(info for info in manager.plugins if info.name == name)
    section = loaded.config.section(PluginsSection)
    faults = PluginFaults(manager, section.skip_errors, section.disable_on_error)
    own = None
    if "config_section" in info.hooks:
        own = f"plugin.{info.plugin.config_section()[0]}"
    return {
        **row,
        "purpose": purpose_of(info.plugin),
        "api_version": getattr(info.plugin, "api_version", GANTRYMQ_API),
        "on_error": faults.policy_of(name),
        "sources": sorted(info.sources),
        "section": own,
        "config": [
            {"key": value.key, "value": value.value, "origin": value.origin, "source": value.source}
            for value in loaded.config.explain()
            if value.section == own
        ],
        "hooks": {hook: (place, len(manager.implementations(hook))) for hook, place in row["hooks"].items()},
    }


def purpose_of(plugin: Any) -> str:
    """The first paragraph of the docstring of the plugin's module, else of its class, as one line."""
    import inspect

    for thing in (sys.modules.get(type(plugin).__module__), type(plugin)):
        text = inspect.getdoc(thing) if thing is not None and thing.__doc__ else None
        if text:
            return " ".join(text.split("\n\n")[0].split())
    return ""


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

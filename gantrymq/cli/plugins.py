"""``gantrymq plugins``: the loaded plugins and their call order."""

from __future__ import annotations

import json
import re
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import rich_click as click

from gantrymq.cli.connecting import context_option
from gantrymq.cli.loading import ConfigFlags, Loaded, config_options, load
from gantrymq.cli.options import duration_option
from gantrymq.cli.plugin_activity import ask_broker, check_broker, live_lines

if TYPE_CHECKING:
    from gantrymq.kernel.manager import PluginManager

INTERVAL_MAX_S: Final = 60.0
FILES: Final = re.compile(r"\bFiles: (.+?)\.(?=\s|$)", re.DOTALL)
"""The sentence of a plugin's docstring that names its files."""


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
@click.option(
    "--broker",
    callback=check_broker,
    metavar="HOST:PORT",
    help="Ask this running broker as well: background tasks, request codes, files, metrics, errors so far.",
)
@context_option
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def show_plugin(name: str, broker: str | None, as_json: bool, **flags: Any) -> None:
    """Show one plugin that this configuration loads: purpose, files, settings with their origins, hooks in their call
    order.

    NAME is the plugin's name as `plugins list` prints it. No broker is started. With `--broker` the plugin need not be
    in this configuration, if that broker has it.
    """
    from gantrymq.kernel.errors import StartError

    live = None
    if broker is not None:
        import trio

        live = trio.run(partial(ask_broker, broker, plugin=name))["plugins"][0]
    try:
        found = explain(load(ConfigFlags(**flags)), name)
    except StartError:
        if live is None:
            raise
        found = None
    if as_json:
        click.echo(json.dumps({**(found or {"name": name}), **({} if live is None else {"live": live})}, indent=2))
        return
    if found is not None:
        _print_plugin(found)
    if live is not None:
        click.echo(f"{'' if found is None else chr(10)}{name} {live['version']} at {broker} ({live['origin']})")
        for line in live_lines(live):
            click.echo(line)


@plugins.command("trace")
@click.option(
    "--broker",
    callback=check_broker,
    default="127.0.0.1:10911",
    show_default=True,
    metavar="HOST:PORT",
    help="The running broker.",
)
@context_option
@duration_option("--seconds", 10.0, "How long to trace.")
@duration_option("--interval", 2.0, "The period that each table covers, a minute at most.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object per interval, one a line.")
def trace_plugins(broker: str, seconds: float, interval: float, as_json: bool) -> None:
    """Show what each plugin's hooks cost in a running broker, while this command runs.

    It times the hooks that get a batch: `rows` are its messages, requests, connections, topics or groups. `busy %` is
    the share of the broker's time. The broker times its hooks from the start of this command until some seconds after
    its end; otherwise that costs nothing.
    """
    import trio

    from gantrymq.cli.plugin_activity import trace

    if interval > INTERVAL_MAX_S:
        raise click.BadParameter(f"at most {INTERVAL_MAX_S:g} seconds", param_hint="--interval")
    trio.run(trace, broker, seconds, interval, as_json)


def _print_plugin(found: dict[str, Any]) -> None:
    from gantrymq.cli.tables import print_table
    from gantrymq.kernel.config.sources import show

    facts = ("version", "origin", "slot", "essential", "api_version", "on_error", "sources", "order", "files")
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
    """The description of the loaded plugin ``name``; ``StartError`` if there is none."""
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
        "files": files_of(info.plugin),
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


def files_of(plugin: Any) -> str | None:
    """What the docstring of the plugin's module says after ``Files:``, as one line; None if it says nothing."""
    module = sys.modules.get(type(plugin).__module__)
    found = FILES.search((module.__doc__ if module is not None else None) or "")
    return None if found is None else " ".join(found[1].split()).replace("``", "")


def describe(manager: PluginManager) -> list[dict[str, Any]]:
    """One object for each plugin, in the order of the configuration; ``hooks`` has the place in the call order of each
    hook."""
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

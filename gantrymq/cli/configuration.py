"""``gantrymq check-config`` and ``gantrymq print-config``."""

from __future__ import annotations

import json
from typing import Any

import rich_click as click

from gantrymq.cli.loading import ConfigFlags, config_options, load
from gantrymq.cli.options import json_option, print_result
from gantrymq.cli.tables import plural


@click.command("check-config")
@json_option("Print the counts as a JSON object.")
@config_options
def check_config(as_json: bool, **flags: Any) -> None:
    """Check a configuration without starting anything.

    The command reports all unknown sections and keys, wrong types and values out of range at once, with exit code 2.
    """
    loaded = load(ConfigFlags(**flags))
    given = sum(row.origin != "default" for row in loaded.config.explain())
    plugins = len(loaded.manager.plugins)
    text = f"ok: {plural(plugins, 'plugin')}, {plural(given, 'value')} set, the others are defaults"
    print_result(text, {"plugins": plugins, "values_set": given}, as_json)


@click.command("print-config")
@config_options
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, one object per value.")
def print_config(as_json: bool, **flags: Any) -> None:
    """Print each value with its origin: default, file, override, environment or flag.

    The output is TOML and can be used as a configuration file, to which secrets must be added: they are not shown.
    """
    import attrs

    from gantrymq.kernel.config.fields import HIDDEN
    from gantrymq.kernel.config.sources import show, show_key, show_section

    rows = load(ConfigFlags(**flags)).config.explain()
    if as_json:
        click.echo(json.dumps([attrs.asdict(row, filter=lambda field, _: bool(field.repr)) for row in rows], indent=2))
        return
    assignments = [
        f"# {row.key} is set, not shown" if row.value == HIDDEN else f"{show_key(row.key)} = {show(row.value)}"
        for row in rows
    ]
    width = max(len(text) for text in assignments)
    section = ""
    for row, text in zip(rows, assignments, strict=True):
        if row.section != section:
            click.echo(("\n" if section else "") + show_section(row.section))
            section = row.section
        source = f" {row.source}" if row.source else ""
        click.echo(f"{text.ljust(width)}  # {row.origin}{source}")

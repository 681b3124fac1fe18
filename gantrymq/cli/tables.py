"""Tables on stdout: with rules in a terminal, aligned columns otherwise."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click


def print_rows(
    columns: Sequence[str], rows: Sequence[Mapping[str, Any]], as_json: bool = False, *, title: str = ""
) -> None:
    """A table of ``columns`` of ``rows``, with "-" for None; or all of ``rows`` as a JSON list."""
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    else:
        cells = [tuple("-" if row[name] is None else row[name] for name in columns) for row in rows]
        print_table(columns, cells, title)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], title: str = "") -> None:
    """Print one line for each row, with numbers aligned to the right."""
    texts = [[str(cell) for cell in row] for row in rows]
    right = [bool(rows) and all(isinstance(row[index], int | float) for row in rows) for index in range(len(columns))]
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(title=title or None, title_justify="left")
        for name, is_number in zip(columns, right, strict=True):
            table.add_column(name, justify="right" if is_number else "left", overflow="fold")
        for row in texts:
            table.add_row(*(Text(cell) for cell in row))
        Console().print(table)
        return
    widths = [max(len(name), *(len(row[index]) for row in texts), 0) for index, name in enumerate(columns)]
    if title:
        click.echo(title)
    for line in (columns, *texts):
        cells = [
            cell.rjust(width) if is_number else cell.ljust(width)
            for cell, width, is_number in zip(line, widths, right, strict=True)
        ]
        click.echo("  ".join(cells).rstrip())


def plural(count: int, one: str, many: str = "") -> str:
    """Return the number with its noun: ``1 group``, ``2 groups``."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"

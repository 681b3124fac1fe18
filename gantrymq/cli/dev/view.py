"""The output of ``gantrymq dev up``: a live table in a terminal, lines otherwise, JSON objects with ``--json``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from gantrymq.cli.servers import print_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from gantrymq.cli.dev.plan import Plan

Row = dict[str, Any]
COLUMNS: Final = ("server", "id", "role", "address", "pid", "state", "offset", "lag_bytes", "lag_seconds")
"""The columns of a row; ``id``, ``role``, ``offset`` and the lags are None if they are unknown or do not apply."""
LASTING: Final = ("server", "id", "role", "address", "pid", "state")
"""The columns whose changes print a line; the others change continuously."""

STYLES: Final = {"starting": "dim", "ready": "", "ended": "dim"}
"""The style of a row by its state; a server that did not end cleanly is red."""


class View(Protocol):
    """Receives the cluster's events."""

    def ready(self, plan: Plan, rows: Sequence[Row]) -> None:
        """All members are ready."""

    def show(self, rows: Sequence[Row]) -> None:
        """Show the current state; called about once a second."""

    def close(self) -> None:
        """All members have ended."""


class Lines:
    """Prints a line for each member at first, and for each change, as text or as a JSON object."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._printed: dict[str, tuple[Any, ...]] = {}

    def ready(self, plan: Plan, rows: Sequence[Row]) -> None:
        """Print the members, then ``ready`` with the addresses for clients."""
        self.show(rows)
        if self._as_json:
            print_line(json.dumps({"event": "ready", "nameserver": plan.nameservers, "data": str(plan.folder)}))
        else:
            print_line(f"ready nameserver={plan.nameservers} data={plan.folder}")

    def show(self, rows: Sequence[Row]) -> None:
        """Print the members that have changed."""
        for row in rows:
            lasting = tuple(row[name] for name in LASTING)
            if self._printed.get(row["address"]) != lasting:
                self._printed[row["address"]] = lasting
                if self._as_json:
                    print_line(json.dumps({"event": "server", **row}))
                else:
                    print_line(" ".join(f"{name}={row[name]}" for name in LASTING if row[name] is not None))

    def close(self) -> None:
        """Print that all members have ended."""
        print_line(json.dumps({"event": "stopped"}) if self._as_json else "stopped")


class LiveTable:
    """A table that is redrawn in place."""

    def __init__(self, console: Console | None = None) -> None:
        from rich.live import Live

        self._live = Live(console=console, auto_refresh=False)
        self._caption = ""

    def ready(self, plan: Plan, rows: Sequence[Row]) -> None:
        """Draw the first table, with the addresses for clients below it."""
        self._caption = f"--nameserver '{plan.nameservers}'   data {plan.folder}   Ctrl-C stops all"
        self._live.start()
        self.show(rows)

    def show(self, rows: Sequence[Row]) -> None:
        """Redraw the table."""
        self._live.update(table_of(rows, self._caption), refresh=True)

    def close(self) -> None:
        """Leave the last table on the screen."""
        self._live.stop()
        print_line("stopped")


def table_of(rows: Sequence[Row], caption: str) -> Table:
    """The rows as a table for a terminal."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE, pad_edge=False, caption=caption, caption_justify="left")
    for name in ("server", "id", "role", "address", "pid", "state", "log end", "lag"):
        right = name in ("id", "pid", "log end", "lag")
        table.add_column(name, justify="right" if right else "left", no_wrap=name in ("server", "address"))
    for row in rows:
        cells = [row[name] for name in LASTING]
        style = STYLES.get(row["state"], "red")
        table.add_row(*(Text(text, style) for text in (*map(_text, cells), _text(row["offset"]), _lag(row))))
    return table


def _text(value: object) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) and value >= 100_000 else str(value)


def _lag(row: Row) -> str:
    if row["lag_bytes"] is None:
        return "-"
    seconds = "" if row["lag_seconds"] is None else f", {row['lag_seconds']:.1f} s"
    return f"{row['lag_bytes']:,} B{seconds}"

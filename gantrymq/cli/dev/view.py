"""What ``gantrymq dev up`` shows: a table that lives in a terminal, lines elsewhere, JSON objects when asked for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from gantrymq.cli.servers import say

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from gantrymq.cli.dev.plan import Plan

Row = dict[str, Any]
COLUMNS: Final = ("server", "id", "role", "address", "pid", "state", "offset", "lag_bytes", "lag_seconds")
"""Of a row; ``id``, ``role``, ``offset`` and the lags are None where they are not known, or there are none."""
LASTING: Final = ("server", "id", "role", "address", "pid", "state")
"""A change of one of these prints a line; the others change all the time."""

STYLES: Final = {"starting": "dim", "ready": "", "ended": "dim"}
"""Of a row by its state; what ended otherwise than in order is red."""


class View(Protocol):
    """Receives the cluster's events."""

    def ready(self, plan: Plan, rows: Sequence[Row]) -> None:
        """All members serve."""

    def show(self, rows: Sequence[Row]) -> None:
        """How they are now, about once a second."""

    def close(self) -> None:
        """All have ended."""


class Lines:
    """A line for each member at first and whenever one changes, as text or as a JSON object."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._printed: dict[str, tuple[Any, ...]] = {}

    def ready(self, plan: Plan, rows: Sequence[Row]) -> None:
        """The members, then ``ready`` with what clients need."""
        self.show(rows)
        if self._as_json:
            say(json.dumps({"event": "ready", "nameserver": plan.nameservers, "data": str(plan.folder)}))
        else:
            say(f"ready nameserver={plan.nameservers} data={plan.folder}")

    def show(self, rows: Sequence[Row]) -> None:
        """Those that are others than before."""
        for row in rows:
            lasting = tuple(row[name] for name in LASTING)
            if self._printed.get(row["address"]) != lasting:
                self._printed[row["address"]] = lasting
                if self._as_json:
                    say(json.dumps({"event": "server", **row}))
                else:
                    say(" ".join(f"{name}={row[name]}" for name in LASTING if row[name] is not None))

    def close(self) -> None:
        """A last word."""
        say(json.dumps({"event": "stopped"}) if self._as_json else "stopped")


class LiveTable:
    """One table that is drawn anew in its place."""

    def __init__(self, console: Console | None = None) -> None:
        from rich.live import Live

        self._live = Live(console=console, auto_refresh=False)
        self._caption = ""

    def ready(self, plan: Plan, rows: Sequence[Row]) -> None:
        """The first table, with what clients need below it."""
        self._caption = f"--nameserver '{plan.nameservers}'   data {plan.folder}   Ctrl-C stops all"
        self._live.start()
        self.show(rows)

    def show(self, rows: Sequence[Row]) -> None:
        """The table as of now."""
        self._live.update(table_of(rows, self._caption), refresh=True)

    def close(self) -> None:
        """The last table stays."""
        self._live.stop()
        say("stopped")


def table_of(rows: Sequence[Row], caption: str) -> Table:
    """The rows for human eyes."""
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

"""``gantrymq top``: the rates of brokers and groups and the lag of groups, live in a terminal or as JSON."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import attrs
import rich_click as click

from gantrymq.cli.connecting import nameserver_option, with_client
from gantrymq.cli.failures import warn
from gantrymq.cli.options import duration_option, json_option
from gantrymq.cli.tables import plural, print_rows

if TYPE_CHECKING:
    from rich.console import Console, Group

    from gantrymq.client import Client
    from gantrymq.operations.load import Load

INTERVAL_S: Final = 2.0
ONCE_S: Final = 6.0
WINDOW_S: Final = 10.0
"""The rates of groups are measured over this time, because members commit their offsets every 5 seconds."""
BROKER_COLUMNS: Final = ("broker", "address", "stored/s", "delivered/s", "disk", "state")
GROUP_COLUMNS: Final = ("group", "members", "stored/s", "consumed/s", "lag", "behind", "state")
STATE_STYLES: Final = {"ok": "green", "slow": "yellow"}
"""The others are red."""


@click.command()
@duration_option("--interval", None, "The time between two samples; default 2s, and 6s with --once.")
@click.option("--max", "limit", type=click.IntRange(min=1), default=20, show_default=True, help="Show N groups.",
              metavar="N")  # fmt: skip
@click.option("--once", is_flag=True, help="Print the load of one interval and end.")
@json_option("Print a JSON object for each interval, one per line; with --once one document.")
@nameserver_option
def top(interval: float | None, limit: int, once: bool, as_json: bool, nameserver: str) -> None:
    """Show the rates of all brokers, and the rates and lag of the consumer groups with the most waiting messages.

    `behind` is how long the oldest waiting message of a group has waited. A group is `slow` if messages wait and more
    were stored than consumed, and `stopped` if messages wait and no member is connected or none was consumed in 5
    seconds or more. The rates of groups are those of the last 10 seconds, as members commit their offsets every 5
    seconds. Ctrl-C ends the command.
    """
    from gantrymq.cli.signals import ending_by_signal

    async def work(client: Client) -> None:
        import trio

        scope = trio.CancelScope()
        with ending_by_signal(scope.cancel), scope:
            await _watch(client, interval or (ONCE_S if once else INTERVAL_S), once, _view(limit, once, as_json))

    with_client(nameserver, work)


async def _watch(client: Client, interval: float, once: bool, view: View) -> None:
    import trio

    from gantrymq.operations.load import load_between, take_sample
    from gantrymq.remoting.errors import GantryError

    with view:
        samples = deque([await take_sample(client)])
        while True:
            await trio.sleep(interval)
            try:
                sample = await take_sample(client)
            except GantryError as error:
                if once:
                    raise
                view.show_error(str(error))
                continue
            while len(samples) > 1 and sample.at - samples[1].at >= WINDOW_S:
                samples.popleft()
            view.show(load_between(samples[-1], sample, samples[0]))
            if once:
                return
            samples.append(sample)


# -------------------------------------------------------------------------------------------------------------- views


class View:
    """Prints each load with a function."""

    def __init__(self, print_load: Callable[[Load], None]) -> None:
        self._print = print_load

    def __enter__(self) -> View:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def show(self, load: Load) -> None:
        """Print the load of an interval."""
        self._print(load)
        sys.stdout.flush()

    def show_error(self, text: str) -> None:
        """Report that no sample could be taken."""
        warn(text)


class LiveView(View):
    """Redraws the whole terminal."""

    def __init__(self, limit: int, console: Console | None = None) -> None:
        from rich.live import Live

        super().__init__(lambda load: self._live.update(_tables(load, limit), refresh=True))
        self._live = Live(console=console, auto_refresh=False, screen=True)

    def __enter__(self) -> View:
        from rich.text import Text

        self._live.start()
        self._live.update(Text("waiting for the first interval"), refresh=True)
        return self

    def __exit__(self, *_error: object) -> None:
        self._live.stop()

    def show_error(self, text: str) -> None:
        """Report that no sample could be taken, until the next one."""
        from rich.text import Text

        self._live.update(Text(f"no sample: {text}", style="red"), refresh=True)


def _view(limit: int, once: bool, as_json: bool) -> View:
    if as_json:
        return View(lambda load: click.echo(json.dumps(as_fields(load, limit), indent=2 if once else None)))
    if once or not sys.stdout.isatty():
        return View(lambda load: _print_tables(load, limit))
    return LiveView(limit)


def as_fields(load: Load, limit: int) -> dict[str, Any]:
    """The load with its ``limit`` first groups, as JSON has it."""
    fields = attrs.asdict(load)
    return {**fields, "groups": fields["groups"][:limit], "groups_total": len(load.groups)}


def _broker_rows(load: Load) -> list[dict[str, Any]]:
    return [
        {
            "broker": each.broker,
            "address": each.address,
            "stored/s": each.stored_per_second,
            "delivered/s": each.delivered_per_second,
            "disk": None if each.disk_ratio is None else f"{each.disk_ratio:.0%}",
            "state": each.state,
        }
        for each in load.brokers
    ]


def _group_rows(load: Load, limit: int) -> list[dict[str, Any]]:
    return [
        {
            "group": each.group,
            "members": each.members,
            "stored/s": each.stored_per_second,
            "consumed/s": each.consumed_per_second,
            "lag": each.lag,
            "behind": None if each.behind_ms is None else f"{each.behind_ms / 1000:.1f}s",
            "state": each.state,
        }
        for each in load.groups[:limit]
    ]


def _title(load: Load) -> str:
    stored, delivered = (
        sum(getattr(each, name) or 0.0 for each in load.brokers)
        for name in ("stored_per_second", "delivered_per_second")
    )
    waiting = sum(each.lag for each in load.groups)
    groups = plural(len(load.groups), "group")
    return f"{stored:.1f} stored/s, {delivered:.1f} delivered/s, {waiting} messages wait in {groups}"


def _print_tables(load: Load, limit: int) -> None:
    print_rows(BROKER_COLUMNS, _broker_rows(load), title=_title(load))
    click.echo("")
    print_rows(GROUP_COLUMNS, _group_rows(load, limit))


def _tables(load: Load, limit: int) -> Group:
    from rich import box
    from rich.console import Group as Stack
    from rich.table import Table
    from rich.text import Text

    tables = []
    for columns, rows in ((BROKER_COLUMNS, _broker_rows(load)), (GROUP_COLUMNS, _group_rows(load, limit))):
        table = Table(box=box.SIMPLE_HEAD, expand=True)
        for name in columns:
            table.add_column(name, justify="left" if name in ("broker", "address", "group", "state") else "right")
        for row in rows:
            style = STATE_STYLES.get(row["state"], "red")
            cells = (
                Text("-" if row[name] is None else str(row[name]), style if name == "state" else "") for name in columns
            )
            table.add_row(*cells)
        tables.append(table)
    return Stack(Text(_title(load), style="bold"), *tables, Text("Ctrl-C ends", style="dim"))

"""What the plugins of a running broker do: the live part of ``plugins show``, and ``plugins trace``."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any, Final

import rich_click as click

from gantrymq.cli.connecting import connect_settings, use_everywhere
from gantrymq.cli.failures import CommandFailed

RESPONSE_S: Final = 5.0
COLUMNS: Final = ("plugin", "hook", "calls/s", "rows/s", "us/call", "us/row", "busy %")


def check_broker(_context: object, _parameter: object, address: str | None) -> str | None:
    """For an option whose value is a broker's address."""
    from gantrymq.remoting.address import parse_address

    if address is not None:
        try:
            parse_address(address)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None
    return address


async def ask_broker(address: str, plugin: str | None = None, measure_seconds: int = 0) -> dict[str, Any]:
    """The answer of the broker at ``address`` to DESCRIBE_PLUGINS; :class:`CommandFailed` when it knows no such one."""
    from gantrymq.remoting.channel import open_channel
    from gantrymq.remoting.codes import RequestCode, ResponseCode
    from gantrymq.remoting.command import Command
    from gantrymq.remoting.headers.brokers import DescribePluginsHeader

    use_everywhere(connect_settings())
    header = DescribePluginsHeader(plugin_name=plugin, measure_seconds=measure_seconds)
    async with open_channel(address) as channel:
        answer = await channel.call(Command(RequestCode.DESCRIBE_PLUGINS, header.to_ext()), RESPONSE_S)
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        raise CommandFailed(
            f"{address} does not describe its plugins: it is a broker of RocketMQ, an older one, or a nameserver"
        )
    if answer.code != ResponseCode.SUCCESS:
        raise CommandFailed(f"{address}: {answer.remark or f'code {answer.code}'}")
    found: dict[str, Any] = json.loads(answer.body)
    return found


def live_lines(plugin: dict[str, Any]) -> Iterator[str]:
    """What a running broker says of one plugin, as text."""
    tasks = (f"{name} ({state})" for name, state in plugin["tasks"].items())
    yield f"background tasks  {', '.join(tasks) or '-'}"
    yield f"request codes     {', '.join(_code_name(code) for code in plugin['request_codes']) or '-'}"
    yield f"files written     {', '.join(plugin['files']) or '-'}"
    for name, metric in plugin["metrics"].items():
        shown = f"{metric['series']} series" if metric["value"] is None else f"{metric['value']:g}"
        yield f"metric            {name} = {shown}"
    if plugin["kept_messages_refused"]:
        yield f"refused           {plugin['kept_messages_refused']} times a message that the broker keeps"
    for place, error in plugin["errors"].items():
        yield f"error             {place}: {error['count']} times, last {error['last']}"
    if not plugin["errors"]:
        yield "errors            none since the start"


def _code_name(code: int) -> str:
    from gantrymq.remoting.codes import RequestCode

    try:
        return f"{code} {RequestCode(code).name}"
    except ValueError:
        return str(code)


def hook_costs(before: dict[str, Any], after: dict[str, Any]) -> list[dict[str, Any]]:
    """What each plugin's hooks cost between two answers of a broker, the most expensive first.

    ``busy_percent``: of the time between them, in which the broker's thread did nothing else.
    """
    elapsed = after["seconds"] - before["seconds"]
    earlier = {row["name"]: row["hooks"] for row in before["plugins"]}
    rows = []
    for plugin in after["plugins"]:
        for hook, now in plugin["hooks"].items():
            then = earlier.get(plugin["name"], {}).get(hook, {})
            calls, handled, seconds = (now.get(key, 0) - then.get(key, 0) for key in ("calls", "rows", "seconds"))
            if calls > 0 and elapsed > 0:
                rows.append(
                    {
                        "plugin": plugin["name"],
                        "hook": hook,
                        "calls_per_second": calls / elapsed,
                        "rows_per_second": handled / elapsed,
                        "microseconds_per_call": seconds / calls * 1e6,
                        "microseconds_per_row": seconds / handled * 1e6 if handled else None,
                        "busy_percent": seconds / elapsed * 100,
                    }
                )
    return sorted(rows, key=lambda row: -float(row["busy_percent"]))


async def trace(address: str, seconds: float, interval: float, as_json: bool) -> None:
    """Print what hooks cost in each interval, until ``seconds`` have passed. The broker times them for as long."""
    import trio

    from gantrymq.cli.tables import print_table

    measured = math.ceil(2 * interval + RESPONSE_S)
    before = await ask_broker(address, measure_seconds=measured)
    for _ in range(max(round(seconds / interval), 1)):
        await trio.sleep(interval)
        after = await ask_broker(address, measure_seconds=measured)
        rows = hook_costs(before, after)
        if as_json:
            click.echo(json.dumps({"seconds": after["seconds"] - before["seconds"], "hooks": rows}))
        else:
            cells = [
                (row["plugin"], row["hook"], *(_rounded(value) for value in list(row.values())[2:])) for row in rows
            ]
            print_table(COLUMNS, cells, f"{after['seconds'] - before['seconds']:.1f} s")
            if not rows:
                click.echo("no plugin was called with a batch")
        before = after


def _rounded(value: float | None) -> float | str:
    return "-" if value is None else round(value, 1 if value >= 10 else 2)

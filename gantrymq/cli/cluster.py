"""``gantrymq cluster``: show brokers, roles and replication lag; promote a slave."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import rich_click as click

from gantrymq.cli.connecting import nameserver_option, with_client
from gantrymq.cli.failures import CommandFailed
from gantrymq.cli.options import duration_option, json_option, print_result
from gantrymq.cli.tables import print_rows
from gantrymq.cli.watch import watch
from gantrymq.failover.brokers import (
    COLUMNS,
    REFUSING,
    RESPONSE_S,
    UNREACHABLE,
    add_lags_of_silent_slaves,
    ask_broker,
    broker_rows,
)

if TYPE_CHECKING:
    from gantrymq.client import Client

PROMOTED_S: Final = 30.0
"""The default time for a slave to come back as a master, in seconds."""
PROMOTED_POLL_S: Final = 0.2
MISSING: Final = "missing"


@click.group()
def cluster() -> None:
    """Show the brokers of a cluster, and promote a slave after its master failed."""


cluster.add_command(watch)


@cluster.command()
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, one object per broker.")
@nameserver_option
def status(as_json: bool, nameserver: str) -> None:
    """Show the role, the address and the replication lag of each broker.

    `offset` is the end of the broker's commit log, in bytes. `lag_seconds` is how long a slave has been behind its
    master; RocketMQ's brokers do not report it. A broker that does not respond is `unreachable`; the lag of a
    slave that hangs is then the one that its master reports, if the slave is the only one on its host. A broker that
    responds with an error, or whose certificate is not accepted, is `refusing`. A `fenced` master refuses messages
    because another broker was promoted (`epoch`). A master is `missing` if the nameservers know only slaves of its
    name. `not_ready` is why clients cannot work with the broker, such as a full disk. `not_promotable` is why a slave
    refuses a promotion, such as a flag that sets its `broker.id`.
    """
    found = with_client(nameserver, broker_rows)
    add_lags_of_silent_slaves(found)
    for row in found:
        row["not_ready"] = row["not_ready"] or row["refusal"] or None
        row["not_promotable"] = row["not_promotable"] or None
    rows = with_missing_masters(found)
    print_rows(COLUMNS, [{column: row[column] for column in COLUMNS} for row in rows], as_json)


def with_missing_masters(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """``rows`` with a row before the slaves of each master that no nameserver knows."""
    masters = {row["broker"] for row in rows if row["id"] == 0}
    result: list[dict[str, Any]] = []
    for row in rows:
        if row["broker"] not in masters:
            masters.add(row["broker"])
            known = {name: row[name] for name in ("cluster", "broker")}
            result.append(dict.fromkeys(COLUMNS) | known | {"id": 0, "role": MISSING})
        result.append(row)
    return result


@cluster.command()
@click.argument("name")
@click.option(
    "--id", "number", type=click.IntRange(min=1), help="The slave's id; default the one with the most complete log."
)
@click.option("--accept-loss", is_flag=True, help="Promote even if acknowledged messages may be lost.")
@duration_option(
    "--response-timeout", RESPONSE_S, "How long each broker may take to respond. A hung broker costs this once."
)
@duration_option("--timeout", PROMOTED_S, "How long the slave may take to be back as the master.")
@json_option()
@nameserver_option
def promote(
    name: str, number: int | None, accept_loss: bool, response_timeout: float, timeout: float, as_json: bool,
    nameserver: str,
) -> None:  # fmt: skip
    """Promote a slave of the broker NAME to master after its master failed.

    The slave restarts as a master within its process and continues its log. The command refuses while the master
    responds: stop the master first. It can come back as a slave (broker.id above 0).

    The promotion begins a new epoch. The command first sends it to all slaves, which then acknowledge nothing more to
    the old master; if the old master continues, it is fenced. The command refuses if a slave does not respond, if
    another slave has a longer log than the one with this id, or if its log lacks the beginning of its master's. It
    reports each step on stderr.
    """

    async def work(client: Client) -> str:
        from gantrymq.failover import promotion

        try:
            promoted = await promotion.promote(
                name,
                partial(broker_rows, client, response_timeout),
                number=number,
                accept_loss=accept_loss,
                response_timeout=response_timeout,
                report=_report,
            )
        except promotion.PromotionRefused as refusal:
            raise CommandFailed(str(refusal)) from None
        await _wait_promoted(client, name, promoted.address, response_timeout, timeout)
        return promoted.address

    address = with_client(nameserver, work)
    print_result(f"{name}: {address} is the master", {"broker": name, "master": address}, as_json)


def _report(text: str) -> None:
    click.echo(text, err=True)


async def _wait_promoted(client: Client, name: str, address: str, response_timeout: float, timeout: float) -> None:
    """Wait until routes of the nameserver have the broker as the master, and the broker responds.

    It calls no other broker, because a hung master would cost its timeout again.
    """
    import trio

    _report(f"waiting for {address} to come back as the master, {timeout:g} s at most")
    with trio.move_on_after(timeout):
        while True:
            data = (await client.admin.cluster()).broker_addr_table.get(name)
            if data is not None and data.broker_addrs.get(0) == address:
                row: dict[str, Any] = {"id": 0, "role": UNREACHABLE}
                await ask_broker(row, address, response_timeout)
                if row["role"] not in (UNREACHABLE, REFUSING):
                    return
            await trio.sleep(PROMOTED_POLL_S)
    raise CommandFailed(
        f"{address} has not come back as the master in {timeout:g} s: see its log; --timeout lets it take longer"
    )

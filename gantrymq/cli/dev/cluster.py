"""A local cluster from its start to its end: processes in order, their state once a second, and a clean stop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import trio

from gantrymq.cli.dev.plan import Plan
from gantrymq.cli.dev.process import MemberProcess
from gantrymq.cli.dev.view import View
from gantrymq.cli.failures import CommandFailed
from gantrymq.cli.signals import ending_by_signal
from gantrymq.client import Client, connect
from gantrymq.failover.brokers import broker_rows
from gantrymq.remoting.errors import GantryError

SHOW_SECONDS: Final = 1.0
ASK_SECONDS: Final = 5.0


async def run_cluster(plan: Plan, view: View) -> None:
    """Run the cluster until a signal arrives, or all members have ended by themselves (:class:`CommandFailed`).

    If a member does not start, all are stopped and :class:`CommandFailed` is raised. A member that ends later is shown
    but not restarted.
    """
    servers = [MemberProcess(member, plan.folder) for member in plan.members]
    stop = trio.Event()
    with ending_by_signal(stop.set):
        try:
            async with trio.open_nursery() as nursery:

                async def end() -> None:
                    await stop.wait()
                    nursery.cancel_scope.cancel()

                nursery.start_soon(end)
                await _start(servers)
                view.ready(plan, _rows(servers, []))
                await _supervise(plan, servers, view)
        finally:
            with trio.CancelScope(shield=True):
                await _stop(servers)
            view.show(_rows(servers, []))
            view.close()


async def _start(servers: Sequence[MemberProcess]) -> None:
    """Start nameservers first: brokers print `ready` when the nameservers know them."""
    await _each([server.start for server in servers if server.member.number is None])
    await _each([server.start for server in servers if server.member.number is not None])


async def _stop(servers: Sequence[MemberProcess]) -> None:
    """Stop masters, then slaves, then nameservers: a server ends after those that depend on it."""
    for wanted in (lambda number: number == 0, lambda number: number is not None, lambda _: True):
        await _each([server.stop for server in servers if wanted(server.member.number)])


async def _each(works: Sequence[Callable[[], Awaitable[None]]]) -> None:
    async with trio.open_nursery() as nursery:
        for work in works:
            nursery.start_soon(work)


async def _supervise(plan: Plan, servers: Sequence[MemberProcess], view: View) -> None:
    async with connect(plan.nameservers) as client:
        while any(server.code is None for server in servers):
            view.show(_rows(servers, await _ask(client)))
            await trio.sleep(SHOW_SECONDS)
    raise CommandFailed(f"all servers have ended; their logs are in {plan.folder}")


async def _ask(client: Client) -> list[dict[str, Any]]:
    """The brokers' statuses; empty while no nameserver answers."""
    with trio.move_on_after(ASK_SECONDS):
        try:
            return await broker_rows(client)
        except GantryError:
            return []
    return []


def _rows(servers: Sequence[MemberProcess], statuses: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each server by :data:`gantrymq.cli.dev.view.COLUMNS`; a broker's id may have changed since its
    start."""
    by_address = {row["address"]: row for row in statuses}
    rows = []
    for server in servers:
        member, code = server.member, server.code
        known = by_address.get(member.address, {})
        alive = code is None and known.get("role") is not None
        rows.append(
            {
                "server": member.name,
                "id": known["id"] if alive else member.number,
                "role": "nameserver" if member.number is None else known["role"] if alive else None,
                "address": member.address,
                "pid": server.pid or None,
                "state": f"ended ({code})" if code else server.state,
                "offset": known.get("offset") if alive else None,
                "lag_bytes": known.get("lag_bytes") if alive else None,
                "lag_seconds": known.get("lag_seconds") if alive else None,
            }
        )
    return rows

"""What the commands that talk to a cluster share: the option for the nameserver, and a client inside a trio loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import rich_click as click

if TYPE_CHECKING:
    from gantrymq.client import Client

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def nameserver_option(function: F) -> F:
    """The option ``--nameserver``."""
    return click.option(
        "--nameserver",
        default="127.0.0.1:9876",
        show_default=True,
        envvar="GANTRYMQ_NAMESERVER",
        show_envvar=True,
        metavar="HOST:PORT[;HOST:PORT]",
        help="Nameservers of the cluster, ours or RocketMQ's.",
    )(function)


def check_nameserver(nameserver: str) -> None:
    """An address that is none is wrong usage."""
    from gantrymq.remoting.address import parse_address

    try:
        for item in nameserver.split(";"):
            parse_address(item)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--nameserver") from None


def with_client(nameserver: str, work: Callable[[Client], Awaitable[T]]) -> T:
    """Run ``work`` with a connected client to its end. Raises what it raises, an address that is none as usage."""
    import trio

    from gantrymq.client import connect

    check_nameserver(nameserver)

    async def main() -> T:
        async with connect(nameserver) as client:
            return await work(client)

    return trio.run(main)

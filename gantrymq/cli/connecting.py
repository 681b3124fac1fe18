"""Shared parts of the commands that connect to a cluster: options for nameservers, and a client in a loop."""

from __future__ import annotations

import os
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import rich_click as click

from gantrymq.cli import contexts

if TYPE_CHECKING:
    from gantrymq.client import Client

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def nameserver_option(function: F) -> F:
    """The options ``--nameserver`` and ``--context``, of which the function gets the first."""
    nameserver = click.option(
        "--nameserver",
        default="127.0.0.1:9876",
        show_default=True,
        envvar=contexts.NAMESERVER_VARIABLES,
        show_envvar=True,
        callback=contexts.chosen_nameserver,
        metavar="HOST:PORT[;HOST:PORT]",
        help="Nameservers of the cluster, GantryMQ's or RocketMQ's.",
    )
    return nameserver(_context(function, contexts.choose))


def context_option(function: F) -> F:
    """The option ``--context`` of a command that addresses brokers themselves: keys and TLS settings of it count."""
    return _context(function, contexts.choose_connection)


def _context(function: F, callback: Callable[[click.Context, click.Parameter, str | None], None]) -> F:
    return click.option(
        "--context",
        envvar=contexts.VARIABLE,
        show_envvar=True,
        callback=callback,
        expose_value=False,
        is_eager=True,
        metavar="NAME",
        help="Nameservers, keys and TLS settings that `gantrymq context add` has kept under this name.",
    )(function)


def check_nameserver(nameserver: str) -> None:
    """Refuse an invalid address as wrong usage."""
    from gantrymq.client.addresses import is_discovery_url, parse_nameservers

    try:
        if not is_discovery_url(nameserver):
            parse_nameservers(nameserver)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--nameserver") from None


_CONNECT_VARIABLES: Final = {
    "GANTRYMQ_ACCESS_KEY": "access_key",
    "GANTRYMQ_SECRET_KEY": "secret_key",
    "GANTRYMQ_SECURITY_TOKEN": "security_token",
}
"""Environment variables and not options, because other users of a machine can read the arguments of a process."""
UNVERIFIED: Final = "unverified"
"""The value of ``GANTRYMQ_TLS`` for servers in test mode: every certificate is accepted."""
_FALSE: Final = frozenset({"", "0", "false", "no", "off"})


def connect_settings(environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """How to connect: the arguments of ``gantrymq.connect`` that the command's context or ``environment`` sets.

    A context replaces the environment's variables.
    """
    from gantrymq.remoting.signing import Credentials

    chosen = contexts.chosen_environment()
    environment = environment if chosen is None else chosen
    found: dict[str, Any] = {
        name: environment[variable] for variable, name in _CONNECT_VARIABLES.items() if environment.get(variable)
    }
    try:
        Credentials.checked(*(found.get(name) for name in _CONNECT_VARIABLES.values()))
    except ValueError:
        raise click.UsageError("GANTRYMQ_ACCESS_KEY and GANTRYMQ_SECRET_KEY must be set together") from None
    authorities = environment.get("GANTRYMQ_TLS_CA")
    wanted = environment.get("GANTRYMQ_TLS", "").lower()
    if wanted == UNVERIFIED:
        if authorities:
            raise click.UsageError(f"GANTRYMQ_TLS={UNVERIFIED} verifies nothing: unset it, or GANTRYMQ_TLS_CA")
        found["tls"] = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        found["tls"].check_hostname = False
        found["tls"].verify_mode = ssl.CERT_NONE
    elif authorities or wanted not in _FALSE:
        try:
            found["tls"] = ssl.create_default_context(cafile=authorities or None)
        except OSError as error:
            raise click.UsageError(f"GANTRYMQ_TLS_CA: {authorities} holds no certificates: {error}") from None
    return found


def use_everywhere(settings: Mapping[str, Any]) -> None:
    """Sign and encrypt all requests of this task and of those that it starts, also those without a client.

    ``settings``: those of :func:`connect_settings`.
    """
    from gantrymq.remoting.channel import OUTGOING, Outgoing
    from gantrymq.remoting.signing import Credentials

    credentials = Credentials.checked(*(settings.get(name) for name in _CONNECT_VARIABLES.values()))
    OUTGOING.set(Outgoing(tls=settings.get("tls"), sign=None if credentials is None else credentials.sign))


def with_client(nameserver: str, work: Callable[[Client], Awaitable[T]]) -> T:
    """Run ``work`` with a connected client to its end. Raises its errors, and an invalid address as wrong usage."""
    import trio

    from gantrymq.client import connect

    check_nameserver(nameserver)
    settings = connect_settings()

    async def main() -> T:
        use_everywhere(settings)
        async with connect(nameserver, **settings) as client:
            return await work(client)

    return trio.run(main)

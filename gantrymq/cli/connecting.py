"""Shared parts of the commands that connect to a cluster: options for nameservers, and a client in a loop.

Commands of plugins use them too: ``docs/reference/plugin-api.md`` lists the functions that are part of the plugin API.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import rich_click as click

from gantrymq.cli import contexts

if TYPE_CHECKING:
    from gantrymq.client import Client

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def nameserver_option(function: F) -> F:
    """Decorate a command: add the options ``--nameserver`` and ``--context``. The function gets an argument
    ``nameserver``, the text of the option, the variable or the context that takes precedence."""
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


def optional_nameserver_option(function: F) -> F:
    """As :func:`nameserver_option`, for a command that also works without a cluster: ``nameserver`` is None unless
    ``--nameserver`` or ``--context`` is on the command line. Keys and TLS settings may come from the current context.
    """
    nameserver = click.option(
        "--nameserver",
        callback=contexts.given_nameserver,
        metavar="HOST:PORT[;HOST:PORT]",
        help="Nameservers to ask. Without this and --context no nameserver is asked.",
    )
    return nameserver(_context(function, contexts.choose))


def context_option(function: F) -> F:
    """Decorate a command that addresses brokers themselves: add the option ``--context``, whose keys and TLS settings
    count."""
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
        help="Use the connection settings that `gantrymq context add` saved under this name.",
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
_FALSE: Final = frozenset({"", "0", "false", "no", "off"})


def connect_settings(environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return how to connect: the arguments of ``gantrymq.connect`` that the command's context sets, or without a
    context the variables ``GANTRYMQ_ACCESS_KEY``, ``GANTRYMQ_SECRET_KEY``, ``GANTRYMQ_SECURITY_TOKEN``,
    ``GANTRYMQ_TLS`` and ``GANTRYMQ_TLS_CA`` of ``environment``. Raises ``click.UsageError``."""
    from gantrymq.remoting.tls import UNVERIFIED, FollowedContext, client_context

    found: dict[str, Any] = _keys(environment)
    tls, authority = tls_settings(environment)
    if tls:
        try:
            make = partial(client_context, authority, verify=tls != UNVERIFIED)
            found["tls"] = FollowedContext(make, authority) if authority else make()
        except OSError as error:
            raise click.UsageError(f"GANTRYMQ_TLS_CA: {authority} holds no certificates: {error}") from None
    return found


def plain_settings() -> dict[str, str]:
    """Return what :func:`connect_settings` says as texts, for another process.

    ``access_key``, ``secret_key`` and ``security_token`` are there if they are set; ``tls`` is ``verified``,
    ``unverified``, or empty without TLS; ``authority`` is a file of trusted certificates or empty. Raises
    ``click.UsageError``.
    """
    tls, authority = tls_settings()
    return {**_keys(os.environ), "tls": tls, "authority": authority}


def tls_settings(environment: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """``verified``, ``unverified`` or an empty text for no TLS, and the file of the authority, if one is named."""
    from gantrymq.remoting.tls import UNVERIFIED, VERIFIED

    environment = _effective(environment)
    authority = environment.get("GANTRYMQ_TLS_CA") or ""
    wanted = environment.get("GANTRYMQ_TLS", "").lower()
    if wanted == UNVERIFIED:
        if authority:
            raise click.UsageError(f"GANTRYMQ_TLS={UNVERIFIED} verifies nothing: unset it, or GANTRYMQ_TLS_CA")
        return UNVERIFIED, ""
    return VERIFIED if authority or wanted not in _FALSE else "", authority


def _keys(environment: Mapping[str, str]) -> dict[str, str]:
    from gantrymq.remoting.signing import Credentials

    environment = _effective(environment)
    found = {name: environment[variable] for variable, name in _CONNECT_VARIABLES.items() if environment.get(variable)}
    try:
        Credentials.checked(*(found.get(name) for name in _CONNECT_VARIABLES.values()))
    except ValueError:
        raise click.UsageError("GANTRYMQ_ACCESS_KEY and GANTRYMQ_SECRET_KEY must be set together") from None
    return found


def _effective(environment: Mapping[str, str]) -> Mapping[str, str]:
    chosen = contexts.chosen_environment()
    return environment if chosen is None else chosen


def use_everywhere(settings: Mapping[str, Any]) -> None:
    """Sign and encrypt all requests of this task and of those that it starts, also those without a client.

    ``settings``: those of :func:`connect_settings`.
    """
    from gantrymq.client.connect_options import outgoing_of
    from gantrymq.remoting.channel import OUTGOING

    OUTGOING.set(outgoing_of(settings))


def with_client(nameserver: str, work: Callable[[Client], Awaitable[T]]) -> T:
    """Run ``work(client)``, an async function, with a connected :class:`gantrymq.client.Client`; return its result.

    Raises its errors, and ``click.UsageError`` for an invalid address or setting.
    """
    import trio

    from gantrymq.client import connect

    check_nameserver(nameserver)
    settings = connect_settings()

    async def main() -> T:
        use_everywhere(settings)
        async with connect(nameserver, **settings) as client:
            return await work(client)

    return trio.run(main)


async def warn_of_missing_masters(client: Client) -> None:
    """Name the brokers without a master in warnings: what is shown of the cluster lacks what only they have."""
    from gantrymq.cli.failures import warn
    from gantrymq.operations.brokers import brokers_without_master

    for broker in await brokers_without_master(client):
        warn(f"broker {broker} has no master now, so what only it has is missing")

"""Shared parts of the commands that change accounts and users of running brokers, one broker after the other."""

from __future__ import annotations

import os
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs
import rich_click as click

from gantrymq.cli.connecting import connect_settings, use_everywhere
from gantrymq.cli.failures import CommandFailed
from gantrymq.cli.options import json_option
from gantrymq.cli.plugin_activity import check_broker
from gantrymq.cli.tables import print_rows

if TYPE_CHECKING:
    from gantrymq.remoting.channel import Channel
    from gantrymq.remoting.command import Command

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
RESPONSE_S: Final = 10.0
NEW_SECRET: Final = "GANTRYMQ_NEW_SECRET_KEY"  # noqa: S105 - the name of a variable
SECRET_BYTES: Final = 24
NO_ACCOUNTS: Final = "has no accounts: the plugin 'acl' is not enabled there"


def brokers_option(function: F) -> F:
    """The option ``--broker``, of which the function gets a list as ``brokers``."""
    return click.option(
        "--broker", "brokers", multiple=True, required=True, metavar="HOST:PORT",
        callback=lambda context, parameter, given: [check_broker(context, parameter, each) for each in given],
        help="The broker to change; repeat it for each broker of the cluster.",
    )(function)  # fmt: skip


def changes_json(function: F) -> F:
    """The option ``--json`` of a command that uses :func:`change_brokers`."""
    return json_option("Print a JSON list, one object per broker that has changed.")(function)


def secret_of_environment() -> str | None:
    """The secret key that :data:`NEW_SECRET` names."""
    return os.environ.get(NEW_SECRET) or None


@attrs.frozen
class NewSecret:
    """The secret key to set at all brokers; None keeps the one that they have."""

    key: str | None
    is_random: bool = False

    def shown(self, name: str) -> dict[str, str]:
        """What the JSON of a broker has of it: only a random one, which is not known otherwise."""
        return {name: self.key} if self.key is not None and self.is_random else {}


def choose_secret(
    account: str, given: str | None, brokers: Sequence[str], exists: Callable[[Channel], Awaitable[bool]]
) -> NewSecret:
    """The ``given`` secret key; without one a random one if the account exists at no broker.

    Raises :class:`CommandFailed` if it exists at some of them only: the others would get another secret key.
    ``account`` names it in that text.
    """
    if given is not None:
        return NewSecret(given)
    found = {broker: ask(broker, exists) for broker in brokers}
    if not any(found.values()):
        return NewSecret(secrets.token_urlsafe(SECRET_BYTES), is_random=True)
    if all(found.values()):
        return NewSecret(None)
    has, lacks = (" ".join(broker for broker, known in found.items() if known is wanted) for wanted in (True, False))
    raise CommandFailed(
        f"{account} exists at {has} but not at {lacks}, which would get another secret key; nothing has changed. Set "
        f"{NEW_SECRET} to the account's secret key, or to a new one for all of these brokers"
    )


def change_brokers(
    brokers: Sequence[str],
    work: Callable[[Channel], Awaitable[Mapping[str, Any]]],
    text: str,
    as_json: bool,
    secret: tuple[str, NewSecret] | None = None,
) -> None:
    """Change one broker after the other; print ``text`` for each, or a JSON list of what ``work`` returns.

    After an error the list has the brokers that have changed. A random ``secret`` is printed under its name at the end,
    also after an error: the brokers before it have it.
    """
    rows: list[Mapping[str, Any]] = []
    try:
        for broker in brokers:
            rows.append({"broker": broker, **ask(broker, work)})
            if not as_json:
                click.echo(f"{broker}: {text}")
    finally:
        if as_json:
            print_rows((), rows, as_json)
        elif secret is not None and secret[1].is_random:
            click.echo(f"{secret[0]}: {secret[1].key}")


def ask(broker: str, work: Callable[[Channel], Awaitable[T]]) -> T:
    """What ``work`` returns with a connection to ``broker`` whose requests are signed."""
    import trio

    from gantrymq.remoting.channel import open_channel

    settings = connect_settings()

    async def main() -> T:
        use_everywhere(settings)
        async with open_channel(broker) as channel:
            return await work(channel)

    return trio.run(main)


async def call(channel: Channel, command: Command, lacks: str = NO_ACCOUNTS) -> Command:
    """The successful answer; :class:`CommandFailed` for another. ``lacks``: what a refusal of the code means."""
    answer = await call_if_served(channel, command)
    if answer is None:
        raise CommandFailed(f"{channel.address} {lacks}")
    return answer


async def call_if_served(channel: Channel, command: Command) -> Command | None:
    """As :func:`call`; None from a broker that does not serve the code."""
    from gantrymq.remoting.codes import ResponseCode

    answer = await channel.call(command, RESPONSE_S)
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return None
    if answer.code != ResponseCode.SUCCESS:
        raise CommandFailed(f"{channel.address}: {answer.remark or f'code {answer.code}'}")
    return answer

"""``gantrymq acl users``: users and policies of RocketMQ 5, at running brokers of GantryMQ and of RocketMQ 5.3."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import rich_click as click

from gantrymq.cli.acl_brokers import (
    ask,
    brokers_option,
    call,
    change_brokers,
    changes_json,
    choose_secret,
    secret_of_environment,
)
from gantrymq.cli.connecting import context_option
from gantrymq.cli.failures import CommandFailed
from gantrymq.cli.plugin_activity import check_broker
from gantrymq.cli.tables import print_rows

if TYPE_CHECKING:
    from gantrymq.remoting.bodies.access import AclInfo, UserInfo
    from gantrymq.remoting.bodies.body import Body
    from gantrymq.remoting.channel import Channel
    from gantrymq.remoting.command import Command

B = TypeVar("B", bound="Body")
F = TypeVar("F", bound=Callable[..., Any])
ACTIONS: Final = ("All", "Pub", "Sub", "Create", "Update", "Delete", "Get", "List")
POLICIES: Final = ("Custom", "Default")
PREFIX: Final = "User:"
NO_USERS: Final = "has no users of RocketMQ 5: the plugin 'acl' is not enabled there, or has no `plugin.acl.users`"


@click.group("users")
def users() -> None:
    """List, create, change and delete the users of RocketMQ 5 of running brokers, and their policies.

    The brokers are GantryMQ's with `plugin.acl.users`, or those of RocketMQ 5.3. The requests are signed with the
    context's keys, or GANTRYMQ_ACCESS_KEY and GANTRYMQ_SECRET_KEY, which must be those of a super user.
    """


def _one_broker(function: F) -> F:
    return click.option("--broker", required=True, callback=check_broker, metavar="HOST:PORT", help="Ask this broker.")(
        function
    )


def _policy_option(function: F) -> F:
    return click.option(
        "--policy", type=click.Choice(POLICIES), default=POLICIES[0], show_default=True,
        help="Entries of `Default` count where no entry of `Custom` matches a request.",
    )(function)  # fmt: skip


@users.command("list")
@_one_broker
@context_option
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, one object per user.")
def list_users(broker: str, as_json: bool) -> None:
    """List the users of a broker, without passwords."""
    rows = [
        {"user": each.username, "type": each.user_type, "status": each.user_status}
        for each in sorted(ask(broker, _users_of), key=lambda each: each.username or "")
    ]
    print_rows(("user", "type", "status"), rows, as_json)


@users.command("set")
@click.argument("name")
@click.option("--type", "user_type", type=click.Choice(("Normal", "Super")), help="A super user may do everything.")
@click.option("--status", type=click.Choice(("enable", "disable")), help="Requests of a disabled user are refused.")
@click.option("--password-file", type=click.File("r", encoding="utf-8"), metavar="FILE",
              help="The file with the password; `-` reads stdin. A newline at its end is not part of it.")  # fmt: skip
@brokers_option
@context_option
@changes_json
def set_user(name: str, user_type: str | None, status: str | None, password_file: Any, brokers: list[str],
             as_json: bool) -> None:  # fmt: skip
    """Create a user, or change what the options name.

    The password, which is the secret key, comes from --password-file or GANTRYMQ_NEW_SECRET_KEY. Without one, a user
    keeps its password, and a new one gets a random password, which is printed once. Then the user must exist at all of
    the brokers or at none.
    """
    from gantrymq.remoting.bodies.access import UserInfo
    from gantrymq.remoting.codes import RequestCode
    from gantrymq.remoting.command import Command

    async def exists(channel: Channel) -> bool:
        return bool((await _call(channel, Command(RequestCode.AUTH_GET_USER, {"username": name}))).body)

    secret = choose_secret(f"user {name}", _password(password_file), brokers, exists)

    async def work(channel: Channel) -> dict[str, Any]:
        known = await exists(channel)
        code = RequestCode.AUTH_UPDATE_USER if known else RequestCode.AUTH_CREATE_USER
        body = UserInfo(name, secret.key, user_type, status).to_bytes()
        await _call(channel, Command(code, {"username": name}, body=body))
        return {"user": name, "created": not known} | secret.shown("password")

    change_brokers(brokers, work, f"user {name} is set", as_json, ("password", secret))


@users.command("delete")
@click.argument("name")
@brokers_option
@context_option
@changes_json
def delete_user(name: str, brokers: list[str], as_json: bool) -> None:
    """Delete a user with its policies."""
    from gantrymq.remoting.codes import RequestCode
    from gantrymq.remoting.command import Command

    async def work(channel: Channel) -> dict[str, Any]:
        await _call(channel, Command(RequestCode.AUTH_DELETE_USER, {"username": name}))
        return {"user": name, "deleted": True}

    change_brokers(brokers, work, f"user {name} is deleted", as_json)


@users.command()
@click.option("--user", "name", help="Only the policies of this user.")
@_one_broker
@context_option
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, one object per resource of a user.")
def policies(name: str | None, broker: str, as_json: bool) -> None:
    """List what the users of a broker may do."""
    rows = []
    for acl in ask(broker, _acls_of):
        user = (acl.subject or "").removeprefix(PREFIX)
        if name in (None, user):
            for policy in acl.policies or ():
                rows += [_row(user, policy.policy_type, entry, as_json) for entry in policy.entries or ()]
    rows.sort(key=lambda row: (row["user"], row["policy"] or "", row["resource"] or ""))
    print_rows(("user", "policy", "resource", "actions", "addresses", "decision"), rows, as_json)


@users.command()
@click.argument("name")
@click.argument("resources", nargs=-1, required=True, metavar="RESOURCE...")
@click.option("--action", "actions", multiple=True, required=True, type=click.Choice(ACTIONS), metavar="ACTION",
              help=f"One of {', '.join(ACTIONS)}; repeatable.")  # fmt: skip
@click.option("--deny", is_flag=True, help="Refuse the actions instead of allowing them.")
@click.option("--address", "addresses", multiple=True, metavar="ADDRESS",
              help="Only for clients from this address or network; repeatable.")  # fmt: skip
@_policy_option
@brokers_option
@context_option
@changes_json
def grant(name: str, resources: tuple[str, ...], actions: tuple[str, ...], deny: bool, addresses: tuple[str, ...],
          policy: str, brokers: list[str], as_json: bool) -> None:  # fmt: skip
    """Set what a user may do with each RESOURCE; its other resources stay.

    RESOURCE is such as `Topic:orders`, `Topic:orders-*`, `Group:billing` or `Cluster:*`. Quote `*`.
    """
    from gantrymq.remoting.bodies.access import AclInfo, PolicyEntryInfo, PolicyInfo
    from gantrymq.remoting.codes import RequestCode
    from gantrymq.remoting.command import Command

    decision = "Deny" if deny else "Allow"
    entries = [PolicyEntryInfo(each, list(actions), list(addresses) or None, decision) for each in resources]
    subject = PREFIX + name
    body = AclInfo(subject, [PolicyInfo(policy, entries)]).to_bytes()

    async def work(channel: Channel) -> dict[str, Any]:
        await _call(channel, Command(RequestCode.AUTH_CREATE_ACL, {"subject": subject}, body=body))
        granted = {"policy": policy, "resources": list(resources), "actions": list(actions), "decision": decision}
        return {"user": name, **granted}

    text = f"{decision} {','.join(actions)} on {' '.join(resources)} is set for {name} ({policy})"
    change_brokers(brokers, work, text, as_json)


@users.command()
@click.argument("name")
@click.argument("resources", nargs=-1, metavar="[RESOURCE...]")
@click.option("--all", "everything", is_flag=True, help="All entries of both policies of the user.")
@_policy_option
@brokers_option
@context_option
@changes_json
def revoke(name: str, resources: tuple[str, ...], everything: bool, policy: str, brokers: list[str],
           as_json: bool) -> None:  # fmt: skip
    """Delete what a policy of a user says about each RESOURCE, or with --all everything in both policies."""
    from gantrymq.remoting.codes import RequestCode
    from gantrymq.remoting.command import Command

    if everything == bool(resources):
        raise click.UsageError("name a RESOURCE, or give --all")
    subject = {"subject": PREFIX + name}

    async def work(channel: Channel) -> dict[str, Any]:
        fields: list[Mapping[str, str]] = [{"policyType": policy, "resource": each} for each in resources] or [{}]
        for each in fields:
            await _call(channel, Command(RequestCode.AUTH_DELETE_ACL, {**subject, **each}))
        return {"user": name, "resources": list(resources) or None, "revoked": True}

    change_brokers(brokers, work, f"{' '.join(resources) or 'every policy'} is revoked from {name}", as_json)


# -------------------------------------------------------------------------------------------------------- internals


def _password(file: Any) -> str | None:
    if file is None:
        return secret_of_environment()
    text: str = file.read().removesuffix("\n").removesuffix("\r")
    if not text.strip():
        raise CommandFailed("the file of --password-file has no password")
    return text


def _row(user: str, policy: str | None, entry: Any, as_json: bool) -> dict[str, Any]:
    actions, addresses = entry.actions or [], entry.source_ips or []
    return {
        "user": user,
        "policy": policy,
        "resource": entry.resource,
        "actions": actions if as_json else ",".join(actions),
        "addresses": addresses if as_json else ",".join(addresses),
        "decision": entry.decision,
    }


async def _call(channel: Channel, command: Command) -> Command:
    return await call(channel, command, NO_USERS)


def _list_in(body: bytes, kind: type[B]) -> list[B]:
    """The objects of a JSON list; a body without bytes has none."""
    from gantrymq.remoting import fastjson

    return [kind.from_value(each) for each in fastjson.loads(body) or ()] if body else []


def users_in(answer: Command) -> list[UserInfo]:
    """The users of a response to AUTH_LIST_USER."""
    from gantrymq.remoting.bodies.access import UserInfo

    return _list_in(answer.body, UserInfo)


def acls_in(answer: Command) -> list[AclInfo]:
    """The policies of a response to AUTH_LIST_ACL."""
    from gantrymq.remoting.bodies.access import AclInfo

    return _list_in(answer.body, AclInfo)


async def _users_of(channel: Channel) -> list[UserInfo]:
    from gantrymq.remoting.codes import RequestCode
    from gantrymq.remoting.command import Command

    return users_in(await _call(channel, Command(RequestCode.AUTH_LIST_USER, {})))


async def _acls_of(channel: Channel) -> list[AclInfo]:
    from gantrymq.remoting.codes import RequestCode
    from gantrymq.remoting.command import Command

    return acls_in(await _call(channel, Command(RequestCode.AUTH_LIST_ACL, {})))

"""``gantrymq acl explain``: whether a broker serves a request, and why; accounts and users of a file or of a broker."""

from __future__ import annotations

import functools
import hmac
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import rich_click as click

from gantrymq.cli.acl_brokers import NO_ACCOUNTS, ask, call, call_if_served
from gantrymq.cli.acl_users import acls_in, users_in
from gantrymq.cli.connecting import context_option
from gantrymq.cli.failures import CommandFailed
from gantrymq.cli.options import json_option, print_result
from gantrymq.cli.plugin_activity import check_broker

if TYPE_CHECKING:
    from gantrymq.plugins.acl.accounts import Accounts
    from gantrymq.plugins.acl.explain import Explanation
    from gantrymq.plugins.acl.users import UserDocument
    from gantrymq.remoting.bodies.access import AclConfigBody
    from gantrymq.remoting.channel import Channel
    from gantrymq.remoting.codes import RequestCode

F = TypeVar("F", bound=Callable[..., Any])
SHORT: Final = {"send": "SEND_MESSAGE", "consume": "PULL_MESSAGE", "transaction": "END_TRANSACTION",
                "admin": "UPDATE_AND_CREATE_TOPIC"}  # fmt: skip
"""Words for the requests that people ask about most."""
CLUSTER: Final = "DefaultCluster"


@click.command()
@click.argument("access_key")
@click.argument("request")
@click.option("--topic", default="", help="The topic of the request, or of the message that it names by its offset.")
@click.option("--group", default="", help="The consumer group.")
@click.option("--address", default="", metavar="HOST", help="The address from which the client connects.")
@click.option(
    "--file",
    "path",
    type=click.Path(exists=True, dir_okay=False),
    default=None,
    help="The file of the accounts, `plain_acl.yml`.",
)
@click.option(
    "--users",
    type=click.Path(exists=True, dir_okay=False),
    default=None,
    help="The file of RocketMQ 5's users, `plugin.acl.users`.",
)
@click.option("--cluster", default=CLUSTER, show_default=True, help="With a file: the broker's cluster.")
@click.option("--broker", callback=check_broker, metavar="HOST:PORT", help="Ask this broker.")
@context_option
@json_option()
def explain(access_key: str, request: str, topic: str, group: str, address: str, path: str | None,
            users: str | None, cluster: str, broker: str | None, as_json: bool) -> None:  # fmt: skip
    """Say whether a broker serves a request of ACCESS_KEY, and why.

    ACCESS_KEY is that of an account, or the name of a user of RocketMQ 5.
    REQUEST is `send`, `consume`, `transaction`, `admin`, or the name or number of a request code. Accounts and users
    come from a running broker, or from a file of one of them. With a file, the secret key in GANTRYMQ_SECRET_KEY is
    compared as well, if GANTRYMQ_ACCESS_KEY is ACCESS_KEY. The exit code is 1 if the request is refused.
    """
    from gantrymq.plugins.acl.explain import explain as explained
    from gantrymq.plugins.acl.explain import needed_names

    code = _code_of(request)
    if sum(given is not None for given in (path, users, broker)) != 1:
        raise click.UsageError("name the accounts: one of --file, --users and --broker")
    given: dict[str, Any] = {"topic": topic, "group": group}
    missing = [f"--{name}" for name in needed_names(code) if not given[name]]
    if missing:
        raise click.UsageError(f"{code.name} needs {' and '.join(missing)}")
    given["address"] = address
    secret: bytes | None = None
    if path is not None:
        accounts = read_accounts(path)
        found = explained(accounts, access_key, code, cluster=cluster, **given)
        account = accounts.by_key.get(access_key)
        secret = None if account is None else account.secret
    elif users is not None:
        document = _read_users(users)
        found = _explain_user(document, access_key, code, cluster=cluster, **given)
        user = document.users.get(access_key)
        secret = None if user is None else (user.password or "").encode("utf-8", "surrogatepass")
    else:
        found = _explain_at(broker or "", access_key, code, given)
    _print_decision(found, access_key, code, as_json, secret)


def needs_yaml(function: F) -> F:
    """The parser of the file of accounts is part of an extra."""

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except ModuleNotFoundError as error:
            raise CommandFailed(f"{error}; install it with `pip install 'gantrymq[acl]'`") from None

    return call  # type: ignore[return-value]


@needs_yaml
def read_accounts(path: str) -> Accounts:
    """The accounts of a file; :class:`CommandFailed` says what is wrong with it."""
    from gantrymq.plugins.acl.accounts import Accounts

    try:
        return Accounts.parse(Path(path).read_bytes())
    except ValueError as error:
        raise CommandFailed(f"{path}: {error}") from None


async def config_of(channel: Channel) -> AclConfigBody:
    """The accounts of a broker, without their secret keys; :class:`CommandFailed` if it has no access control."""
    from gantrymq.remoting.bodies.access import AclConfigBody
    from gantrymq.remoting.codes import RequestCode
    from gantrymq.remoting.command import Command

    return AclConfigBody.from_bytes((await call(channel, Command(RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG))).body)


# -------------------------------------------------------------------------------------------------------- internals


def _code_of(text: str) -> RequestCode:
    from gantrymq.remoting.codes import RequestCode
    from gantrymq.remoting.rights import BROKER_RIGHTS

    name = SHORT.get(text.lower(), text.upper().replace("-", "_"))
    try:
        code = RequestCode(int(text)) if text.isdigit() else RequestCode[name]
    except (KeyError, ValueError):
        raise click.BadParameter(
            f"{text!r}: expected {', '.join(SHORT)}, or a request code (docs/reference/request-codes.md)"
        ) from None
    if code not in BROKER_RIGHTS:
        raise click.BadParameter(f"brokers do not serve {code.name}")
    return code


def _read_users(path: str) -> UserDocument:
    from gantrymq.plugins.acl.users import UserDocument

    try:
        return UserDocument.parse(Path(path).read_bytes())
    except ValueError as error:
        raise CommandFailed(f"{path}: {error}") from None


def _explain_user(users: UserDocument, name: str, code: RequestCode, **given: Any) -> Explanation:
    from gantrymq.plugins.acl.explain import explain_user

    try:
        return explain_user(users, name, code, **given)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _explain_at(broker: str, name: str, code: RequestCode, given: dict[str, Any]) -> Explanation:
    """What the broker decides about its user or account ``name``; a user comes first, as in the broker."""
    from gantrymq.plugins.acl.explain import Explanation, explain
    from gantrymq.remoting.javaproperties import read_properties

    body, users, settings = ask(broker, lambda channel: _access_of(channel, name))
    accounts = None if body is None else _accounts_of(body)
    is_trusted = accounts is not None and bool(given["address"]) and accounts.addresses.matches(given["address"])
    properties = read_properties(settings)
    cluster = properties.get("brokerClusterName", CLUSTER)
    if users is not None and name in users.users and not is_trusted:
        # GantryMQ's name of the setting, and RocketMQ's
        needs_policies = properties.get("plugin.acl.authorization", properties.get("authorizationEnabled", "true"))
        is_authorized = needs_policies.lower() == "true"
        return _explain_user(users, name, code, cluster=cluster, authorization=is_authorized, **given)
    if accounts is not None and (users is None or is_trusted or name in accounts.by_key):
        return explain(accounts, name, code, cluster=cluster, **given)
    return Explanation(False, (f"no account has the access key {name!r}, and no user has this name",))


async def _access_of(channel: Channel, name: str) -> tuple[AclConfigBody | None, UserDocument | None, bytes]:
    """The broker's accounts and its users whose names have ``name``, each None where it has none, and its settings."""
    from gantrymq.plugins.acl.users import SUBJECT_PREFIX, UserDocument
    from gantrymq.remoting.bodies.access import AclConfigBody
    from gantrymq.remoting.codes import RequestCode
    from gantrymq.remoting.command import Command

    listed = await call_if_served(channel, Command(RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG))
    accounts = None if listed is None else AclConfigBody.from_bytes(listed.body)
    answer = await call_if_served(channel, Command(RequestCode.AUTH_LIST_USER, {"filter": name}))
    if answer is None:
        if accounts is None:
            raise CommandFailed(f"{channel.address} {NO_ACCOUNTS}")
        return accounts, None, await _settings_of(channel)
    users = UserDocument({user.username or "": user for user in users_in(answer)})
    policies = await call(channel, Command(RequestCode.AUTH_LIST_ACL, {"subjectFilter": SUBJECT_PREFIX + name}))
    users.acls = {acl.subject or "": acl for acl in acls_in(policies)}
    return accounts, users, await _settings_of(channel)


async def _settings_of(channel: Channel) -> bytes:
    from gantrymq.remoting.codes import RequestCode
    from gantrymq.remoting.command import Command

    return (await call(channel, Command(RequestCode.GET_BROKER_CONFIG))).body


@needs_yaml
def _accounts_of(body: AclConfigBody) -> Accounts:
    """The accounts of a broker, which does not show the secret keys: no signature can be checked with these."""
    from gantrymq.plugins.acl.accounts import Accounts, write_document

    entries = [
        {
            "accessKey": each.access_key,
            "secretKey": secrets.token_hex(),
            "whiteRemoteAddress": each.white_remote_address,
            "admin": each.admin,
            "defaultTopicPerm": each.default_topic_perm,
            "defaultGroupPerm": each.default_group_perm,
            "topicPerms": each.topic_perms,
            "groupPerms": each.group_perms,
        }
        for each in body.plain_access_configs
    ]
    document = {"globalWhiteRemoteAddresses": body.global_white_addrs, "accounts": entries}
    return Accounts.parse(write_document(document))


def _print_decision(
    found: Explanation, access_key: str, code: RequestCode, as_json: bool, secret: bytes | None = None
) -> None:
    """Print the reasons; :class:`CommandFailed` for a refusal. ``secret``: that of the account, if it is known."""
    reasons, allowed = list(found.reasons), found.allowed
    if secret is not None and not _is_same_secret(secret, access_key):
        reasons.append("the secret key in GANTRYMQ_SECRET_KEY is not that of the account: the signature would be wrong")
        allowed = False
    text = "\n".join([*reasons, *(["allowed"] if allowed else [])])
    fields = {"access_key": access_key, "request": code.name, "allowed": allowed, "reasons": reasons}
    print_result(text, fields, as_json)
    if not allowed:
        raise CommandFailed(f"refused: {code.name} of {access_key}")


def _is_same_secret(expected: bytes, access_key: str) -> bool:
    """Whether the secret key of the environment is the account's; also if there is none to compare."""
    secret = os.environ.get("GANTRYMQ_SECRET_KEY")
    if not secret or os.environ.get("GANTRYMQ_ACCESS_KEY") != access_key:
        return True
    return hmac.compare_digest(secret.encode("utf-8", "surrogateescape"), expected)

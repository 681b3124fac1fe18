"""``gantrymq acl``: check a file of accounts, explain decisions, change the accounts of running brokers."""

from __future__ import annotations

import functools
import hmac
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import rich_click as click

from gantrymq.cli.acl_brokers import (
    NewSecret,
    ask,
    brokers_option,
    call,
    change_brokers,
    changes_json,
    secret_of_environment,
)
from gantrymq.cli.acl_users import users as users_of_rocketmq5
from gantrymq.cli.connecting import context_option
from gantrymq.cli.failures import CommandFailed, warn
from gantrymq.cli.options import json_option, print_result
from gantrymq.cli.plugin_activity import check_broker
from gantrymq.cli.tables import print_rows

if TYPE_CHECKING:
    from gantrymq.plugins.acl.accounts import Accounts
    from gantrymq.plugins.acl.explain import Explanation
    from gantrymq.remoting.bodies.access import AccountConfig, AclConfigBody
    from gantrymq.remoting.channel import Channel
    from gantrymq.remoting.codes import RequestCode

F = TypeVar("F", bound=Callable[..., Any])
PERMISSIONS: Final = ("DENY", "PUB", "SUB", "PUB|SUB")
SHORT: Final = {"send": "SEND_MESSAGE", "consume": "PULL_MESSAGE", "transaction": "END_TRANSACTION",
                "admin": "UPDATE_AND_CREATE_TOPIC"}  # fmt: skip
"""Words for the requests that people ask about most."""


@click.group()
def acl() -> None:
    """Check and explain the accounts of brokers with access control, and change them."""


def _file_option(function: F) -> F:
    return click.option(
        "--file",
        "path",
        type=click.Path(exists=True, dir_okay=False),
        default=None,
        help="The file of the accounts, `plain_acl.yml`.",
    )(function)


def _one_broker(function: F) -> F:
    return click.option("--broker", callback=check_broker, metavar="HOST:PORT", help="Ask this broker.")(function)


@acl.command()
@click.argument("path", metavar="FILE", type=click.Path(exists=True, dir_okay=False), default="conf/plain_acl.yml")
@json_option()
def check(path: str, as_json: bool) -> None:
    """Check a file of accounts as a broker would read it, and warn about what is probably not meant.

    The exit code is 1 if a broker would refuse the file. No secret key is shown.
    """
    from gantrymq.plugins.acl.explain import warnings_of

    accounts = _read(path)
    texts = warnings_of(accounts)
    if Path(path).stat().st_mode & 0o077:
        texts.append(f"other users can read or change the file: chmod 600 {path}")
    for text in texts:
        warn(text)
    admins = sum(account.admin for account in accounts.by_key.values())
    text = f"{path}: {len(accounts.by_key)} accounts, {admins} of them admin, {len(texts)} warnings"
    fields = {"file": path, "accounts": len(accounts.by_key), "admins": admins, "warnings": texts}
    print_result(text, fields, as_json)


@acl.command()
@click.argument("access_key")
@click.argument("request")
@click.option("--topic", default="", help="The topic of the request, or of the message that it names by its offset.")
@click.option("--group", default="", help="The consumer group.")
@click.option("--address", default="", metavar="HOST", help="The address from which the client connects.")
@_file_option
@click.option(
    "--users",
    type=click.Path(exists=True, dir_okay=False),
    default=None,
    help="The file of RocketMQ 5's users, `plugin.acl.users`.",
)
@click.option("--cluster", default="DefaultCluster", show_default=True, help="With --users: the broker's cluster.")
@_one_broker
@context_option
@json_option()
def explain(access_key: str, request: str, topic: str, group: str, address: str, path: str | None,
            users: str | None, cluster: str, broker: str | None, as_json: bool) -> None:  # fmt: skip
    """Say whether a broker serves a request of ACCESS_KEY, and why.

    ACCESS_KEY is that of an account, or the name of a user of RocketMQ 5, for whom --users names the file.
    REQUEST is `send`, `consume`, `transaction`, `admin`, or the name or number of a request code. The accounts come
    from a file, or from a running broker. With a file, the secret key in GANTRYMQ_SECRET_KEY is compared as well, if
    GANTRYMQ_ACCESS_KEY is ACCESS_KEY. The exit code is 1 if the request is refused.
    """
    from gantrymq.plugins.acl.explain import explain as explained
    from gantrymq.plugins.acl.explain import needed_names

    code = _code_of(request)
    if sum(given is not None for given in (path, users, broker)) != 1:
        raise click.UsageError("name the accounts: one of --file, --users and --broker")
    given = {"topic": topic, "group": group}
    missing = [f"--{name}" for name in needed_names(code) if not given[name]]
    if missing:
        raise click.UsageError(f"{code.name} needs {' and '.join(missing)}")
    if users is not None:
        decision = _explain_user(users, access_key, code, cluster=cluster, address=address, **given)
        _print_decision(decision, access_key, code, as_json)
        return
    accounts = _read(path) if path is not None else _accounts_of(ask(broker or "", _config_of))
    found = explained(accounts, access_key, code, topic=topic, group=group, address=address)
    account = accounts.by_key.get(access_key) if path is not None else None
    _print_decision(found, access_key, code, as_json, None if account is None else account.secret)


acl.add_command(users_of_rocketmq5)


@acl.group()
def user() -> None:
    """List, create, change and delete the accounts of running brokers.

    Accounts are those of RocketMQ 4's `plain_acl.yml`; for users of RocketMQ 5 see `gantrymq acl users`.

    The requests are signed with the context's keys, or GANTRYMQ_ACCESS_KEY and GANTRYMQ_SECRET_KEY, which must be those
    of an admin account.
    """


@user.command("list")
@click.option("--broker", required=True, callback=check_broker, metavar="HOST:PORT", help="Ask this broker.")
@context_option
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, one object per account.")
def list_users(broker: str, as_json: bool) -> None:
    """List the accounts of a broker with their permissions, without secret keys."""
    body = ask(broker, _config_of)
    rows = [
        {
            "access_key": each.access_key,
            "admin": each.admin,
            "topic_default": each.default_topic_perm,
            "group_default": each.default_group_perm,
            "topics": each.topic_perms if as_json else " ".join(each.topic_perms or ()),
            "groups": each.group_perms if as_json else " ".join(each.group_perms or ()),
            "address": each.white_remote_address,
        }
        for each in body.plain_access_configs
    ]
    columns = ("access_key", "admin", "topic_default", "group_default", "topics", "groups", "address")
    print_rows(columns, rows, as_json)


@user.command("set")
@click.argument("access_key")
@click.option("--admin/--no-admin", default=None, help="Whether the account may administer.")
@click.option("--topic-default", type=click.Choice(PERMISSIONS), help="The permission for topics that are not listed.")
@click.option("--group-default", type=click.Choice(PERMISSIONS), help="The permission for groups that are not listed.")
@click.option("--address", default=None, help="The addresses at which the account needs no signature.")
@brokers_option
@context_option
@changes_json
def set_user(access_key: str, admin: bool | None, topic_default: str | None, group_default: str | None,
             address: str | None, brokers: list[str], as_json: bool) -> None:  # fmt: skip
    """Create an account, or change what the options name.

    GANTRYMQ_NEW_SECRET_KEY is the account's secret key. If it is not set, an account keeps its secret key, and a new
    one gets a random secret key, which is printed once.
    """
    secret = NewSecret(secret_of_environment())
    fields = {"defaultTopicPerm": topic_default, "defaultGroupPerm": group_default, "whiteRemoteAddress": address}

    async def work(channel: Channel) -> dict[str, Any]:
        found = _account_in(await _config_of(channel), access_key)
        chosen = secret.choose(found is not None)
        flag = admin if admin is not None else found is not None and found.admin
        await _update(channel, access_key, {**fields, "secretKey": chosen}, flag)
        return {"access_key": access_key} | secret.shown("secret_key", chosen)

    change_brokers(brokers, work, f"account {access_key} is set", as_json, ("secret key", secret))


@user.command("delete")
@click.argument("access_key")
@brokers_option
@context_option
@changes_json
def delete_user(access_key: str, brokers: list[str], as_json: bool) -> None:
    """Delete an account."""
    from gantrymq.remoting.codes import RequestCode
    from gantrymq.remoting.command import Command

    async def work(channel: Channel) -> dict[str, Any]:
        await call(channel, Command(RequestCode.DELETE_ACL_CONFIG, {"accessKey": access_key}))
        return {"access_key": access_key, "deleted": True}

    change_brokers(brokers, work, f"account {access_key} is deleted", as_json)


@acl.command()
@click.argument("access_key")
@click.option("--topic", "topics", multiple=True, metavar="NAME=PERM", help="A topic and its permission.")
@click.option("--group", "groups", multiple=True, metavar="NAME=PERM", help="A consumer group and its permission.")
@brokers_option
@context_option
@changes_json
def grant(access_key: str, topics: tuple[str, ...], groups: tuple[str, ...], brokers: list[str], as_json: bool) -> None:
    """Set permissions of an account for topics and groups; the others stay.

    PERM is `PUB`, `SUB`, `PUB|SUB` or `DENY`. Quote it: the shell gives `|` another meaning.
    """
    if not topics and not groups:
        raise click.UsageError("give --topic or --group")
    for text in (*topics, *groups):
        if text.rpartition("=")[2] not in (*PERMISSIONS, "SUB|PUB") or not text.rpartition("=")[0]:
            raise click.BadParameter(f"{text!r}: NAME=PERM is expected, PERM one of {', '.join(PERMISSIONS)}")

    async def work(channel: Channel) -> dict[str, Any]:
        found = _account_in(await _config_of(channel), access_key)
        if found is None:
            raise CommandFailed(f"no account has the access key {access_key}: create it with gantrymq acl user set")
        fields = {
            "topicPerms": _merged(found.topic_perms, topics) if topics else None,
            "groupPerms": _merged(found.group_perms, groups) if groups else None,
        }
        await _update(channel, access_key, fields, found.admin)
        return {"access_key": access_key, "topics": topics, "groups": groups}

    change_brokers(brokers, work, f"{access_key} has {' '.join((*topics, *groups))}", as_json)


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


def _needs_yaml(function: F) -> F:
    """The parser of the file is part of an extra."""

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except ModuleNotFoundError as error:
            raise CommandFailed(f"{error}; install it with `pip install 'gantrymq[acl]'`") from None

    return call  # type: ignore[return-value]


@_needs_yaml
def _read(path: str) -> Accounts:
    from gantrymq.plugins.acl.accounts import Accounts

    try:
        return Accounts.parse(Path(path).read_bytes())
    except ValueError as error:
        raise CommandFailed(f"{path}: {error}") from None


@_needs_yaml
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


def _explain_user(path: str, name: str, code: int, **given: str) -> Explanation:
    from gantrymq.plugins.acl.explain import explain_user
    from gantrymq.plugins.acl.users import UserDocument

    try:
        return explain_user(UserDocument.parse(Path(path).read_bytes()), name, code, **given)
    except ValueError as error:
        raise CommandFailed(f"{path}: {error}") from None


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


async def _config_of(channel: Channel) -> AclConfigBody:
    from gantrymq.remoting.bodies.access import AclConfigBody
    from gantrymq.remoting.codes import RequestCode
    from gantrymq.remoting.command import Command

    answer = await call(channel, Command(RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG))
    return AclConfigBody.from_bytes(answer.body)


async def _update(channel: Channel, access_key: str, fields: dict[str, str | None], admin: bool) -> None:
    from gantrymq.remoting.codes import RequestCode
    from gantrymq.remoting.command import Command

    ext = {"accessKey": access_key, "admin": str(admin).lower()}
    ext |= {name: value for name, value in fields.items() if value is not None}
    await call(channel, Command(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, ext))


def _account_in(body: AclConfigBody, access_key: str) -> AccountConfig | None:
    return next((each for each in body.plain_access_configs if each.access_key == access_key), None)


def _merged(before: list[str] | None, given: tuple[str, ...]) -> str:
    """``name=PERM`` texts with commas; those given replace others of their names."""
    found = {text.rpartition("=")[0].strip(): text for text in (*(before or ()), *given)}
    return ",".join(found.values())

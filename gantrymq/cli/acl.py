"""``gantrymq acl``: check a file of accounts, explain decisions, change the accounts of running brokers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

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
from gantrymq.cli.acl_explain import config_of, explain, read_accounts
from gantrymq.cli.acl_users import users as users_of_rocketmq5
from gantrymq.cli.connecting import context_option
from gantrymq.cli.failures import CommandFailed, warn
from gantrymq.cli.options import json_option, print_result
from gantrymq.cli.plugin_activity import check_broker
from gantrymq.cli.tables import print_rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gantrymq.remoting.bodies.access import AccountConfig, AclConfigBody
    from gantrymq.remoting.channel import Channel

PERMISSIONS: Final = ("DENY", "PUB", "SUB", "PUB|SUB")


@click.group()
def acl() -> None:
    """Check and explain the accounts of brokers with access control, and change them."""


@acl.command()
@click.argument("path", metavar="FILE", type=click.Path(exists=True, dir_okay=False), default="conf/plain_acl.yml")
@json_option()
def check(path: str, as_json: bool) -> None:
    """Check a file of accounts as a broker would read it, and warn about what is probably not meant.

    The exit code is 1 if a broker would refuse the file. No secret key is shown.
    """
    from gantrymq.plugins.acl.explain import warnings_of

    accounts = read_accounts(path)
    texts = warnings_of(accounts)
    if Path(path).stat().st_mode & 0o077:
        texts.append(f"other users can read or change the file: chmod 600 {path}")
    for text in texts:
        warn(text)
    admins = sum(account.admin for account in accounts.by_key.values())
    text = f"{path}: {len(accounts.by_key)} accounts, {admins} of them admin, {len(texts)} warnings"
    fields = {"file": path, "accounts": len(accounts.by_key), "admins": admins, "warnings": texts}
    print_result(text, fields, as_json)


acl.add_command(explain)
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
    body = ask(broker, config_of)
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
@click.option("--topic-default", type=click.Choice(PERMISSIONS), metavar="PERMISSION",
              help="For topics that are not listed: DENY, PUB, SUB or PUB|SUB.")  # fmt: skip
@click.option("--group-default", type=click.Choice(PERMISSIONS), metavar="PERMISSION",
              help="For groups that are not listed: DENY, PUB, SUB or PUB|SUB.")  # fmt: skip
@click.option("--address", default=None, help="The addresses at which the account needs no signature.")
@brokers_option
@context_option
@changes_json
def set_user(access_key: str, admin: bool | None, topic_default: str | None, group_default: str | None,
             address: str | None, brokers: list[str], as_json: bool) -> None:  # fmt: skip
    """Create an account, or change what the options name.

    GANTRYMQ_NEW_SECRET_KEY is the account's secret key. If it is not set, an account keeps its secret key, and a new
    one gets a random secret key, which is printed once. Then the account must exist at all of the brokers or at none.
    """

    async def exists(channel: Channel) -> bool:
        return _account_in(await config_of(channel), access_key) is not None

    secret = choose_secret(f"account {access_key}", secret_of_environment(), brokers, exists)
    fields = {"defaultTopicPerm": topic_default, "defaultGroupPerm": group_default, "whiteRemoteAddress": address}

    async def work(channel: Channel) -> dict[str, Any]:
        found = _account_in(await config_of(channel), access_key)
        flag = admin if admin is not None else found is not None and found.admin
        await _update(channel, access_key, {**fields, "secretKey": secret.key}, flag, found)
        return {"access_key": access_key} | secret.shown("secret_key")

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
        found = _account_in(await config_of(channel), access_key)
        if found is None:
            raise CommandFailed(f"no account has the access key {access_key}: create it with gantrymq acl user set")
        fields = {
            "topicPerms": _merged(found.topic_perms, topics) if topics else None,
            "groupPerms": _merged(found.group_perms, groups) if groups else None,
        }
        await _update(channel, access_key, fields, found.admin, found)
        return {"access_key": access_key, "topics": topics, "groups": groups}

    change_brokers(brokers, work, f"{access_key} has {' '.join((*topics, *groups))}", as_json)


# -------------------------------------------------------------------------------------------------------- internals


async def _update(
    channel: Channel, access_key: str, fields: Mapping[str, str | None], admin: bool, known: AccountConfig | None
) -> None:
    """Create the account, or change those ``fields`` of the ``known`` one that are not None.

    A broker that shows the secret key gets the whole account: RocketMQ 4.9.7 refuses a change without the key, and
    what the request lacks is not in force until the broker has read its file again.
    """
    from gantrymq.remoting.codes import RequestCode
    from gantrymq.remoting.command import Command

    before = _fields_of(known) if known is not None and known.secret_key else {}
    given = {name: value for name, value in fields.items() if value is not None}
    ext = {"accessKey": access_key, "admin": str(admin).lower(), **before, **given}
    await call(channel, Command(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, ext))


def _fields_of(account: AccountConfig) -> dict[str, str]:
    fields = {
        "secretKey": account.secret_key,
        "whiteRemoteAddress": account.white_remote_address,
        "defaultTopicPerm": account.default_topic_perm,
        "defaultGroupPerm": account.default_group_perm,
        "topicPerms": ",".join(account.topic_perms or ()),
        "groupPerms": ",".join(account.group_perms or ()),
    }
    return {name: value for name, value in fields.items() if value}


def _account_in(body: AclConfigBody, access_key: str) -> AccountConfig | None:
    return next((each for each in body.plain_access_configs if each.access_key == access_key), None)


def _merged(before: list[str] | None, given: tuple[str, ...]) -> str:
    """``name=PERM`` texts with commas; those given replace others of their names."""
    found = {text.rpartition("=")[0].strip(): text for text in (*(before or ()), *given)}
    return ",".join(found.values())

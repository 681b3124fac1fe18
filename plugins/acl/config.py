"""Section ``[plugin.acl]``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import attrs

from gantrymq.kernel.config.fields import duration, filled, secret
from gantrymq.kernel.config.rocketmq_keys import KeyGroup, NoCounterpart, SettingKey, write_nothing
from gantrymq.kernel.env import environment

FILE = "conf/plain_acl.yml"
"""RocketMQ's place of the file, below its home."""
FIRST_USER = "initAuthenticationUser"
INNER_CREDENTIALS = "innerClientAuthenticationCredentials"
USERS = "users.json"
"""The name of the file of users in RocketMQ's folder for them."""


def _read_switch(properties: Mapping[str, str]) -> dict[SettingKey, str]:
    if properties["aclEnable"].lower() != "true":
        return {}
    home = properties.get("rocketmqHome") or environment("ROCKETMQ_HOME")
    return {("plugin.acl", "file"): f"{home}/{FILE}" if home else FILE}


def _write_switch(_section: AclConfig) -> dict[str, str]:
    return {"aclEnable": "true"}


def _read_users(properties: Mapping[str, str]) -> dict[SettingKey, str]:
    """RocketMQ 5's switches: its users are below ``authConfigPath``, by default in the store's folder ``config``."""
    if properties.get("authenticationEnabled", "").lower() != "true":
        if properties.get("authorizationEnabled", "").lower() == "true":
            raise ValueError("authorizationEnabled needs authenticationEnabled: a user must be known to have policies")
        return {}
    root = properties.get("storePathRootDir", "")
    folder = properties.get("authConfigPath") or (f"{root}/config" if root else "config")
    authorization = "true" if properties.get("authorizationEnabled", "").lower() == "true" else "false"
    return {("plugin.acl", "users"): f"{folder}/{USERS}", ("plugin.acl", "authorization"): authorization}


def _read_first_user(properties: Mapping[str, str]) -> dict[SettingKey, str]:
    """RocketMQ 5's first user."""
    return _read_secret(properties, FIRST_USER, "first_user", ("authenticationEnabled",))


def _read_inner_credentials(properties: Mapping[str, str]) -> dict[SettingKey, str]:
    """RocketMQ 5's keys of the broker itself."""
    return _read_secret(properties, INNER_CREDENTIALS, "inner_credentials", ("authenticationEnabled", "aclEnable"))


def _read_secret(
    properties: Mapping[str, str], key: str, name: str, switches: tuple[str, ...]
) -> dict[SettingKey, str]:
    """The secret, which is for nothing here unless one of ``switches`` is on."""
    if not properties.get(key):
        return {}
    if not any(properties.get(switch, "").lower() == "true" for switch in switches):
        raise NoCounterpart(key)
    return {("plugin.acl", name): properties[key]}


def _write_users(section: AclConfig) -> dict[str, str]:
    if not section.users:
        return {}
    return {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true" if section.authorization else "false",
        "authConfigPath": section.users.rpartition("/")[0] or ".",
    }


@attrs.frozen(kw_only=True)
class AclConfig:
    """The file of the accounts."""

    broker_conf_groups: ClassVar = (
        KeyGroup(("aclEnable",), _read_switch, _write_switch),
        KeyGroup(("authenticationEnabled", "authorizationEnabled", "authConfigPath"), _read_users, _write_users),
        KeyGroup((FIRST_USER,), _read_first_user, write_nothing),
        KeyGroup((INNER_CREDENTIALS,), _read_inner_credentials, write_nothing),
    )

    file: str = filled(FILE)
    """RocketMQ's ``plain_acl.yml``, from the working directory. Requests 50, 51 and 53 change it."""
    users: str = ""
    """The file with the users and policies of RocketMQ 5, which requests 3001 to 3010 change. Empty: there are none.
    With it, the users in ``keys`` and ``first_user`` are created as super users, and ``file`` need not exist."""
    authorization: bool = True
    """Whether users need policies. If not, each user may do everything (``authorizationEnabled=false``)."""
    interval: float = duration("5s", minimum="100ms", maximum="1h")
    """How often the broker looks for changes of the file."""
    keys: str = ""
    """RocketMQ's ``conf/tools.yml``: ``accessKey`` and ``secretKey`` with which this broker signs its own requests to
    nameservers and other brokers. Empty: it does not sign."""
    first_user: str = secret()
    """RocketMQ 5's ``initAuthenticationUser``: ``{"username": ..., "password": ...}`` of a super user, which is created
    if there is no user of that name."""
    inner_credentials: str = secret()
    """RocketMQ 5's ``innerClientAuthenticationCredentials``: ``{"accessKey": ..., "secretKey": ...}``, instead of
    ``keys``."""
    codes: dict[str, str] = attrs.field(factory=dict)
    """Rights for request codes of other plugins: ``admin``, ``send``, ``read``, ``topic``, ``consume`` or ``group``."""

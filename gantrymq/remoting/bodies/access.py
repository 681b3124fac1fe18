"""The accounts of a broker with access control, as administrators read them.

Source: RocketMQ 4.9.7 ``PlainAccessConfig``, ``GetBrokerClusterAclConfigResponseBody``; 5.3.3 ``UserInfo``,
``AclInfo``.
"""

# ruff: noqa: RUF012 - msgspec copies an empty default for each new struct
from __future__ import annotations

from gantrymq.remoting.bodies.body import Body


class AccountConfig(Body):
    """One account. RocketMQ's response has the secret key, GantryMQ's never does, and no command prints it."""

    access_key: str = ""
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: list[str] | None = None
    group_perms: list[str] | None = None


class AclConfigBody(Body):
    """The response to GET_BROKER_CLUSTER_ACL_CONFIG (54)."""

    global_white_addrs: list[str] = []
    plain_access_configs: list[AccountConfig] = []


class UserInfo(Body):
    """A user of RocketMQ 5. Responses have no password."""

    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None


class PolicyEntryInfo(Body):
    """What a policy says about one resource, such as ``Topic:orders``, ``Group:*`` or ``Topic:orders-*``."""

    resource: str | None = None
    actions: list[str] | None = None
    source_ips: list[str] | None = None
    decision: str | None = None


class PolicyInfo(Body):
    """One policy: ``Custom``, or ``Default``, which holds where no custom entry matches."""

    policy_type: str | None = None
    entries: list[PolicyEntryInfo] | None = None


class AclInfo(Body):
    """The policies of one subject, ``User:name``."""

    subject: str | None = None
    policies: list[PolicyInfo] | None = None

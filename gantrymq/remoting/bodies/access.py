"""The accounts of a broker with access control, as administrators read them.

Source: RocketMQ 4.9.7 ``PlainAccessConfig``, ``GetBrokerClusterAclConfigResponseBody``.
"""

# ruff: noqa: RUF012 - msgspec copies an empty default for each new struct
from __future__ import annotations

from gantrymq.remoting.bodies.body import Body


class AccountConfig(Body):
    """One account. RocketMQ's response also has the secret key; GantryMQ's never does."""

    access_key: str = ""
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

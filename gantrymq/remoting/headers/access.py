"""The headers of requests that change or read the accounts of a broker with access control.

Source: RocketMQ 4.9.7 ``CreateAccessConfigRequestHeader``, ``DeleteAccessConfigRequestHeader``,
``UpdateGlobalWhiteAddrsConfigRequestHeader``, ``GetBrokerAclConfigResponseHeader``.
"""

from __future__ import annotations

from gantrymq.remoting.headers.header import Header


class UpdateAccountHeader(Header, kw_only=True):
    """UPDATE_AND_CREATE_ACL_CONFIG (50). Permissions are ``name=PERM``, separated by commas."""

    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    group_perms: str | None = None


class DeleteAccountHeader(Header, kw_only=True):
    """DELETE_ACL_CONFIG (51)."""

    access_key: str


class UpdateAddressesHeader(Header, kw_only=True):
    """UPDATE_GLOBAL_WHITE_ADDRS_CONFIG (53): addresses separated by commas, and the file that has them."""

    global_white_addrs: str
    acl_file_full_path: str | None = None


class AclVersionResponse(Header, kw_only=True):
    """The response to GET_BROKER_CLUSTER_ACL_INFO (52): data versions as JSON, of the file and by file."""

    version: str
    all_acl_file_version: str | None = None
    broker_name: str
    broker_addr: str
    cluster_name: str

"""The headers of requests that change or read the accounts of a broker with access control.

Source: RocketMQ 5.3.3 for 3001 to 3010; 4.9.7 ``CreateAccessConfigRequestHeader``, ``DeleteAccessConfigRequestHeader``,
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


class UserHeader(Header, kw_only=True):
    """AUTH_CREATE_USER (3001), AUTH_UPDATE_USER (3002), AUTH_DELETE_USER (3003), AUTH_GET_USER (3004)."""

    username: str


class ListUsersHeader(Header, kw_only=True):
    """AUTH_LIST_USER (3005): users whose name contains the filter."""

    filter: str | None = None


class SubjectHeader(Header, kw_only=True):
    """AUTH_CREATE_ACL (3006), AUTH_UPDATE_ACL (3007), AUTH_GET_ACL (3009): ``User:name``."""

    subject: str


class DeleteAclHeader(Header, kw_only=True):
    """AUTH_DELETE_ACL (3008): one resource of a policy, or without it all policies of the subject."""

    subject: str
    policy_type: str | None = None
    resource: str | None = None


class ListAclsHeader(Header, kw_only=True):
    """AUTH_LIST_ACL (3010): subjects and resources that contain the filters."""

    subject_filter: str | None = None
    resource_filter: str | None = None

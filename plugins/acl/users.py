"""The users of RocketMQ 5 and their policies: what they are in the file, and what a policy decides.

The file is JSON: ``users`` by name, as ``UserInfo`` has them, with the password, because signatures are verified with
it; and ``acls`` by subject (``User:name``), as ``AclInfo`` has them. RocketMQ keeps both in RocksDB.

Source: RocketMQ 5.3.3 ``UserAuthorizationHandler``, ``AclAuthorizationHandler``, ``AuthorizationMetadataManagerImpl``.
Where several entries match, the most specific resource decides here, and a denial among equal ones: RocketMQ's
comparison prefers shorter prefixes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

import msgspec

from gantrymq.remoting import fastjson
from gantrymq.remoting.bodies.access import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo

FILE_MAX_BYTES: Final = 4 * 1024 * 1024
USERS_MAX: Final = 10_000
ENTRIES_MAX: Final = 1_000
"""The most entries in the policies of one user."""
NAME_MAX_CHARACTERS: Final = 255
SUBJECT_PREFIX: Final = "User:"
SUPER: Final = "Super"
NORMAL: Final = "Normal"
ENABLED: Final = "enable"
DISABLED: Final = "disable"
CUSTOM: Final = "Custom"
DEFAULT: Final = "Default"
ALLOW: Final = "Allow"
DENY: Final = "Deny"
DENIED: Final = "the decision is deny."
NO_MATCH: Final = "no matched policies."
"""RocketMQ's reasons of a refusal."""
ALL: Final = "All"
ACTIONS: Final = (ALL, "Pub", "Sub", "Create", "Update", "Delete", "Get", "List")
RESOURCE_TYPES: Final = ("Cluster", "Namespace", "Topic", "Group")


class UserDocument(msgspec.Struct):
    """The content of the file."""

    users: dict[str, UserInfo] = {}
    acls: dict[str, AclInfo] = {}

    @classmethod
    def parse(cls, data: bytes) -> UserDocument:
        """The document in the JSON text ``data``; ValueError says what is wrong, without any password."""
        if len(data) > FILE_MAX_BYTES:
            raise ValueError(f"it has {len(data)} bytes, {FILE_MAX_BYTES} are the limit")
        if not data:
            return cls()
        try:
            found = msgspec.json.decode(data, type=UserDocument)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise ValueError("it is not JSON of users and acls") from None
        for name, user in found.users.items():
            check_user(name, user)
        for subject, acl in found.acls.items():
            check_policies(acl.policies or [])
            if subject_name(subject) not in found.users:
                raise ValueError(f"the acl of {subject!r} is of no user")
        return found

    def encode(self) -> bytes:
        """The JSON text."""
        users, acls = self.users, {subject: acl for subject, acl in self.acls.items() if acl.policies}
        return fastjson.dumps({"users": users, "acls": acls}, quoted_keys=True)


def check_user(name: str, user: UserInfo) -> None:
    """Put type and status into RocketMQ's spelling; ValueError with RocketMQ's texts where it has one."""
    if not name or name.isspace():
        raise ValueError("username can not be blank")
    if len(name) > NAME_MAX_CHARACTERS:
        raise ValueError(f"a username has at most {NAME_MAX_CHARACTERS} characters")
    if not user.password or user.password.isspace():
        raise ValueError("password can not be blank")
    user.username = name
    user.user_type = spelled(user.user_type or NORMAL, (SUPER, NORMAL), "userType")
    user.user_status = spelled(user.user_status or ENABLED, (ENABLED, DISABLED), "userStatus")


def check_policies(policies: Collection[PolicyInfo]) -> None:
    """As :func:`check_user`, for policies."""
    if not policies:
        raise ValueError("The policies is empty.")
    if sum(len(policy.entries or ()) for policy in policies) > ENTRIES_MAX:
        raise ValueError(f"at most {ENTRIES_MAX} entries of policies are kept for one user")
    for policy in policies:
        policy.policy_type = spelled(policy.policy_type or CUSTOM, (CUSTOM, DEFAULT), "policyType")
        if not policy.entries:
            raise ValueError("The policy entries is empty.")
        for entry in policy.entries:
            _check_entry(entry)


def _check_entry(entry: PolicyEntryInfo) -> None:
    entry.resource = read_resource(entry.resource)
    if not entry.actions:
        raise ValueError("The actions is empty.")
    if "any" in (action.lower() for action in entry.actions):
        raise ValueError("The actions can not be Any.")
    entry.actions = [spelled(action, ACTIONS, "action") for action in entry.actions]
    for source in entry.source_ips or ():
        try:
            _network_of(source)
        except ValueError:
            raise ValueError("The source ip is invalid.") from None
    if entry.decision is None:
        raise ValueError("The decision is null or illegal.")
    entry.decision = spelled(entry.decision, (ALLOW, DENY), "decision")


def read_resource(text: str | None) -> str:
    """``*``, ``Topic:*``, ``Topic:prefix*`` or ``Topic:name`` with the type in RocketMQ's spelling."""
    if text is None or not text.strip():
        raise ValueError("The resource is null.")
    kind, colon, name = text.partition(":")
    if text == "*":
        return text
    if not colon or not name:
        raise ValueError(f"{text[:NAME_MAX_CHARACTERS]!r} is not a resource: '*' or such as 'Topic:name' is expected")
    return f"{spelled(kind, RESOURCE_TYPES, 'resource type')}:{name}"


def spelled(text: str, words: Iterable[str], what: str) -> str:
    """The word of ``words`` that ``text`` is in any case."""
    for word in words:
        if word.lower() == text.lower():
            return word
    raise ValueError(f"{text[:NAME_MAX_CHARACTERS]!r} is not a valid {what}: {', '.join(words)} are expected")


def subject_name(subject: str) -> str:
    """The user's name in a subject."""
    kind, _, name = subject.partition(":")
    if kind.lower() + ":" != SUBJECT_PREFIX.lower() or not name:
        raise ValueError("The subject type is null.")
    return name


class Decisions:
    """What the entries of ``acl`` say about any of ``actions`` from ``address``: for many resources of one request."""

    def __init__(self, acl: AclInfo | None, actions: Collection[str], address: str) -> None:
        self._types = [_Patterns() for _ in (CUSTOM, DEFAULT)]
        for policy in acl.policies or () if acl is not None else ():
            for policy_type, patterns in zip((CUSTOM, DEFAULT), self._types, strict=True):
                if policy.policy_type == policy_type:
                    for entry in policy.entries or ():
                        if _applies(entry, actions, address):
                            patterns.add(entry)

    def of(self, resource: str) -> str:
        """Why the user may not do any of the actions to ``resource``; empty if it may."""
        for patterns in self._types:
            decision = patterns.decision(resource)
            if decision is not None:
                return "" if decision == ALLOW else DENIED
        return NO_MATCH


class _Patterns:
    """Decisions by name and by prefix. A name ranks above all prefixes, a longer prefix above a shorter one, and of
    equal patterns the denial counts."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._prefixes: dict[str, str] = {}
        self._lengths: list[int] = []
        """The lengths of the prefixes, the longest first."""

    def add(self, entry: PolicyEntryInfo) -> None:
        pattern = entry.resource or ""
        if pattern.endswith("*"):
            known, key = self._prefixes, pattern[:-1]
            if len(key) not in self._lengths:
                self._lengths = sorted([*self._lengths, len(key)], reverse=True)
        else:
            known, key = self._names, pattern
        if known.get(key) != DENY:
            known[key] = entry.decision or ""

    def decision(self, resource: str) -> str | None:
        """The decision about a resource; None if no pattern matches."""
        if resource in self._names:
            return self._names[resource]
        for length in self._lengths:
            prefix = resource[:length]
            if prefix in self._prefixes:
                return self._prefixes[prefix]
        return None


def sends_anywhere(acl: AclInfo | None) -> bool:
    """Whether some entry lets the user send to some topic."""
    return any(
        entry.decision == ALLOW
        and (entry.resource or "").startswith(("*", "Topic:"))
        and not {ALL, "Pub"}.isdisjoint(entry.actions or ())
        for policy in (acl.policies or () if acl is not None else ())
        for entry in policy.entries or ()
    )


def _applies(entry: PolicyEntryInfo, actions: Collection[str], address: str) -> bool:
    """Whether an entry is about one of ``actions`` and about ``address``."""
    if ALL not in (entry.actions or ()) and set(entry.actions or ()).isdisjoint(actions):
        return False
    if not entry.source_ips:
        return True
    host = _host_of(address)
    # an address that cannot be read must not get past a denial
    return entry.decision == DENY if host is None else any(host in _network_of(source) for source in entry.source_ips)


@lru_cache(maxsize=1024)
def _host_of(address: str) -> IPv4Address | IPv6Address | None:
    """The address of a peer. A port that serves IPv6 has IPv4 peers as ``::ffff:10.0.0.1``; policies mean 10.0.0.1."""
    try:
        host = ip_address(address.partition("%")[0])
    except ValueError:
        return None
    return host.ipv4_mapped or host if isinstance(host, IPv6Address) else host


@lru_cache(maxsize=4096)
def _network_of(source: str) -> IPv4Network | IPv6Network:
    return ip_network(source, strict=False)


def merge(acl: AclInfo | None, subject: str, given: Iterable[PolicyInfo]) -> AclInfo:
    """``acl`` with the entries of ``given``: they replace those of the same policy and resource."""
    result: dict[str, dict[str, PolicyEntryInfo]] = {}
    for policy in (*((acl.policies or ()) if acl is not None else ()), *given):
        rows = result.setdefault(policy.policy_type or CUSTOM, {})
        rows.update({entry.resource or "": entry for entry in policy.entries or ()})
    policies = [PolicyInfo(policy_type, list(rows.values())) for policy_type, rows in result.items()]
    check_policies(policies)
    return AclInfo(subject, policies)


def without(acl: AclInfo, policy_type: str, resource: str) -> AclInfo:
    """``acl`` without the entry of one resource, and without a policy that is empty then."""
    policies = [
        PolicyInfo(
            policy.policy_type,
            [each for each in policy.entries or () if policy.policy_type != policy_type or each.resource != resource],
        )
        for policy in acl.policies or ()
    ]
    return AclInfo(acl.subject, [policy for policy in policies if policy.entries])


def by_name(names: Mapping[str, UserInfo], wanted: str | None) -> list[UserInfo]:
    """Users whose name contains ``wanted``, in order of their names, without passwords."""
    return [shown(names[name]) for name in sorted(names) if not wanted or wanted in name]


def shown(user: UserInfo) -> UserInfo:
    """``user`` without its password."""
    return UserInfo(user.username, None, user.user_type, user.user_status)

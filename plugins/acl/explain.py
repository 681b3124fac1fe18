"""Explain a decision about accounts without a request: what is needed, what the account has, and what is missing."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from types import MappingProxyType
from typing import Final

import attrs

from gantrymq.plugins.acl.accounts import ANY, DENY, KEY_MIN_CHARACTERS, PUB, SENDS, SUB, Account, Accounts
from gantrymq.plugins.acl.policies import Verdicts, missing_name, needed_ways
from gantrymq.plugins.acl.resources import Needs, needs_of_reply
from gantrymq.plugins.acl.users import ALLOW, DISABLED, SUBJECT_PREFIX, SUPER, UserDocument
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.names import TRACE_TOPIC, is_retry_topic, retry_topic
from gantrymq.remoting.rights import BROKER_RIGHTS, Right

_NEEDS: Final[Mapping[Right, tuple[int, int]]] = MappingProxyType({
    Right.SEND: (PUB, 0),
    Right.REPLY: (PUB, 0),
    Right.READ: (SUB, 0),
    Right.TOPIC: (ANY, 0),
    Right.CONSUME: (SUB, SUB),
    Right.OFFSET: (SUB, SUB),
    Right.GROUP: (0, SUB),
    Right.SEND_BACK: (SUB, SUB),
    Right.VIEW: (SUB, 0),
    Right.END: (PUB, 0),
    Right.RECALL: (PUB, 0),
    Right.HEARTBEAT: (SUB, SUB),
    Right.UNREGISTER: (0, SUB),
    Right.LOCK: (SUB, SUB),
    Right.CHECK: (SUB, SUB),
})  # fmt: skip
"""The permissions on topic and group."""
_SENDS_WITHOUT_GROUP: Final = (Right.HEARTBEAT, Right.UNREGISTER)
_NAMES: Final = {PUB: "PUB", SUB: "SUB", ANY: "PUB or SUB", PUB | SUB: "PUB|SUB", DENY: "DENY"}


@attrs.frozen
class Explanation:
    """``allowed``, and the reasons in the order in which a broker checks them."""

    allowed: bool
    reasons: tuple[str, ...]


def needed_names(code: int) -> tuple[str, ...]:
    """Which of ``topic`` and ``group`` must be known to explain a request; empty for administrative ones."""
    topic, group = _NEEDS.get(BROKER_RIGHTS[code], (0, 0))
    if BROKER_RIGHTS[code] in _SENDS_WITHOUT_GROUP:
        return ()
    return (*(("topic",) if topic else ()), *(("group",) if group else ()))


def explain(
    accounts: Accounts, access_key: str, code: int, *, cluster: str, topic: str = "", group: str = "", address: str = ""
) -> Explanation:
    """Why a broker with these accounts serves a request that is signed with the right key, or refuses it.

    ``cluster``: the name of the broker's cluster. ``address``: that of the sender, if it is known. KeyError for a code
    without a right.
    """
    right = BROKER_RIGHTS[code]
    if address and accounts.addresses.matches(address):
        return Explanation(True, (f"{address} is in globalWhiteRemoteAddresses: no key is needed for anything",))
    account = accounts.by_key.get(access_key)
    if account is None:
        return Explanation(False, (f"no account has the access key {access_key!r}",))
    if address and account.addresses and account.addresses.matches(address):
        return Explanation(
            True, (f"{address} is in the account's whiteRemoteAddress: it may do everything from there",)
        )
    needed = f"{RequestCode(code).name} ({code}) needs: {right.value}"
    if right is Right.ADMIN:
        has = "is an admin account" if account.admin else "is not an admin account: set `admin: true` to allow this"
        return Explanation(account.admin, (needed, f"account {access_key!r} {has}"))
    if right is Right.OFFSET:
        return Explanation(True, (needed, "every account may query offsets"))
    if right is Right.SEND and topic == TRACE_TOPIC:
        return Explanation(True, (needed, "every account may send message traces"))
    found = [_resource(account, name, permission) for name, permission in _needs(right, cluster, topic, group)]
    return Explanation(all(ok for ok, _ in found), (needed, *(text for _, text in found)))


def explain_user(
    document: UserDocument, name: str, code: int, *, cluster: str, authorization: bool = True,
    topic: str = "", group: str = "", address: str = "",
) -> Explanation:  # fmt: skip
    """As :func:`explain`, for a user of RocketMQ 5 and its policies. ``cluster``: the name of the broker's cluster;
    ``authorization``: ``plugin.acl.authorization``. ValueError if the decision depends on a topic or group that is not
    given."""
    user = document.users.get(name)
    if user is None:
        return Explanation(False, (f"no user has the name {name!r}",))
    if user.user_status == DISABLED:
        return Explanation(False, (f"the user {name!r} is disabled",))
    if user.user_type == SUPER:
        return Explanation(True, (f"{name!r} is a super user: it may do everything",))
    if not authorization:
        return Explanation(True, ("users need no policies at this broker (plugin.acl.authorization = false)",))
    right = BROKER_RIGHTS[code]
    needs = None if right is Right.ADMIN else _needs(right, cluster, topic, group)
    ext = {"topic": topic, "groupName": group}
    missing = missing_name(code, ext)
    if missing:
        raise ValueError(f"{RequestCode(code).name} needs --{missing}: policies allow it for a {missing}")
    rows = needed_ways(code, ext, needs, f"Cluster:{cluster}")
    reasons = [f"{RequestCode(code).name} ({code}) needs: {right.value}"]
    if not rows:
        reasons.append("every user may send message traces")
    verdicts, allowed = Verdicts(document.acls.get(SUBJECT_PREFIX + name), address), True
    for resource, ways in rows:
        reason = verdicts.why_not(resource, ways)
        needed = " or ".join(dict.fromkeys(chain.from_iterable(ways))) or "Pub on some topic"
        reasons.append(f"{resource}: needs {needed}: {reason.rstrip('.') or 'a policy allows it'}")
        allowed = allowed and not reason
    return Explanation(allowed, tuple(reasons))


def warnings_of_users(document: UserDocument) -> list[str]:
    """What is allowed in a file of users and probably not meant."""
    found = []
    for name, user in document.users.items():
        if len(user.password or "") < KEY_MIN_CHARACTERS:
            found.append(f"the password of the user {name!r} has fewer than {KEY_MIN_CHARACTERS} characters")
    for subject, acl in document.acls.items():
        for policy in acl.policies or ():
            for entry in policy.entries or ():
                may_change = {"All", "Update"} & set(entry.actions or ())
                is_cluster = entry.resource == "*" or (entry.resource or "").startswith("Cluster:")
                if is_cluster and may_change and entry.decision == ALLOW:
                    found.append(f"{subject} may change policies, also its own ({entry.resource})")
    return found


def warnings_of(accounts: Accounts) -> list[str]:
    """What is allowed in a file of accounts and probably not meant."""
    found = []
    if accounts.addresses.every:
        found.append("globalWhiteRemoteAddresses has every address: no client needs a key")
    seen: dict[str, int] = {}
    for number, entry in enumerate(accounts.document.get("accounts") or (), start=1):
        key = str(entry.get("accessKey"))
        if key in seen:
            found.append(f"account {number} has the access key of account {seen[key]}, {key!r}: the first one counts")
        seen.setdefault(key, number)
        for name in ("defaultTopicPerm", "defaultGroupPerm", "topicPerms", "groupPerms"):
            given = entry.get(name)
            for text in given if isinstance(given, list) else [] if given is None else [f"={given}"]:
                permission = str(text).rpartition("=")[2].strip()
                if permission not in _WRITTEN:
                    found.append(f"account {key!r}: {name}: {permission!r} is not a permission, so it counts as DENY")
    found += [
        f"account {account.access_key!r} needs no signature at any address (whiteRemoteAddress)"
        for account in accounts.by_key.values()
        if account.addresses.every
    ]
    if not any(account.admin for account in accounts.by_key.values()):
        found.append("no account is an admin: only listed addresses can administer")
    return found


_WRITTEN: Final = frozenset({"PUB", "SUB", "PUB|SUB", "SUB|PUB", "DENY"})


def _needs(right: Right, cluster: str, topic: str, group: str) -> Needs:
    on_topic, on_group = _NEEDS[right]
    if right in _SENDS_WITHOUT_GROUP and not group:
        return [("", SENDS)]
    if right in (Right.SEND, Right.REPLY) and is_retry_topic(topic):
        on_topic = SUB
    found = [(topic, on_topic)] if on_topic and topic else []
    if right is Right.REPLY:
        found = needs_of_reply(found, cluster)
    return found + ([(retry_topic(group), on_group)] if on_group else [])


def _resource(account: Account, resource: str, needed: int) -> tuple[bool, str]:
    ok = account.allows(resource, needed)
    if needed == SENDS:
        return ok, f"account {account.access_key!r} {'may' if ok else 'may not'} send to any topic"
    is_group = is_retry_topic(resource)
    kind, shown = ("group", resource.removeprefix(retry_topic(""))) if is_group else ("topic", resource)
    if account.permissions is None and account.admin:
        return ok, f"{kind} {shown}: an admin account without topicPerms and groupPerms may use all"
    owned = (account.permissions or {}).get(resource)
    place = f"{kind}Perms"
    if owned is None:
        owned, place = (
            (account.group_default, "defaultGroupPerm") if is_group else (account.topic_default, "defaultTopicPerm")
        )
    text = f"{kind} {shown}: has {_NAMES.get(owned, 'DENY')} ({place}), needs {_NAMES[needed]}"
    return ok, text if ok else f"{text}: missing"

"""The accounts of RocketMQ's ``plain_acl.yml``: who signs requests, and what each may do.

Source: RocketMQ 4.9.7 ``PlainPermissionManager``, ``Permission``, ``PlainAccessResource``; numbers and booleans of the
file are read as text, as fastjson does it. A group is kept under the name of its retry topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from gantrymq.plugins.acl.addresses import AddressRule, parse_rule, union
from gantrymq.remoting.bodies.tables import DataVersion
from gantrymq.remoting.names import is_retry_topic, retry_topic

FILE_MAX_BYTES: Final = 1024 * 1024
"""The largest file that is read."""
KEY_MIN_CHARACTERS: Final = 7
"""The shortest access key and secret key: RocketMQ wants them to be longer than 6."""

DENY: Final = 1
ANY: Final = 2
PUB: Final = 4
SUB: Final = 8
SENDS: Final = 16
"""As a needed permission: PUB on any topic, whatever the resource is."""
_PERMISSIONS: Final = {"PUB": PUB, "SUB": SUB, "PUB|SUB": PUB | SUB, "SUB|PUB": PUB | SUB, "DENY": DENY}


@attrs.frozen
class Account:
    """One account. ``permissions``: by topic, and by retry topic for groups; None where the file lists none."""

    access_key: str
    secret: bytes = attrs.field(repr=False)
    admin: bool
    addresses: AddressRule
    topic_default: int
    group_default: int
    permissions: Mapping[str, int] | None
    subjects: tuple[str, ...] = ()
    """Subjects of clients' certificates whose connections need no signature: an extension of GantryMQ."""

    def allows(self, resource: str, needed: int) -> bool:
        """Whether the account has the permission ``needed`` (PUB, SUB, ANY of them, or SENDS)."""
        if needed == SENDS:
            return self._sends()
        if self.permissions is None and self.admin:
            return True
        owned = (self.permissions or {}).get(resource)
        if owned is None:
            owned = self.group_default if is_retry_topic(resource) else self.topic_default
        return not owned & DENY and bool(owned & (PUB | SUB if needed & ANY else needed))

    def _sends(self) -> bool:
        if self.permissions is None and self.admin:
            return True
        owned = [value for name, value in (self.permissions or {}).items() if not is_retry_topic(name)]
        return any(value & PUB and not value & DENY for value in (self.topic_default, *owned))


@attrs.frozen
class Accounts:
    """The content of the file. ``document``: the file as YAML gave it, without the secret keys."""

    by_key: Mapping[str, Account]
    by_subject: Mapping[str, Account]
    addresses: AddressRule
    version: DataVersion
    document: dict[str, Any] = attrs.field(repr=False)

    @classmethod
    def parse(cls, data: bytes) -> Accounts:
        """The accounts in the YAML text ``data``. ``ValueError`` says what is wrong, without any secret."""
        document = read_document(data)
        by_key: dict[str, Account] = {}
        for number, entry in enumerate(list_of(document, "accounts"), start=1):
            if not isinstance(entry, dict):
                raise ValueError(f"account {number} is not a mapping")
            account = read_account(entry, f"account {number}")
            by_key.setdefault(account.access_key, account)  # as in RocketMQ, the first one of a key counts
        if document.get("accounts"):
            document["accounts"] = [
                {key: value for key, value in entry.items() if key != "secretKey"} for entry in document["accounts"]
            ]
        by_subject: dict[str, Account] = {}
        for account in by_key.values():
            for subject in account.subjects:
                if subject in by_subject:
                    raise ValueError(f"two accounts have the subject {subject!r}")
                by_subject[subject] = account
        addresses = union(parse_rule(text) for text in texts_of(document, "globalWhiteRemoteAddresses", "the file"))
        return cls(by_key, by_subject, addresses, _version_of(document), document)


def read_document(data: bytes) -> dict[str, Any]:
    """The mapping in a YAML text; an empty text is an empty mapping. ``ValueError`` without any of the text."""
    import yaml

    if len(data) > FILE_MAX_BYTES:
        raise ValueError(f"it has {len(data)} bytes, {FILE_MAX_BYTES} are the limit")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        document = yaml.load(data, Loader=loader)  # noqa: S506 - one of the safe loaders
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark  # str(error) would quote lines of the file, which has secrets
        raise ValueError(f"line {mark.line + 1 if mark else '?'}: it is not YAML") from None
    except (yaml.YAMLError, ValueError, RecursionError, LookupError, AttributeError, ArithmeticError):
        # the latter three come from values such as `!!bool x`, `!!timestamp x` and a long `!!float`
        raise ValueError("it is not YAML") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ValueError("it is not a mapping with accounts and globalWhiteRemoteAddresses")
    return document


def write_document(document: Mapping[str, Any]) -> bytes:
    """The YAML text of a mapping, in the form that RocketMQ writes."""
    import yaml

    text: str = yaml.safe_dump(dict(document), sort_keys=False, default_flow_style=False, allow_unicode=True)
    return text.encode()


def read_account(entry: Mapping[str, Any], where: str) -> Account:
    """The account of one mapping of the file; ``ValueError`` names ``where`` and never the secret."""
    access_key, secret = text_of(entry, "accessKey", where), text_of(entry, "secretKey", where)
    if access_key is None or secret is None or min(len(access_key), len(secret)) < KEY_MIN_CHARACTERS:
        shown = None if access_key is None else access_key
        raise ValueError(f"The accessKey={shown} and secretKey=*** cannot be null and length should longer than 6")
    where = f"account {access_key!r}"
    permissions = {
        **_permissions_of(entry, "groupPerms", "group", where),
        **_permissions_of(entry, "topicPerms", "topic", where),
    }
    return Account(
        access_key=access_key,
        secret=secret.encode("utf-8", "surrogatepass"),
        admin=flag_of(entry, "admin", where),
        addresses=parse_rule(text_of(entry, "whiteRemoteAddress", where) or ""),
        topic_default=parse_permission(text_of(entry, "defaultTopicPerm", where)),
        group_default=parse_permission(text_of(entry, "defaultGroupPerm", where)),
        permissions=permissions or None,
        subjects=_subjects_of(entry, where),
    )


def parse_permission(text: str | None) -> int:
    """The bits of a permission; what is not a permission denies."""
    return _PERMISSIONS.get((text or "").strip(), DENY)


def check_permissions(texts: list[str]) -> None:
    """``ValueError`` with RocketMQ's text unless all are ``name=PERM``, as request 50 must have them."""
    for text in texts:
        items = [item for item in text.split("=") if item]
        if len(items) != 2:
            raise ValueError(
                f"Parse Resource format error for {text}.\n"
                "The expected resource format is 'Res=Perm'. For example: topicA=SUB"
            )
        if items[1].strip() not in _PERMISSIONS:
            raise ValueError(
                f"Parse resource permission error for {text}.\n"
                "The expected permissions are 'SUB' or 'PUB' or 'SUB|PUB' or 'PUB|SUB'."
            )


def text_of(entry: Mapping[str, Any], key: str, where: str) -> str | None:
    """The text under ``key``; numbers and booleans count as text, as in RocketMQ."""
    return _text(entry.get(key), f"{where}: {key}")


def texts_of(entry: Mapping[str, Any], key: str, where: str) -> list[str]:
    """The texts of the list under ``key``; empty without one."""
    return [_text(item, f"{where}: {key}") or "" for item in list_of(entry, key, where)]


def list_of(entry: Mapping[str, Any], key: str, where: str = "the file") -> list[Any]:
    """The list under ``key``; empty without one."""
    value = entry.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError(f"{where}: {key} is not a list")
    return value


def _text(value: object, where: str) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{where} must be a text: put it in quotes")
    return value


def flag_of(entry: Mapping[str, Any], key: str, where: str) -> bool:
    """The truth value under ``key``; false without one."""
    text = (text_of(entry, key, where) or "false").strip().lower()
    if text not in ("true", "false"):
        raise ValueError(f"{where}: {key} must be true or false")
    return text == "true"


def _permissions_of(entry: Mapping[str, Any], key: str, kind: str, where: str) -> dict[str, int]:
    found = {}
    for text in texts_of(entry, key, where):
        items = [item.strip() for item in text.split("=") if item]
        if len(items) != 2:
            raise ValueError(f"{where}: Parse resource permission failed for {kind}:{text}")
        found[retry_topic(items[0]) if kind == "group" else items[0]] = parse_permission(items[1])
    return found


def _subjects_of(entry: Mapping[str, Any], where: str) -> tuple[str, ...]:
    subjects = tuple(texts_of(entry, "subjects", where))
    if not all(subject.strip() for subject in subjects):
        # the subject of a connection without a certificate would be equal to it
        raise ValueError(f"{where}: a subject is empty: write one such as 'CN=worker,O=Example'")
    return subjects


def _version_of(document: Mapping[str, Any]) -> DataVersion:
    rows = list_of(document, "dataVersion")
    row = rows[0] if rows and isinstance(rows[0], dict) else {}
    counter, timestamp = (row.get(key, 0) for key in ("counter", "timestamp"))
    if not isinstance(counter, int) or not isinstance(timestamp, int):
        raise ValueError("dataVersion must have a counter and a timestamp, whole numbers")
    return DataVersion(counter, timestamp)

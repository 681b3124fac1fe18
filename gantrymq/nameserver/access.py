"""Who may change the nameserver's tables: identities with their keys, and the broker names that each may register.

The file is TOML: a table ``identities`` by access key, or by the subject of a client's certificate::

    [identities.broker-a]                       # signs its requests with this access key
    secret = "at least seven characters"
    brokers = ["broker-a", "orders-*"]

    [identities."CN=broker-b,O=Example"]        # shows this certificate; no secret
    brokers = ["broker-b"]

    [identities.administrator]
    secret = "another secret"
    admin = true

Signatures are RocketMQ's (:mod:`gantrymq.remoting.signing`). Without a file, addresses decide (``--peers``).
"""

from __future__ import annotations

import hmac
import tomllib
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import attrs

from gantrymq.remoting.bodies.routes import TopicRouteData
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.headers.header import read_header
from gantrymq.remoting.headers.nameserver import BrokerNameHeader
from gantrymq.remoting.signing import ACCESS_KEY, SIGNATURE, make_signature

FILE_MAX_BYTES: Final = 1024 * 1024
KEY_MIN_CHARACTERS: Final = 7
"""The shortest secret, as in RocketMQ."""
SHOWN_CHARACTERS: Final = 255
EXCEPTION: Final = "org.apache.rocketmq.acl.common.AclException: "
"""How the text of every refusal begins, as that of brokers; clients know it by this."""


@attrs.frozen
class Identity:
    """One entry of the file. ``secret`` is empty for the subject of a certificate."""

    name: str
    secret: str = attrs.field(default="", repr=False)
    brokers: tuple[str, ...] = ()
    """Broker names and patterns (``orders-*``) that it may register."""
    admin: bool = False
    """Whether it may change permissions, topics, the KV config and settings, and register any broker name."""

    def registers(self, broker: str) -> bool:
        """Whether it may register a broker of this name."""
        return self.admin or any(fnmatchcase(broker, pattern) for pattern in self.brokers)


def read_identities(path: Path) -> Mapping[str, Identity]:
    """The identities in the file by name. ValueError names the file and the entry, never a secret; OSError."""
    with path.open("rb") as file:
        data = file.read(FILE_MAX_BYTES + 1)
    if len(data) > FILE_MAX_BYTES:
        raise ValueError(f"{str(path)!r}: more than {FILE_MAX_BYTES} bytes")
    try:
        document = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        raise ValueError(f"{str(path)!r} is not a TOML file") from None
    entries = document.get("identities")
    if not isinstance(entries, dict) or document.keys() != {"identities"}:
        raise ValueError(f"{str(path)!r}: tables [identities.NAME] are expected, and nothing else")
    return MappingProxyType({name: _read(name, entry, path) for name, entry in entries.items()})


def _read(name: str, entry: Any, path: Path) -> Identity:
    where = f"{str(path)!r}: identities.{name}"
    if not isinstance(entry, dict) or not entry.keys() <= {"secret", "brokers", "admin"}:
        raise ValueError(f"{where}: secret, brokers and admin are expected, and nothing else")
    secret, brokers, admin = entry.get("secret", ""), entry.get("brokers", []), entry.get("admin", False)
    if not isinstance(secret, str) or not isinstance(admin, bool):
        raise ValueError(f"{where}: secret must be a text, and admin true or false")
    if not isinstance(brokers, list) or not all(isinstance(each, str) and each for each in brokers):
        raise ValueError(f"{where}: brokers must be a list of names")
    if not secret and "=" not in name:
        raise ValueError(f"{where}: a secret is missing; only the subject of a certificate, such as 'CN=x', has none")
    if secret and len(secret) < KEY_MIN_CHARACTERS:
        raise ValueError(f"{where}: the secret must have at least {KEY_MIN_CHARACTERS} characters")
    if not brokers and not admin:
        raise ValueError(f"{where}: it may do nothing; set brokers or admin")
    return Identity(name, secret, tuple(brokers), admin)


def identify(identities: Mapping[str, Identity], request: Command, subject: str | None) -> Identity:
    """Return the sender of ``request``: the signer, or without a signature the subject of the connection's certificate.

    :class:`RemoteFault` (NO_PERMISSION) for an unknown identity or a wrong signature.
    """
    ext = request.ext or {}
    access_key = ext.get(ACCESS_KEY)
    if access_key is None:
        identity = None if subject is None else identities.get(subject)
        if identity is None or identity.secret:
            shown = "the request is not signed" if subject is None else f"the certificate of {subject} is not listed"
            raise _refusal(f"{shown}: the file of --access lists who may change routes and settings")
        return identity
    identity = identities.get(access_key)
    if identity is None or not identity.secret:
        raise _refusal(f"No acl config for {access_key[:SHOWN_CHARACTERS]}")
    try:
        expected = make_signature(ext, request.body, identity.secret).encode()
        given = ext.get(SIGNATURE, "").encode()
    except UnicodeEncodeError:
        expected, given = b"", b"?"
    if not hmac.compare_digest(expected, given):
        raise _refusal(f"Check signature failed for accessKey={access_key[:SHOWN_CHARACTERS]}")
    return identity


def check_right(identity: Identity, request: Command, registered_name: Callable[[str], str | None]) -> None:
    """:class:`RemoteFault` (NO_PERMISSION) unless ``identity`` may send this change of the tables.

    ``registered_name`` returns the broker name that is registered at an address: a request must not take, keep or end
    the registration of another broker by its address.
    """
    if identity.admin:
        return
    if request.code not in _OF_BROKERS:
        raise _refusal(f"{identity.name} is not an administrator here")
    for name in _names(request, registered_name):
        if not identity.registers(name):
            raise _refusal(f"{identity.name} may not register the broker {name[:SHOWN_CHARACTERS]}")


def _names(request: Command, registered_name: Callable[[str], str | None]) -> Iterable[str]:
    """The broker names that a request is about."""
    if request.code == RequestCode.REGISTER_TOPIC_IN_NAMESRV:
        return {row.broker_name for row in TopicRouteData.from_request(request.body or b"{}").queue_datas}
    name = read_header(BrokerNameHeader, request.ext).broker_name
    holder = registered_name((request.ext or {}).get("brokerAddr", ""))
    return (name,) if holder is None else (name, holder)


_OF_BROKERS: Final = frozenset(
    {
        RequestCode.REGISTER_BROKER,
        RequestCode.UNREGISTER_BROKER,
        RequestCode.REGISTER_TOPIC_IN_NAMESRV,
        RequestCode.QUERY_DATA_VERSION,
        RequestCode.BROKER_HEARTBEAT,
    }
)


def _refusal(text: str) -> RemoteFault:
    return RemoteFault(ResponseCode.NO_PERMISSION, EXCEPTION + text)

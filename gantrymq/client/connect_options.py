"""How a client connects: what ``connect`` was given, or the environment has, checked."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs

from gantrymq.client.addresses import is_discovery_url, parse_nameservers
from gantrymq.client.discovery import Discovery, check_unit_name
from gantrymq.client.namespace import Namespace, RequestNamespace
from gantrymq.remoting.channel import Outgoing, Tls
from gantrymq.remoting.command import Command
from gantrymq.remoting.signing import Credentials

NAMESERVERS_VARIABLE: Final = "NAMESRV_ADDR"
CREDENTIALS: Final = ("access_key", "secret_key", "security_token")


@attrs.frozen
class ConnectOptions:
    """What holds for all connections of one client."""

    nameservers: tuple[str, ...]
    """Empty where ``discovery`` is asked for them."""
    discovery: Discovery | None = None
    unit_name: str | None = None
    credentials: Credentials | None = None
    tls: Tls | None = None
    namespace: Namespace | None = None
    request_namespace: RequestNamespace | None = None

    @property
    def outgoing(self) -> Callable[[Command], Command] | None:
        """What each request goes through before it leaves; the signature comes last, since it covers the others."""
        namespaces = (self.namespace, self.request_namespace)
        steps: list[Callable[[Command], Command]] = [one.outgoing for one in namespaces if one is not None]
        if self.credentials is not None:
            steps.append(self.credentials.sign)
        if len(steps) < 2:
            return steps[0] if steps else None

        def outgoing(command: Command) -> Command:
            for step in steps:
                command = step(command)
            return command

        return outgoing

    @classmethod
    def checked(
        cls,
        nameservers: str | Sequence[str] | None,
        *,
        access_key: str | None,
        secret_key: str | None,
        security_token: str | None,
        tls: bool | Tls,
        unit_name: str | None,
        namespace: str | None = None,
        namespace_v2: str | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> ConnectOptions:
        """Options from what a user gave; ValueError for what is wrong, or does not fit together."""
        if nameservers is None:
            nameservers = environment.get(NAMESERVERS_VARIABLE)
            if not nameservers:
                raise ValueError(f"no nameserver given: pass host:port to connect, or set {NAMESERVERS_VARIABLE}")
        unit = check_unit_name(unit_name)
        addresses: tuple[str, ...] = ()
        discovery = None
        texts = (nameservers,) if isinstance(nameservers, str) else tuple(nameservers)
        if len(texts) == 1 and is_discovery_url(texts[0]):
            discovery = Discovery.of(texts[0], unit)
        else:
            addresses = parse_nameservers(texts)
        credentials = Credentials.checked(access_key, secret_key, security_token)
        return cls(
            addresses, discovery, unit, credentials, _context(tls), Namespace.checked(namespace),
            RequestNamespace.checked(namespace_v2),
        )  # fmt: skip


def outgoing_of(settings: Mapping[str, Any]) -> Outgoing:
    """How requests without a client are made where clients have these arguments of ``connect``.

    Other arguments than the credentials and ``tls`` do not matter. ValueError for what is wrong.
    """
    credentials = Credentials.checked(*(settings.get(name) for name in CREDENTIALS))
    return Outgoing(_context(settings.get("tls", False)), None if credentials is None else credentials.sign)


def _context(tls: bool | Tls) -> Tls | None:
    if isinstance(tls, ssl.SSLContext) or callable(tls):
        return tls
    if not isinstance(tls, bool):
        raise ValueError(f"tls is True, False, an ssl.SSLContext or a function of one, not {type(tls).__name__}")
    return ssl.create_default_context() if tls else None

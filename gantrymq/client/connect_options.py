"""How a client connects: what ``connect`` was given, checked."""

from __future__ import annotations

import ssl

import attrs

from gantrymq.remoting.signing import Credentials


@attrs.frozen
class ConnectOptions:
    """What holds for all connections of one client."""

    credentials: Credentials | None = None
    tls: ssl.SSLContext | None = None

    @classmethod
    def checked(
        cls,
        *,
        access_key: str | None,
        secret_key: str | None,
        security_token: str | None,
        tls: bool | ssl.SSLContext,
    ) -> ConnectOptions:
        """Options from what a user gave; ValueError for what does not fit together."""
        return cls(Credentials.checked(access_key, secret_key, security_token), _context(tls))


def _context(tls: bool | ssl.SSLContext) -> ssl.SSLContext | None:
    if isinstance(tls, ssl.SSLContext):
        return tls
    if not isinstance(tls, bool):
        raise ValueError(f"tls is True, False or an ssl.SSLContext, not {type(tls).__name__}")
    return ssl.create_default_context() if tls else None

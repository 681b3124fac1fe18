"""Certificates for tests of TLS, valid until 2119 but for ``expired.pem``; their keys protect nothing."""

from __future__ import annotations

import ssl
from pathlib import Path

FOLDER = Path(__file__).parent
CA = FOLDER / "ca.pem"
OTHER_CA = FOLDER / "other-ca.pem"


def server_context(name: str = "server") -> ssl.SSLContext:
    """The context of a server with the certificate ``name``: ``server``, ``expired``, or ``elsewhere``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(FOLDER / f"{name}.pem")
    return context


def client_context(authority: Path = CA) -> ssl.SSLContext:
    """The context of a client that trusts ``authority`` alone."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(authority)
    return context

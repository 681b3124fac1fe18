"""Section ``[plugin.tls]``."""

from __future__ import annotations

from typing import Literal

import attrs

from gantrymq.kernel.config.fields import duration


@attrs.frozen(kw_only=True)
class TlsConfig:
    """Who must speak TLS, and the files."""

    mode: Literal["disabled", "permissive", "enforcing"] = "enforcing"
    """``permissive`` serves plain connections at the same port too, as RocketMQ does by default."""
    certificate: str = ""
    """The broker's certificate with its chain, PEM."""
    key: str = ""
    """The private key, PEM, not encrypted; empty if it is in the certificate's file."""
    names: dict[str, str] = attrs.field(factory=dict)
    """Further certificates, each in one file with its key, by the name of the server that a client asks for (SNI)."""
    ca: str = ""
    """The authorities that sign clients' certificates, PEM."""
    client_certificates: Literal["none", "optional", "required"] = "none"
    """Whether clients must show a certificate; its subject becomes the connection's identity."""
    test_mode: bool = False
    """RocketMQ's ``tls.test.mode.enable``: the broker makes a certificate at its start, and verifies none of others.
    Connections are encrypted, but anybody can pose as the broker."""
    properties: str = ""
    """RocketMQ's ``tls.properties``; its keys replace the settings above."""
    outgoing: Literal["auto", "plain", "tls"] = "auto"
    """How the broker connects to nameservers and other brokers; ``auto``: with TLS if ``mode`` is ``enforcing``."""
    pages: Literal["auto", "plain"] = "auto"
    """Whether the ports of the plugins ``metrics`` and ``http`` speak TLS: ``auto``: as ``mode`` has it."""
    interval: float = duration("10s", minimum="100ms", maximum="1h")
    """How often the broker looks for changed files; new connections use them."""

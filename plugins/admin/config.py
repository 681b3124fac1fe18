"""Section ``[plugin.admin]``."""

from __future__ import annotations

import attrs

from gantrymq.kernel.config.fields import duration, number


@attrs.frozen(kw_only=True)
class AdminConfig:
    """Time limits for clients, and size limits of responses to administrators."""

    client_timeout: float = duration("10s", minimum="100ms", maximum="1m")
    """How long a client may take to report its state, or to consume a message on request."""
    status_timeout: float = duration("5s", minimum="100ms", maximum="1m")
    """How long all clients of a group together may take to report their offsets."""
    max_clients: int = number(256, 1, 10_000)
    """The most clients of a group that are asked for their offsets."""
    max_entries: int = number(1024, 1, 65_536)
    """The most consume queue entries in one response."""

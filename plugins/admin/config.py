"""Section ``[plugin.admin]``."""

from __future__ import annotations

import attrs

from gantrymq.kernel.config.fields import duration, number


@attrs.frozen(kw_only=True)
class AdminConfig:
    """How long clients may take to answer, and how large an answer to an administrator may be."""

    client_timeout: float = duration("10s", minimum="100ms", maximum="1m")
    """How long a client may take to tell what it does, or to consume a message on order."""
    status_timeout: float = duration("5s", minimum="100ms", maximum="1m")
    """How long a group's clients may take, all at once, to tell where they are."""
    max_clients: int = number(256, 1, 10_000)
    """How many clients of a group are asked for that."""
    max_entries: int = number(1024, 1, 65_536)
    """How many consume queue entries are shown at once."""

"""Section ``[plugin.admin]``."""

from __future__ import annotations

import attrs

from gantrymq.kernel.config.fields import duration, number, plain
from gantrymq.remoting.log_levels import LogLevels


def _check_levels(_instance: object, _attribute: object, value: str) -> None:
    LogLevels.parse(value)


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
    log_levels: str = plain("", validator=_check_levels)
    """Log levels of the process and of components (``info,ha=debug``), which can change while the broker runs; empty:
    those of the command line. They are the process's, so brokers in one process share them."""

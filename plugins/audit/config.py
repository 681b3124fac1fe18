"""Section ``[plugin.audit]``."""

from __future__ import annotations

import attrs

from gantrymq.kernel.config.fields import duration


@attrs.frozen(kw_only=True)
class AuditConfig:
    """Where events go; at least one of ``file`` and ``topic`` must be set."""

    file: str = ""
    """The file to which events are appended, a line of JSON each; from the working directory."""
    topic: str = ""
    """The topic of this broker to which events are sent. The broker creates it, and refuses messages of clients."""
    reads: bool = False
    """Whether requests that only read are events too: of tools, and those that slaves send all the time."""
    connections: bool = False
    """Whether identified peers that connect and disconnect are events too."""
    interval: float = duration("10s", minimum="100ms", maximum="1h")
    """Equal refusals and reads within this time are one event with their number, after the first one."""

"""Section ``[plugin.clients]``."""

from __future__ import annotations

import attrs

from gantrymq.kernel.config.fields import duration, number, plain, size


@attrs.frozen(kw_only=True)
class ClientsConfig:
    """How long a silent client counts as alive, and how many groups there may be."""

    expire_after: float = duration("120s", minimum="1s", maximum="1h")
    """A client whose last heartbeat is older is dropped; clients send one each 30 s."""
    scan_every: float = duration("10s", minimum="100ms", maximum="10m")
    notify: bool = plain(True, rocketmq="notifyConsumerIdsChangedEnable")
    """Tell a group's members when one comes or goes; else they find out in 20 s."""
    max_groups: int = number(10_000, 1, 1_000_000)
    """Live producer groups, and as many consumer groups."""
    max_heartbeat_bytes: int = size("4 MiB", minimum="1 KiB", maximum="16 MiB")
    """What a client says of itself is kept as long as it is here."""
    max_subscriptions: int = number(1000, 1, 100_000)
    """Topics that one member of a group may subscribe to."""
    max_kept_bytes: int = size("256 MiB", minimum="64 KiB", maximum="16 GiB")
    """What all members together may say of their subscriptions, about; it is kept as long as they are here."""

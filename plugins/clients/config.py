"""Section ``[plugin.clients]``."""

from __future__ import annotations

import attrs

from gantrymq.kernel.config.fields import duration, number, plain, size


@attrs.frozen(kw_only=True)
class ClientsConfig:
    """Time limit for silent clients, and limits on groups and subscriptions."""

    expire_after: float = duration("120s", minimum="1s", maximum="1h")
    """A client whose last heartbeat is older is dropped; clients send one every 30 s."""
    scan_every: float = duration("10s", minimum="100ms", maximum="10m")
    notify: bool = plain(True, rocketmq="notifyConsumerIdsChangedEnable")
    """Notify a group's members when one joins or leaves; otherwise they notice within 20 s."""
    max_groups: int = number(10_000, 1, 1_000_000)
    """The most live producer groups; the same for consumer groups."""
    max_heartbeat_bytes: int = size("4 MiB", minimum="1 KiB", maximum="16 MiB")
    """The largest heartbeat; its content is kept while the client is connected."""
    max_subscriptions: int = number(1000, 1, 100_000)
    """The most topics of one member of a group."""
    max_kept_bytes: int = size("256 MiB", minimum="64 KiB", maximum="16 GiB")
    """The approximate memory for the members of all groups and their subscriptions."""

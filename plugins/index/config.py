"""Section ``[plugin.index]``."""

from __future__ import annotations

import attrs

from gantrymq.kernel.config.fields import duration, number, size


@attrs.frozen(kw_only=True)
class IndexConfig:
    """The shape of the files, and how often they reach the disk."""

    slots: int = number(5_000_000, 1, 500_000_000, rocketmq="maxHashSlotNum")
    """Hash slots of a file. Files of another shape are built again."""
    entries: int = number(20_000_000, 2, 500_000_000, rocketmq="maxIndexNum")
    """Entries of a file, one of them unused."""
    flush_interval: float = duration("500ms", minimum="10ms", maximum="1h")
    """How often new entries are handed to the operating system."""
    sync_interval: float = duration("10s", minimum="10ms", maximum="1h")
    """How often they are synced; after a crash the index of so much is built again from the log."""
    catch_up_bytes: int = size("128 MiB", minimum="1 MiB")
    """At most so many bytes of log are read in a second to build what is missing."""

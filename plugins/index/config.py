"""Section ``[plugin.index]``."""

from __future__ import annotations

import attrs

from gantrymq.kernel.config.fields import duration, number, size


@attrs.frozen(kw_only=True)
class IndexConfig:
    """The shape of the files, and how often they are written."""

    slots: int = number(5_000_000, 1, 500_000_000, rocketmq="maxHashSlotNum")
    """Hash slots of a file. Files of another shape are rebuilt."""
    entries: int = number(20_000_000, 2, 500_000_000, rocketmq="maxIndexNum")
    """Entries of a file, one of them unused."""
    flush_interval: float = duration("500ms", minimum="10ms", maximum="1h")
    """How often new entries are written."""
    sync_interval: float = duration("10s", minimum="10ms", maximum="1h")
    """How often they are flushed; after a crash, the index of this time is rebuilt from the log."""
    catch_up_bytes: int = size("128 MiB", minimum="1 MiB")
    """The most bytes of the log that are read per second to build the missing part."""

"""Section ``[plugin.consume]``."""

from __future__ import annotations

import attrs

from gantrymq.kernel.config.fields import number, plain, size


@attrs.frozen(kw_only=True)
class ConsumeConfig:
    """Limits of one pull, and the suggested broker. The defaults are RocketMQ's."""

    memory_messages: int = number(32, 1, 65536, rocketmq="maxTransferCountOnMessageInMemory")
    """The most messages of a response from memory."""
    memory_bytes: int = size("256 KiB", minimum="1", maximum="64 MiB", rocketmq="maxTransferBytesOnMessageInMemory")
    """The most bytes of a response from memory; the first message always fits."""
    disk_messages: int = number(8, 1, 65536, rocketmq="maxTransferCountOnMessageInDisk")
    """The most messages of a response from the disk."""
    disk_bytes: int = size("64 KiB", minimum="1", maximum="64 MiB", rocketmq="maxTransferBytesOnMessageInDisk")
    """The most bytes of a response from the disk; the first message always fits."""
    memory_percent: int = number(40, 0, 100, rocketmq="accessMessageInMemoryMaxRatio")
    """Messages further behind the log's end than this share of the machine's memory count as on the disk."""
    max_messages: int = number(1024, 1, 65536)
    """The most messages of a response to a client that accepts more than RocketMQ's limits (gantrymqMaxBytes)."""
    max_bytes: int = size(default="1 MiB")
    """The most bytes of such a response."""
    scan_entries: int = number(4096, 32, 300_000)
    """Queue entries that one pull examines when a filter drops most."""
    slave_read_enable: bool = plain(False, rocketmq="slaveReadEnable")
    """Redirect consumers to the broker that their group's configuration names."""


LIVE_KEYS = ("slave_read_enable", "memory_percent", "memory_messages", "memory_bytes", "disk_messages", "disk_bytes")
"""The settings that administrators can change while the broker runs."""

"""Rules for deleting log files and for refusing messages: pure functions of the hour, the disk and the files' ages.

Source: ``CleanCommitLogService`` of RocketMQ 4.9.7. Two differences, on purpose: while ``enough_free`` bytes are free
the ratios are ignored (a tenth of a large disk is no emergency; forced deletion begins there, and messages are refused
only if it is not enough), and forced deletion stops when the disk is below its threshold.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from gantrymq.kernel.env import DiskUsage


@attrs.frozen
class Rules:
    """Ages in ms, hours 0 to 23 of the local time, ratios of the disk's size that are used (0 to 1), bytes."""

    keep_ms: int
    hours: frozenset[int]
    reclaim_ratio: float
    force_ratio: float
    full_ratio: float
    enough_free: int
    files_at_once: int
    reserve: int = 0
    reserve_file: int = 0


@attrs.frozen
class LogFile:
    """One file of the log: its start and end, and a time not before its last message's, or that of a young file before
    it."""

    start: int
    end: int
    newest_ms: int


def used_ratio(usage: DiskUsage, rules: Rules) -> float:
    """Return the used share of the disk, with :func:`_counted` as its size; 0 while enough of it is free."""
    return 0.0 if usage.free >= rules.enough_free or not usage.total else 1 - usage.free / _counted(usage, rules)


def _counted(usage: DiskUsage, rules: Rules) -> float:
    """Return the disk's size, at most that with which forced deletion begins at ``enough_free`` bytes: so a larger
    disk has its thresholds one after the other, too."""
    share = 1 - rules.force_ratio
    return min(usage.total, rules.enough_free / share) if share > 0 else usage.total


def is_full(usage: DiskUsage, rules: Rules, was_full: bool) -> bool:
    """Return whether to refuse messages. Once refused, they are accepted again only below :func:`accepts_below`."""
    return used_ratio(usage, rules) > (accepts_below(rules) if was_full else rules.full_ratio)


def accepts_below(rules: Rules) -> float:
    """Return the used share below which refused messages are accepted again: the lower of both thresholds."""
    return min(rules.force_ratio, rules.full_ratio)


def accepts_with(usage: DiskUsage, rules: Rules) -> int:
    """Return the free bytes with which refused messages are accepted again."""
    return min(rules.enough_free, int(_counted(usage, rules) * (1 - accepts_below(rules))))


def expired_before(
    files: Sequence[LogFile], now_ms: int, hour: int, usage: DiskUsage, rules: Rules, *, asked: bool = False
) -> int:
    """Return the offset up to which to delete ``files``, given oldest first without the current one; 0 for none.

    By age at the configured hour, above the threshold for reclaiming, or if ``asked``; regardless of age above the
    threshold for force. At most ``files_at_once``.
    """
    ratio = used_ratio(usage, rules)
    some = files[: rules.files_at_once]
    end = old_before(some, now_ms, rules) if asked or hour in rules.hours or ratio > rules.reclaim_ratio else 0
    if ratio > rules.force_ratio:
        missing = int(_counted(usage, rules) * (1 - rules.force_ratio)) - usage.free
        for file in some:
            if missing <= 0:
                break
            missing -= file.end - file.start
            end = max(end, file.end)
    return end


def old_before(files: Sequence[LogFile], now_ms: int, rules: Rules) -> int:
    """Return the offset up to which ``files`` are older than ``keep``; 0 if none is."""
    end = 0
    for file in files:
        if now_ms - file.newest_ms < rules.keep_ms:
            break
        end = file.end
    return end

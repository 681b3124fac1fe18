"""The task that checks every ten seconds, and the requests of administrators for it."""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress
from datetime import datetime
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

import structlog
import trio

from gantrymq.kernel.errors import CorruptRange, OutOfLog
from gantrymq.kernel.expiry import Expired, drop_before
from gantrymq.kernel.store.log.record import BadRecord
from gantrymq.plugins.retention.loss import begins_of, loss_since
from gantrymq.plugins.retention.policy import LogFile, Rules, accepts_with, expired_before, is_full, old_before
from gantrymq.plugins.retention.reserve import Reserve
from gantrymq.remoting.outages import Outages

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.env import DiskUsage
    from gantrymq.kernel.store.log.segments import Segment

RESERVE_FILE: Final = "gantrymq.reserve"
RESERVE_SHARE: Final = 16
"""The reserve is at most this fraction of a log file, so that it is small if log files are small."""
_GIB: Final = 1 << 30
RETRY_S: Final = 1.0
"""While the disk has no room for the log's next file, it is asked for it this often, and at each check."""

log = structlog.get_logger("gantrymq.retention")


class Cleaner:
    """Applies the rules to a broker's store. ``full`` is the reason for refusing messages, empty while there is space.

    ``refusal`` also checks the log, for each batch.
    """

    def __init__(self, broker: Broker, rules: Rules, interval_s: float) -> None:
        self._broker = broker
        self._rules = rules
        self._interval_s = interval_s
        self._asked = trio.Event()
        self._has_more = False
        """Whether the last round deleted as many files as one round may, all older than ``keep``."""
        self._is_short = False
        self._ample_until = -1
        """While the log ends at or before this offset, the files that exist have the reserve."""
        self._retry_at = 0.0
        """While the next file is refused: when to ask for it again."""
        self._times: dict[int, int] = {}
        """The time of the first message of log files, by the offset at which a file begins: reading it again could wait
        for the disk, in the thread that serves clients."""
        self._outages = Outages(log, broker.env.monotonic)
        self._reserve = Reserve(broker.env, f"{broker.root}/{RESERVE_FILE}", 0)
        self.full = ""
        self.held = Expired(0)
        """The result of the last round, with the expired files that a plugin needs, also outside the hour to delete."""

    def set_rules(self, rules: Rules) -> None:
        """Apply other rules from the next check on."""
        self._rules = rules
        self._ample_until = -1
        self._retry_at = 0.0

    def delete_expired(self) -> None:
        """Check now, regardless of the hour: delete what is older than ``keep``, in as many rounds as that needs."""
        self._asked.set()

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            asked = self._asked.is_set()
            if asked:
                self._asked = trio.Event()
            await self.clean(asked=asked)
            if asked and self._has_more:
                self._asked.set()
            with trio.move_on_after(self._interval_s):
                await self._asked.wait()

    async def clean(self, *, asked: bool = False) -> int:
        """Check the disk and delete files once. Returns the number of deleted log files."""
        broker = self._broker
        self._has_more = False
        try:
            usage = await trio.to_thread.run_sync(broker.env.disk_usage, broker.root)
        except OSError as error:
            self._outages.warning("disk_not_measured", path=broker.root, reason=str(error))
            return 0
        self._outages.over("disk_not_measured")
        self._retry_at = 0.0
        self._judge(usage)
        self._reserve.size = min(self._rules.reserve_file, broker.log.segments.file_bytes // RESERVE_SHARE)
        try:
            await trio.to_thread.run_sync(partial(self._reserve.adapt, usage.free, is_refusing=bool(self.refusal())))
        except OSError as error:
            self._outages.warning("reserve_not_changed", path=broker.root, reason=str(error))
        else:
            self._outages.over("reserve_not_changed")
        rules = self._rules  # after the waits, during which they may change
        now_ms = broker.env.wall_ms()
        hour = datetime.fromtimestamp(now_ms / 1000).hour
        segments = self._written()
        self._times = {segment.base: self._times[segment.base] for segment in segments if segment.base in self._times}
        files = self._oldest_files(segments, now_ms)
        offset = expired_before(files, now_ms, hour, usage, rules, asked=asked)
        old_end = self._old_end(segments, files, now_ms)
        is_forced = offset > old_end
        before = begins_of(broker) if is_forced else {}
        held, self.held = self.held, await drop_before(broker, offset, old_end)
        self._retry_at = 0.0
        self._has_more = not is_forced and self.held.files >= rules.files_at_once
        if self.held.error:
            self._outages.warning("expired_files_not_deleted", files=self.held.files, reason=self.held.error)
        elif self.held.files or self.held.late:
            self._outages.over("expired_files_not_deleted")
        if is_forced and self.held.files:
            loss = await loss_since(broker, before)
            log.warning(
                "messages_deleted_for_space",
                files=self.held.files, messages=loss.messages, groups_behind=loss.groups,
                used_percent=_used_percent(usage),
            )  # fmt: skip
        if self.held.holder and self.held.holder != held.holder:
            log.warning(
                "log_files_held", plugin=self.held.holder, bytes=self.held.held_bytes, log_start=broker.log.min_offset
            )
        elif held.holder and not self.held.holder:
            log.info("log_files_released", plugin=held.holder)
        return self.held.files

    def refusal(self) -> str:
        """Return why messages that do not free space are refused; empty while there is space."""
        store = self._broker.store
        if store.log.end <= self._ample_until:
            return self.full
        # Each attempt may wait for the disk, in the thread that serves clients.
        if not self._is_short or self._broker.env.monotonic() >= self._retry_at:
            self._ask_for_next()
        if self.full or not self._is_short:
            return self.full
        return (
            "service not available now: the broker's disk has no room for the log's next file, and the rest of this one"
            " is kept for what frees space (plugin.retention.reserve)"
        )

    def _ask_for_next(self) -> None:
        """Prepare the log's next file if the files that exist do not have the reserve."""
        store = self._broker.store
        reserve = min(self._rules.reserve, store.config.commit_log_file_bytes // 4)
        is_short = store.is_short_of(reserve)
        self._ample_until = -1 if is_short else store.log.segments.prepared_end - reserve
        self._retry_at = self._broker.env.monotonic() + RETRY_S
        if is_short != self._is_short:
            self._is_short = is_short
            if is_short:
                log.error("next_log_file_refused")
            else:
                log.info("next_log_file_accepted")

    def _judge(self, usage: DiskUsage) -> None:
        full = is_full(usage, self._rules, bool(self.full))
        if full and not self.full:
            log.error("disk_full", used_percent=_used_percent(usage), free_bytes=usage.free)
        elif self.full and not full:
            log.info("disk_has_room", used_percent=_used_percent(usage), free_bytes=usage.free)
        self.full = self._reason(usage) if full else ""

    def _reason(self, usage: DiskUsage) -> str:
        enough = accepts_with(usage, self._rules)
        return (
            f"service not available now: {_used_percent(usage)}% of the broker's disk is used and "
            f"{usage.free / _GIB:.1f} GiB are free; messages are accepted again when {enough / _GIB:.1f} GiB are free "
            "(plugin.retention.disk_full)"
        )

    def _oldest_files(self, segments: list[Segment], now_ms: int) -> list[LogFile]:
        """Return the files that one round may delete: the oldest ones, without the current one.

        The times of files rise, so those behind one that is too young get its time and are not read.
        """
        old_ms = now_ms - self._rules.keep_ms
        files: list[LogFile] = []
        for number in range(min(len(segments) - 1, self._rules.files_at_once)):
            is_old = not files or files[-1].newest_ms <= old_ms
            newest_ms = self._newest_ms(segments, number) if is_old else files[-1].newest_ms
            files.append(LogFile(segments[number].base, segments[number].end, newest_ms))
        return files

    def _old_end(self, segments: list[Segment], files: list[LogFile], now_ms: int) -> int:
        """Return the offset up to which files are older than ``keep``, however many they are; 0 if none is.

        If more than the oldest ``files`` are, a binary search reads few of them when a plugin holds thousands.
        """
        old_end = old_before(files, now_ms, self._rules)
        if not files or old_end < files[-1].end:
            return old_end
        old_ms = now_ms - self._rules.keep_ms
        old = bisect_right(range(len(segments) - 1), old_ms, len(files), key=partial(self._newest_ms, segments))
        return segments[old - 1].end

    def _written(self) -> list[Segment]:
        """Return the files that have messages, with the current one."""
        commit_log = self._broker.log
        return [segment for segment in commit_log.segments if segment.base < commit_log.end]

    def _newest_ms(self, segments: list[Segment], number: int) -> int:
        """Return the time of the first message behind the file with this number, which is not before its last one's.

        If that message cannot be read, the next file's time counts, or that of the log's last message.
        """
        commit_log = self._broker.log
        for following in islice(segments, number + 1, None):
            known = self._times.get(following.base)
            if known is not None:
                return known
            with suppress(OutOfLog, CorruptRange, BadRecord):
                self._times[following.base] = time = commit_log.read_record(following.base).store_timestamp
                return time
        return commit_log.last_timestamp or self._broker.env.wall_ms()


def _used_percent(usage: DiskUsage) -> int:
    return round(100 * (1 - usage.free / usage.total)) if usage.total else 0

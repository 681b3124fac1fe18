"""Refusals by plugins of rows that the broker itself appends again.

A client still has a message that is refused. Of a delayed message, a commit or a retry, the broker has the only copy.
It tries again, so a refusal by a plugin is never final; the broker reports it with the plugin's name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import structlog

from gantrymq.kernel.batch import AppendBatch
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.rare_warnings import RareWarnings

log = structlog.get_logger("gantrymq.plugins")


class RefusalCounts:
    """Counts refusals of such rows by plugins that are not shipped with GantryMQ.

    MESSAGE_ILLEGAL, which means that the row can never be stored, becomes SERVICE_NOT_AVAILABLE, also if the log
    refuses a row after such a plugin had it.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock`` is monotonic, in seconds (``env.monotonic``)."""
        self.refused: Counter[tuple[str, str]] = Counter()
        """The number of refused rows by plugin and source."""
        self.third_party: dict[str, str] = {}
        """By source, the names of the plugins that get its rows and are not shipped with GantryMQ, as text."""
        self._warnings = RareWarnings(clock)

    def watch(self, plugin: str, function: Callable[[AppendBatch], object]) -> Callable[[AppendBatch], object]:
        """``function``, the hook of ``plugin``, with its refusals counted for that plugin."""

        def call(batch: AppendBatch) -> None:
            live = batch.live
            function(batch)
            if batch.refused:
                self._note(plugin, batch, live)

        return call

    def appended(self, batch: AppendBatch) -> None:
        """Count rows of ``batch`` that the log refused, because a plugin may have made them invalid."""
        third_party = self.third_party.get(batch.source)
        if third_party is not None:
            statuses = batch.statuses
            illegal = [row for row in range(len(batch)) if statuses[row] == ResponseCode.MESSAGE_ILLEGAL]
            self._note(third_party, batch, illegal)

    def _note(self, plugin: str, batch: AppendBatch, rows: Iterable[int]) -> None:
        statuses = batch.statuses
        for row in rows:
            code = statuses[row]
            if code == ResponseCode.SUCCESS:
                continue
            reason = batch.remarks.get(row, "")
            if code == ResponseCode.MESSAGE_ILLEGAL:
                statuses[row] = ResponseCode.SERVICE_NOT_AVAILABLE
            batch.remarks[row] = f"plugin {plugin!r}: {reason}"
            self.refused[plugin, batch.source] += 1
            topic = batch.topics[row]
            if self._warnings.is_due(f"{plugin} {batch.source} {topic}"):
                log.warning(
                    "own_message_refused", plugin=plugin, source=batch.source, topic=topic, code=int(code),
                    reason=reason,
                )  # fmt: skip

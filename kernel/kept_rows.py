"""Rows that the broker itself appends again: what a plugin refuses of them stays in the broker's keeping.

A client whose message is refused still has it. Of a delayed message, a commit or a retry the broker has the only copy:
it is tried again, so a plugin's word on it is never the last one, and is reported under the plugin's name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import structlog

from gantrymq.kernel.batch import AppendBatch
from gantrymq.kernel.rare_warnings import RareWarnings
from gantrymq.remoting.codes import ResponseCode

log = structlog.get_logger("gantrymq.plugins")


class KeptRows:
    """What plugins that do not come with GantryMQ refused of such rows.

    A row that one refuses as MESSAGE_ILLEGAL gets SERVICE_NOT_AVAILABLE instead: the first one says that it can never
    be stored. So does a row that the log refuses after such a plugin had it.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock``: seconds that never fall (``env.monotonic``)."""
        self.refused: Counter[tuple[str, str]] = Counter()
        """How often a row was refused, by plugin and source."""
        self.guests: dict[str, str] = {}
        """By source, the plugins that asked for its rows and do not come with GantryMQ, as text."""
        self._warnings = RareWarnings(clock)

    def watch(self, plugin: str, function: Callable[[AppendBatch], object]) -> Callable[[AppendBatch], object]:
        """``function``, the hook of ``plugin``; what it refuses counts as refused by that plugin."""

        def call(batch: AppendBatch) -> None:
            live = batch.live
            function(batch)
            if batch.refused:
                self._note(plugin, batch, live)

        return call

    def appended(self, batch: AppendBatch) -> None:
        """Look at what the log refused of ``batch``: a plugin may have made the row so that it cannot be stored."""
        guests = self.guests.get(batch.source)
        if guests is not None:
            statuses = batch.statuses
            illegal = [row for row in range(len(batch)) if statuses[row] == ResponseCode.MESSAGE_ILLEGAL]
            self._note(guests, batch, illegal)

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
                    "kept_message_refused", plugin=plugin, source=batch.source, topic=topic, code=int(code),
                    reason=reason,
                )  # fmt: skip

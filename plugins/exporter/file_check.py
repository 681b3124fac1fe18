"""Check ``config/exporter.json`` of a store that no broker uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.plugins.exporter.state import PATH, decode_state

if TYPE_CHECKING:
    from gantrymq.kernel.stopped_store import StoppedStore


def check_state(store: StoppedStore) -> None:
    """Check that no exported offset lies behind its queue's end, except in topics that were deleted."""
    state = store.read_table(PATH, decode_state, "the exporter's pause and counts; it reads the offsets of its export")
    if state is None:
        return
    for topic in sorted(state.ends.keys() - state.deleted):
        ends = state.ends[topic]
        for queue_id, offset in sorted(ends.items()):
            end = store.queue_ends.get((topic, queue_id), 0)
            if offset > end:
                store.note(
                    PATH, f"topic {topic!r}, queue {queue_id} is exported up to {offset}, and the queue ends at {end}",
                    "messages that get these offsets are not exported: the log has lost messages after their export",
                )  # fmt: skip

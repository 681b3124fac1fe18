"""Check ``config/exporter.json`` of a store that no broker uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.plugins.exporter.state import PATH, decode_state

if TYPE_CHECKING:
    from gantrymq.kernel.stopped_store import StoppedStore


def check_state(store: StoppedStore) -> None:
    """Check that no exported offset lies behind its queue's end, except in topics without queues: they were deleted."""
    state = store.read_table(PATH, decode_state, "the exporter's pause and counts; it reads the offsets of its export")
    if state is None:
        return
    topics = {topic for topic, _ in store.queue_ends}
    for topic in sorted(state.ends.keys() & topics):
        ends = state.ends[topic]
        for queue_id, offset in sorted(ends.items()):
            end = store.queue_ends.get((topic, queue_id), 0)
            if offset > end:
                store.note(
                    PATH, f"topic {topic!r}, queue {queue_id} is exported up to {offset}, and the queue ends at {end}",
                    "the log lost messages after their export: runs of the topic fail until its export is overwritten",
                )  # fmt: skip

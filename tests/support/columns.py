"""Contents of batches as plain lists, by which batches of different twins compare."""

from __future__ import annotations

from typing import Any, Final

from gantrymq.kernel.batch import AppendBatch, DispatchBatch

GIVEN: Final = (
    "topics", "queue_ids", "bodies", "properties", "flags", "sys_flags", "born_timestamps", "born_hosts",
    "reconsume_times", "prepared_offsets", "waits",
)  # fmt: skip
"""The columns of an :class:`AppendBatch` that a producer fills, but for its origins."""
APPENDED: Final = (*GIVEN, "statuses", "offsets", "sizes", "queue_offsets")
DISPATCHED: Final = (
    "offsets", "sizes", "topics", "queue_ids", "queue_offsets", "store_timestamps", "sys_flags", "prepared_offsets",
    "properties", "tag_codes",
)  # fmt: skip


def columns_of(batch: AppendBatch | DispatchBatch) -> dict[str, list[Any]]:
    """A copy of each column by its name."""
    names = DISPATCHED if hasattr(batch, "tag_codes") else APPENDED
    return {name: list(getattr(batch, name)) for name in names}


def dispatched(batch: DispatchBatch) -> tuple[Any, ...]:
    """All of a dispatch batch that can be seen, to be compared."""
    views = [(key, batch.tag_codes_of(*key)) for key in batch.queues]
    numbers = (batch.start, batch.end, batch.replay, len(batch), batch.newest_timestamp, batch.sys_flag_bits)
    return columns_of(batch), *numbers, views

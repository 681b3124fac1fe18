"""Plugins for the group ``hooks`` that read only a batch's traits, as most plugins do for most batches."""

from __future__ import annotations

from gantrymq.kernel import hookimpl
from gantrymq.kernel.batch import AppendBatch, Trait

MOST = 10


class Looking:
    """Ignores messages without a delay."""

    name = "looking"

    @hookimpl
    def before_append(self, batch: AppendBatch) -> None:
        """Does nothing unless a row has a delay."""
        if batch.traits & Trait.DELAY:
            raise RuntimeError("the benchmark sends no delayed messages")


for _number in range(1, MOST + 1):
    globals()[f"Looking{_number}"] = type(f"Looking{_number}", (Looking,), {"name": f"looking{_number}"})

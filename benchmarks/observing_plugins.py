"""Plugins that look only at what a batch is about, as most do with most batches: for the group ``hooks``."""

from __future__ import annotations

from gantrymq.kernel import hookimpl
from gantrymq.kernel.batch import AppendBatch, Trait

MOST = 10


class Looking:
    """Leaves messages without a delay alone."""

    name = "looking"

    @hookimpl
    def before_append(self, batch: AppendBatch) -> None:
        """Nothing to do, unless a row has a delay."""
        if batch.traits & Trait.DELAY:
            raise RuntimeError("the benchmark sends no delayed messages")


for _number in range(1, MOST + 1):
    globals()[f"Looking{_number}"] = type(f"Looking{_number}", (Looking,), {"name": f"looking{_number}"})

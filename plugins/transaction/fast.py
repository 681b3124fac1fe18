"""The inner loops of transactions. ``KIND`` names the twin in use, ``compiled`` or ``plain``, as in ``kernel/fast``,
whose compiled rows the compiled twin uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.kernel import fast
from gantrymq.plugins.transaction.plain import Ending, EndTerms

if TYPE_CHECKING:
    from gantrymq.plugins.transaction import plain as twin
else:
    twin = fast.twin_of(__package__)

KIND = twin.KIND
add_ends = twin.add_ends
close_ends = twin.close_ends
divert_rows = twin.divert_rows
half_rows = twin.half_rows
match_records = twin.match_records
read_endings = twin.read_endings
split_named = twin.split_named

__all__ = [
    "KIND", "EndTerms", "Ending", "add_ends", "close_ends", "divert_rows", "half_rows", "match_records",
    "read_endings", "split_named",
]  # fmt: skip

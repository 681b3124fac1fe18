"""The inner loops of pulls. ``KIND`` names the twin in use, ``compiled`` or ``plain``, as in ``kernel/fast``, whose
compiled requests the compiled twin needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.kernel import fast

if TYPE_CHECKING:
    from gantrymq.plugins.consume import plain as twin
else:
    twin = fast.twin_of(__package__)

KIND = twin.KIND
READERS = twin.READERS
PullResponses = twin.PullResponses
gather = twin.gather
read_pull_header = twin.read_pull_header

__all__ = ["KIND", "READERS", "PullResponses", "gather", "read_pull_header"]

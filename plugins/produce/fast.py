"""The inner loops of sends. ``KIND`` names the twin in use, ``compiled`` or ``plain``, as in ``kernel/fast``, whose
compiled requests and rows the compiled twin uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.kernel import fast

if TYPE_CHECKING:
    from gantrymq.plugins.produce import plain as twin
else:
    twin = fast.twin_of(__package__)

KIND = twin.KIND
READERS = twin.READERS
add_sends = twin.add_sends
answer_sends = twin.answer_sends

__all__ = ["KIND", "READERS", "add_sends", "answer_sends"]

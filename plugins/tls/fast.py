"""The inner loop of TLS. ``KIND`` names the twin in use, ``compiled`` or ``plain``, as in ``kernel/fast``, whose loops
over all sockets use the compiled twin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.kernel import fast

if TYPE_CHECKING:
    from gantrymq.plugins.tls import plain as twin
else:
    twin = fast.twin_of(__package__)

KIND = twin.KIND
RecordLayer = twin.RecordLayer

__all__ = ["KIND", "RecordLayer"]

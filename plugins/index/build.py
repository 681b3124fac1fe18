"""The index's inner loops. ``KIND`` says which of the twins runs, ``compiled`` or ``plain``, as in ``kernel/fast``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.kernel.env import environment
from gantrymq.plugins.index.plain import key_hash, message_keys

if TYPE_CHECKING or environment("GANTRYMQ_PURE") == "1":
    from gantrymq.plugins.index import plain as twin
else:
    try:
        from gantrymq.plugins.index import _build as twin
    except ImportError:
        from gantrymq.plugins.index import plain as twin

KIND = twin.KIND
first_with_keys = twin.first_with_keys
put_rows = twin.put_rows
rebuild_slots = twin.rebuild_slots

__all__ = ["KIND", "first_with_keys", "key_hash", "message_keys", "put_rows", "rebuild_slots"]

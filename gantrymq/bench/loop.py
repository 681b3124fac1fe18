"""The load generator's inner loop. ``KIND`` names the twin in use, ``compiled`` or ``plain``.

The plain twin is the reference. It is also used if the package was installed without a C compiler, and with
``GANTRYMQ_PURE=1``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING or os.environ.get("GANTRYMQ_PURE") == "1":
    from gantrymq.bench import plain_loop as _twin
else:
    try:
        from gantrymq.bench import _loop as _twin
    except ImportError:
        from gantrymq.bench import plain_loop as _twin

KIND = _twin.KIND
Loop = _twin.Loop

__all__ = ["KIND", "Loop"]

"""The options of the nameserver that ``gantrymq serve`` runs in its process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import attrs


@attrs.frozen
class OwnNameserver:
    """``listen``: its address; ``peers``: addresses that may change routes; ``access``: the file of their keys;
    ``audit``: the file of the audit."""

    listen: str
    peers: Sequence[str] = ()
    access: Path | None = None
    audit: Path | None = None

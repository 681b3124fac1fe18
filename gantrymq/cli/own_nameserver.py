"""The options of a nameserver that a command runs in its process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from gantrymq.remoting.tls import ServerTls


@attrs.frozen
class OwnNameserver:
    """``listen``: its address; ``peers``: addresses that may change routes; ``access``: the file of their keys;
    ``audit``: the file of the audit."""

    listen: str
    peers: Sequence[str] = ()
    access: Path | None = None
    audit: Path | None = None


@attrs.frozen
class NameserverTls:
    """The files of the nameserver's TLS, and whether it refuses plain connections."""

    files: ServerTls
    enforcing: bool = True

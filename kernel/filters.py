"""What a compiled subscription expression is to the kernel: a test of consume queue entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class MessageFilter(Protocol):
    """A compiled expression. ``matches_all`` spares the test of single entries."""

    @property
    def matches_all(self) -> bool:
        """Whether every entry passes."""

    def matches(self, tag_code: int) -> bool:
        """Whether an entry with this tag code may be wanted; the client tests the exact tag again."""


FilterCompiler = Callable[[str], MessageFilter]
"""From an expression to its filter; raises ``RemoteFault`` with code 23 for one that cannot be read."""

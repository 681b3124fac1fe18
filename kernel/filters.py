"""The interface of a compiled subscription expression: a test of consume queue entries, then of records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from typing import ClassVar, Protocol

EXTENSION_ADDRESSES_END = -(2**31)
"""Tag codes below this value are not hashes but addresses in the queue's extension, which has the hash.

Only RocketMQ with ``enableConsumeQueueExt`` writes such entries (``ConsumeQueueExt.isExtAddr``). The tag is unknown:
the entry passes, and the client tests the tag itself.
"""


class MessageFilter(Protocol):
    """A compiled expression. ``matches_all`` makes the test of single entries unnecessary."""

    @property
    def matches_all(self) -> bool:
        """Whether every entry passes."""

    def matches(self, tag_code: int) -> bool:
        """Return whether an entry with this tag code may match; the client tests the exact tag again."""


class CodeFilter(ABC):
    """A compiled expression that only tests whether the tag code is one of ``codes``; if empty, all entries pass.

    Codes below :data:`EXTENSION_ADDRESSES_END` pass too. The compiled twin compares the codes itself instead of calling
    this filter.
    """

    __slots__ = ()
    codes: frozenset[int]


class RecordFilter(ABC):
    """A compiled expression that needs the messages' properties: messages that pass the test of entries are read first.

    A base class and not a protocol, because each pull checks for it with ``isinstance``.
    """

    __slots__ = ()
    matches_all: ClassVar[bool] = False
    """The broker ignores another value: ``select`` decides, whatever the entries are."""

    @abstractmethod
    def matches(self, tag_code: int) -> bool:
        """As :meth:`MessageFilter.matches`."""

    @abstractmethod
    def select(self, properties: Sequence[bytes]) -> list[bool]:
        """Return which of the messages with these encoded properties match. Never raises: an unknown result is no
        match."""

    def cost(self, size: int) -> int:
        """Return the work to decide about a message with ``size`` bytes of properties, in units of half a microsecond.

        Above 0. It limits how many messages one pull examines.
        """
        return 10


FilterSteps = Generator[None, None, MessageFilter]
FilterCompiler = Callable[[str], MessageFilter | FilterSteps]
"""Compiles an expression into its filter; raises ``RemoteFault`` with code 23 for an invalid expression.

For an expression that takes longer than a millisecond it returns a generator, which yields at least once a millisecond,
raises as above, and returns the filter.
"""


def compile_steps(compiler: FilterCompiler, expression: str) -> FilterSteps:
    """Return a generator that returns the filter of ``expression``, whichever of the two ``compiler`` returns."""
    made = compiler(expression)
    return (yield from made) if isinstance(made, Generator) else made

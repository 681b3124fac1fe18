"""What a compiled subscription expression is to the kernel: a test of consume queue entries, then of the records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from typing import ClassVar, Protocol

EXTENSION_ADDRESSES_END = -(2**31)
"""Tag codes below it are no hashes: they say where a queue's extension file keeps the hash and more.

Only RocketMQ with ``enableConsumeQueueExt`` writes such entries (``ConsumeQueueExt.isExtAddr``). Any tag may be meant:
the entry passes, and the client tests the tag itself.
"""


class MessageFilter(Protocol):
    """A compiled expression. ``matches_all`` spares the test of single entries."""

    @property
    def matches_all(self) -> bool:
        """Whether every entry passes."""

    def matches(self, tag_code: int) -> bool:
        """Whether an entry with this tag code may be wanted; the client tests the exact tag again."""


class CodeFilter(ABC):
    """A compiled expression that looks at nothing but whether the tag code is one of ``codes``; none: all pass.

    What is below :data:`EXTENSION_ADDRESSES_END` passes too. The compiled twin asks no such filter, it compares the
    codes itself.
    """

    __slots__ = ()
    codes: frozenset[int]


class RecordFilter(ABC):
    """A compiled expression that has to see the messages' properties: what passes the entries' test is read first.

    A base class and no protocol, for it is asked for with each pull.
    """

    __slots__ = ()
    matches_all: ClassVar[bool] = False

    @abstractmethod
    def matches(self, tag_code: int) -> bool:
        """As :meth:`MessageFilter.matches`."""

    @abstractmethod
    def select(self, properties: Sequence[bytes]) -> list[bool]:
        """Which of the messages with these encoded properties are wanted. Never raises: what cannot be told is not."""

    def cost(self, size: int) -> int:
        """The work to decide about a message with ``size`` bytes of properties, in units of half a microsecond.

        Above 0. It bounds how many messages one pull looks at.
        """
        return 10


FilterSteps = Generator[None, None, MessageFilter]
FilterCompiler = Callable[[str], MessageFilter | FilterSteps]
"""From an expression to its filter; raises ``RemoteFault`` with code 23 for one that cannot be read.

For an expression that takes longer than a millisecond it returns a generator: that yields where it may rest, at least
once a millisecond, raises as above, and returns the filter.
"""


def compile_steps(compiler: FilterCompiler, expression: str) -> FilterSteps:
    """A generator that returns the filter of ``expression``, whichever of the two ``compiler`` returns."""
    made = compiler(expression)
    return (yield from made) if isinstance(made, Generator) else made

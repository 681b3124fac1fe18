"""SQL92 expressions on message properties: RocketMQ's dialect, parsed once per subscription.

``a > 5 AND (region IN ('eu', 'us') OR b IS NULL)``. Comparison, BETWEEN, IN, IS NULL, AND, OR, NOT; comments. Names
and keywords are those of ``SelectorParser.jj`` of RocketMQ 4.9.7; as there, text behind a complete expression is
ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

import attrs

from gantrymq.kernel.filters import RecordFilter
from gantrymq.plugins.filter.expressions import BadExpression
from gantrymq.plugins.filter.parser import SyntaxFault, parse
from gantrymq.plugins.filter.values import EvaluationFailed
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.properties import find_property
from gantrymq.remoting.steps import run_steps

EXPRESSION_MAX = 16_384
"""The most characters, enough for an IN with a thousand values. Parsing takes at most a tenth of a second of processor
time, in steps between which other requests are served. RocketMQ has no limit."""
STEPS_FROM = 256
"""Expressions of fewer characters are parsed in one step, which takes a millisecond."""
BYTES_SEARCHED = 1024
"""Bytes of properties that are searched in half a microsecond."""


@attrs.frozen(eq=False)
class PropertyFilter(RecordFilter):
    """A compiled expression. Queue entries have no properties, so each entry may match."""

    condition: Callable[[dict[str, str]], object]
    names: tuple[tuple[str, bytes], ...]
    size: int
    """The number of parts."""

    def cost(self, size: int) -> int:
        """See ``RecordFilter``: each part is evaluated, and each name is searched in all properties."""
        return 10 + self.size + len(self.names) * (2 + size // BYTES_SEARCHED)

    def matches(self, tag_code: int) -> bool:
        """Return True: only the record can decide."""
        return True

    def select(self, properties: Sequence[bytes]) -> list[bool]:
        """Return which of the messages with these encoded properties match; one whose evaluation fails does not."""
        return [self._holds(raw) for raw in properties]

    def _holds(self, raw: bytes) -> bool:
        values = {}
        for name, encoded in self.names:
            found = find_property(raw, encoded)
            if found is not None:
                values[name] = found.decode("utf-8", "replace")
        try:
            return self.condition(values) is True
        except EvaluationFailed:
            return False


def compile_sql92(expression: str) -> PropertyFilter:
    """Return the filter of ``expression``; ``RemoteFault`` (23) names the position of a syntax error."""
    return run_steps(_compile(expression))


def compile_in_steps(expression: str) -> PropertyFilter | Generator[None, None, PropertyFilter]:
    """As :func:`compile_sql92`; for a long expression returns a generator. Both are a ``FilterCompiler``."""
    steps = _compile(expression)
    return run_steps(steps) if len(expression) < STEPS_FROM else steps


def _compile(expression: str) -> Generator[None, None, PropertyFilter]:
    if len(expression) > EXPRESSION_MAX:
        raise _refusal(f"it has more than {EXPRESSION_MAX} characters")
    try:
        part = yield from parse(expression)
    except (SyntaxFault, BadExpression, EvaluationFailed) as error:
        raise _refusal(str(error)) from None
    return PropertyFilter(part.evaluate, tuple((name, name.encode()) for name in sorted(part.names)), part.size)


def _refusal(reason: str) -> RemoteFault:
    return RemoteFault(ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"the SQL92 expression: {reason}")

"""Tag expressions: ``*``, or tags joined by ``||``.

The broker compares hashes only, so it never reads the record. After a hash collision the client drops the message by
its exact tag. Source: ``FilterAPI.buildSubscriptionData`` of RocketMQ 4.9.7.
"""

from __future__ import annotations

from collections.abc import Generator

import attrs

from gantrymq.kernel.fast import tag_code
from gantrymq.kernel.filters import EXTENSION_ADDRESSES_END, CodeFilter
from gantrymq.plugins.filter.values import BLANKS
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.properties import java_hash
from gantrymq.remoting.property_bytes import TAGS
from gantrymq.remoting.steps import run_steps

EXPRESSION_MAX = 65_536
"""The most characters, about ten thousand tags. RocketMQ has no limit; here a subscription must fit into a heartbeat
(``plugin.clients.max_heartbeat_bytes``), and memory is limited."""
STEPS_FROM = 2048
"""Expressions of fewer characters are compiled in one step, which takes a millisecond."""
STEP_TAGS = 64
"""Tags per step."""


@attrs.frozen
class TagFilter(CodeFilter):
    """Passes entries whose tag code is one of ``codes``; all entries if ``codes`` is empty."""

    codes: frozenset[int]

    @property
    def matches_all(self) -> bool:
        """Whether the expression was ``*``."""
        return not self.codes

    def matches(self, tag_code: int) -> bool:
        """Return whether the entry may have a wanted tag."""
        return not self.codes or tag_code in self.codes or tag_code < EXTENSION_ADDRESSES_END


def compile_tags(expression: str) -> TagFilter:
    """Return the filter of a tag expression; ``RemoteFault`` (23) if it has no tag or too many characters."""
    return run_steps(_compile(expression))


def compile_in_steps(expression: str) -> TagFilter | Generator[None, None, TagFilter]:
    """As :func:`compile_tags`; for a long expression returns a generator. Both are a ``FilterCompiler``."""
    steps = _compile(expression)
    return run_steps(steps) if len(expression) < STEPS_FROM else steps


def _compile(expression: str) -> Generator[None, None, TagFilter]:
    if len(expression) > EXPRESSION_MAX:
        raise RemoteFault(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"the tag expression has {len(expression)} characters, {EXPRESSION_MAX} are the limit: use fewer tags",
        )
    if expression in ("", "*"):
        return TagFilter(frozenset())
    codes: set[int] = set()
    for number, tag in enumerate(expression.split("||"), start=1):
        stripped = tag.strip(BLANKS)
        if stripped:
            codes.add(_code_of(stripped))
        if number % STEP_TAGS == 0:
            yield
    if not codes:
        raise RemoteFault(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "the tag expression has no tag")
    return TagFilter(frozenset(codes))


def _code_of(tag: str) -> int:
    """Return the tag code of a queue entry for this tag, by the compiled hash, which is fifty times as fast."""
    try:
        encoded = tag.encode()
    except UnicodeEncodeError:
        return java_hash(tag)  # a lone surrogate, which encoded properties cannot contain
    return java_hash(tag) if b"\x02" in encoded else tag_code(TAGS + b"\x01" + encoded)

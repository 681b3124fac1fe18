"""Tag expressions: ``*``, or tags joined by ``||``.

The broker compares hashes only, so that it never touches the record; a collision lets a message through that the client
drops by its exact tag. Source: ``FilterAPI.buildSubscriptionData`` of RocketMQ 4.9.7.
"""

from __future__ import annotations

from collections.abc import Generator

import attrs

from gantrymq.kernel.fast import tag_code
from gantrymq.kernel.filters import EXTENSION_ADDRESSES_END, CodeFilter
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.properties import java_hash
from gantrymq.remoting.property_bytes import TAGS
from gantrymq.remoting.steps import run_steps

EXPRESSION_MAX = 65_536
"""Characters: some ten thousand tags. RocketMQ has no limit; here what a consumer says of itself must fit into a
heartbeat (``plugin.clients.max_heartbeat_bytes``), and memory has limits."""
STEPS_FROM = 2048
"""Characters; a shorter expression is compiled in one go, in a millisecond."""
STEP_TAGS = 64
"""Tags of one step."""


@attrs.frozen
class TagFilter(CodeFilter):
    """Passes entries whose tag code is one of ``codes``; all when there are none."""

    codes: frozenset[int]

    @property
    def matches_all(self) -> bool:
        """Whether the expression was ``*``."""
        return not self.codes

    def matches(self, tag_code: int) -> bool:
        """Whether the entry may carry a wanted tag."""
        return not self.codes or tag_code in self.codes or tag_code < EXTENSION_ADDRESSES_END


def compile_tags(expression: str) -> TagFilter:
    """The filter of a tag expression; ``RemoteFault`` (23) for one without a tag, or of too many characters."""
    return run_steps(_compile(expression))


def compile_in_steps(expression: str) -> TagFilter | Generator[None, None, TagFilter]:
    """As :func:`compile_tags`, and one that takes long as a generator, which is a ``FilterCompiler`` both times."""
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
        stripped = tag.strip()
        if stripped:
            codes.add(_code_of(stripped))
        if number % STEP_TAGS == 0:
            yield
    if not codes:
        raise RemoteFault(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "the tag expression holds no tag")
    return TagFilter(frozenset(codes))


def _code_of(tag: str) -> int:
    """What the queue entry of a message with this tag has; the compiled hash, which takes a fiftieth of the time."""
    try:
        encoded = tag.encode()
    except UnicodeEncodeError:
        return java_hash(tag)  # half of a surrogate pair, which no message's properties can have
    return java_hash(tag) if b"\x02" in encoded else tag_code(TAGS + b"\x01" + encoded)

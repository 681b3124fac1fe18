"""Tag expressions: ``*``, or tags joined by ``||``.

The broker compares hashes only, so that it never touches the record; a collision lets a message through that the client
drops by its exact tag. Source: ``FilterAPI.buildSubscriptionData`` of RocketMQ 4.9.7.
"""

from __future__ import annotations

import attrs

from gantrymq.kernel.fast import tag_code
from gantrymq.kernel.filters import EXTENSION_ADDRESSES_END, CodeFilter, MessageFilter
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.properties import java_hash

EXPRESSION_MAX = 65_536
"""Characters: some ten thousand tags. RocketMQ has no limit; here an expression is compiled while other connections
wait, and what a consumer says of itself must fit into a heartbeat (``plugin.clients.max_heartbeat_bytes``)."""


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


def compile_tags(expression: str) -> MessageFilter:
    """The filter of a tag expression; ``RemoteFault`` (23) for one without a tag, or of too many characters."""
    if len(expression) > EXPRESSION_MAX:
        raise RemoteFault(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"the tag expression has {len(expression)} characters, {EXPRESSION_MAX} are the limit: use fewer tags",
        )
    if expression in ("", "*"):
        return TagFilter(frozenset())
    tags = [tag.strip() for tag in expression.split("||")]
    codes = frozenset(_code_of(tag) for tag in tags if tag)
    if not codes:
        raise RemoteFault(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "the tag expression holds no tag")
    return TagFilter(codes)


def _code_of(tag: str) -> int:
    """What the queue entry of a message with this tag has; the compiled hash, which takes a fiftieth of the time."""
    try:
        encoded = tag.encode()
    except UnicodeEncodeError:
        return java_hash(tag)  # half of a surrogate pair, which no message's properties can have
    return java_hash(tag) if b"\x02" in encoded else tag_code(b"TAGS\x01" + encoded)

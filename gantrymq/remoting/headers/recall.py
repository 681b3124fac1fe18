"""The headers of requests that recall a timed message.

Source: RocketMQ 5.3.3 ``RecallMessageRequestHeader``, ``RecallMessageResponseHeader``; 4.9 has no such request.
"""

from __future__ import annotations

from gantrymq.remoting.headers.header import Header


class RecallMessageHeader(Header, kw_only=True):
    """RECALL_MESSAGE (370): the message of ``recall_handle``, which the response to its send had."""

    producer_group: str | None = None
    topic: str
    recall_handle: str


class RecallMessageResponse(Header, kw_only=True):
    """The unique key of the message that was recalled."""

    msg_id: str

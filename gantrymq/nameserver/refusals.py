"""Logs refused requests: changes of the tables once an hour for each host and request code, others at debug.

Any client can repeat refused requests without end, and a remark may contain a text of the request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.peers import site_of
from gantrymq.remoting.rare_warnings import RareWarnings

REMARK_CHARACTERS: Final = 300
"""The most characters of a remark in the log; the response has all of them."""

log = structlog.get_logger("gantrymq.nameserver")


class RefusalLog:
    """Logs refusals. ``clock`` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._rare = RareWarnings(clock)

    def report(self, code: int, peer: str, fault: RemoteFault, *, is_change: bool) -> None:
        """Log that a request with ``code`` of ``peer`` (``host:port``) was refused because of ``fault``;
        ``is_change``: it would have changed the tables."""
        write = log.debug
        if is_change:
            host = peer.rpartition(":")[0].strip("[]")
            if not self._rare.is_due(f"{site_of(host)} {code}"):
                return
            write = log.info
        remark = (fault.remark or "")[:REMARK_CHARACTERS]
        write("request_refused", peer=peer, code=code, answer=fault.code, remark=remark)

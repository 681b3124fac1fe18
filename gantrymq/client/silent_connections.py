"""End a connection on which nothing arrives any more, so that a new one is opened.

When a firewall, a NAT or a load balancer has forgotten a connection, or after a long partition, its packets get lost
although a new connection would work. TCP notices that after a quarter of an hour. RocketMQ's Java client closes a
connection with the first call that gets no answer (4.9.7 ``NettyRemotingClient.invokeSync``); this one also looks
whether the peer, which may only be slow, has sent anything else.
"""

from __future__ import annotations

from typing import Final

import anyio

from gantrymq.remoting.channel import Channel
from gantrymq.remoting.logs import LibraryLog

SILENCE_SECONDS: Final = 20.0
"""If nothing was received between two calls that got no answer, and they ended so far apart, the connection ends.

Heartbeats are such calls: a connection without others ends about a minute after its packets began to get lost.
"""

log: LibraryLog = LibraryLog()


class SilenceWatch:
    """Watches one connection; ``Channel.on_timeout`` of it is :meth:`note_timeout`."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._silent_since: float | None = None
        """The end of the first call without an answer since the last bytes; the silence began before it."""

    def note_timeout(self) -> None:
        """A call has got no answer in time."""
        now = anyio.current_time()
        if self._channel.take_heard() or self._silent_since is None:
            self._silent_since = now
            return
        seconds = now - self._silent_since
        if seconds >= SILENCE_SECONDS:
            log.warning("silent_connection_closed", address=self._channel.address, silent_s=round(seconds))
            self._channel.abandon(f"nothing was received for {seconds:.0f} s, although calls waited")

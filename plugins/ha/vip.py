"""The second port of a master, two below the first: RocketMQ's slaves fetch its topics only there.

RocketMQ has this port for requests that a busy first port must not delay (``fastRemotingServer``). GantryMQ forwards it
to the first port, because its requests are rare and small. Source: RocketMQ 4.9.7 ``SlaveSynchronize``,
``MixAll.brokerVIPChannel``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog
import trio

from gantrymq.remoting.address import parse_address

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker

log = structlog.get_logger("gantrymq.ha")

BELOW: Final = 2
CONNECTIONS_MAX: Final = 32
_PIECE_BYTES: Final = 64 * 1024
_ENDED = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)


class VipPort:
    """Forwards connections of this port to the broker's own while :meth:`run` runs."""

    def __init__(self, broker: Broker) -> None:
        self._host, self._port = parse_address(broker.listening)
        self._room = trio.CapacityLimiter(CONNECTIONS_MAX)

    async def run(self) -> None:
        """Forward until cancelled. If another process uses the port, only RocketMQ's slaves are affected."""
        port = self._port - BELOW
        try:
            listeners = await trio.open_tcp_listeners(port, host=self._host)
        except (OSError, OverflowError) as error:
            log.warning("vip_port_not_opened", port=port, reason=str(error))
            return
        await trio.serve_listeners(self._lead, listeners)

    async def _lead(self, near: trio.SocketStream) -> None:
        host = "127.0.0.1" if self._host == "0.0.0.0" else "::1" if self._host == "::" else self._host  # noqa: S104
        try:
            async with (
                near,
                self._room,
                await trio.open_tcp_stream(host, self._port) as far,
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(_carry, near, far, nursery.cancel_scope)
                await _carry(far, near, nursery.cancel_scope)
        except* _ENDED as ended:
            log.debug("connection_closed", reason=str(ended.exceptions[0]))


async def _carry(source: trio.SocketStream, target: trio.SocketStream, both: trio.CancelScope) -> None:
    while data := await source.receive_some(_PIECE_BYTES):
        await target.send_all(data)
    both.cancel()

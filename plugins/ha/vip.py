"""The second port of a master, two below the first: RocketMQ's slaves fetch its topics only there.

RocketMQ has this port for requests that a busy first port must not delay (``fastRemotingServer``). GantryMQ serves its
connections as those of the first port, because such requests are rare and small. Source: RocketMQ 4.9.7
``SlaveSynchronize``, ``MixAll.brokerVIPChannel``.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import structlog

from gantrymq.kernel.network.listening import accept_from
from gantrymq.remoting.address import parse_address

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker

log = structlog.get_logger("gantrymq.ha")

BELOW: Final = 2
BACKLOG: Final = 64


class VipPort:
    """Accepts connections for the broker's own port while :meth:`run` runs."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def run(self) -> None:
        """Accept until cancelled. If another process uses the port, only RocketMQ's slaves are affected."""
        host, port = parse_address(self._broker.listening)
        with contextlib.ExitStack() as stack:
            try:
                listener = stack.enter_context(contextlib.closing(self._broker.env.bind(host, port - BELOW)))
                listener.listen(BACKLOG)
            except (OSError, OverflowError) as error:
                log.warning("vip_port_not_opened", port=port - BELOW, reason=str(error))
                return
            while True:
                self._broker.serve_connection(*await accept_from(listener, "a slave at the VIP port"))

"""Notify brokers that the lowest id of their name has changed: RocketMQ 5's NOTIFY_MIN_BROKER_ID_CHANGE (905).

A broker with acting masters then starts or stops to act at once, and not only after its next request for the members.
The notice is a oneway request to the address for clients; after a lost one, the broker learns of the change by that
request.
Source: RocketMQ 5.3.3 ``RouteInfoManager.notifyMinBrokerIdChanged``.
"""

from __future__ import annotations

from typing import Final

import structlog
import trio

from gantrymq.nameserver.live import MinimumChange
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import ConnectError
from gantrymq.remoting.headers.replication import MinimumChangedHeader

NOTIFY_SECONDS: Final = 1.0
"""The time for connection and notice, in seconds. RocketMQ allows 300 ms for the notice alone."""
WAITING_MAX: Final = 1000

log = structlog.get_logger("gantrymq.nameserver")


class Notices:
    """Queues changes, and sends them one after the other, each to all its brokers concurrently."""

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[MinimumChange](WAITING_MAX)

    def add(self, change: MinimumChange) -> None:
        """Queue ``change``; it is dropped if a thousand changes wait."""
        try:
            self._send.send_nowait(change)
        except trio.WouldBlock:
            log.warning("minimum_broker_id_notice_dropped", broker=change.name)

    async def run(self) -> None:
        """Until cancelled."""
        async for change in self._receive:
            async with trio.open_nursery() as nursery:
                for address in change.listeners:
                    nursery.start_soon(self._notify, address, change)

    async def _notify(self, address: str, change: MinimumChange) -> None:
        header = MinimumChangedHeader(
            min_broker_id=change.broker_id,
            min_broker_addr=change.address,
            offline_broker_addr=change.left,
            ha_broker_addr=change.ha_address,
        )
        with trio.move_on_after(NOTIFY_SECONDS) as wait:
            try:
                async with open_channel(address) as channel:
                    await channel.send_oneway(Command(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, header.to_ext()))
                log.info("minimum_broker_id_notice_sent", broker=change.name, address=address, minimum=change.broker_id)
            except (ConnectError, ValueError) as error:  # ValueError: the registered text is not an address
                log.info("minimum_broker_id_notice_not_sent", address=address, reason=str(error)[:200])
        if wait.cancelled_caught:
            log.info("minimum_broker_id_notice_not_sent", address=address, reason="no connection in time")

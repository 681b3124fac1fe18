"""Two brokers must not go by one name and number: clients would be sent to either, and each has a log of its own.

Before a broker registers over a new connection it looks who is registered by its name and number. If that is another
address, and a broker by this name and number answers there, the newcomer stays away: at its start it ends with a text
that names both, later it goes on without this nameserver. RocketMQ's nameserver lets the later one take the place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog
import trio

from gantrymq.kernel.errors import StartError
from gantrymq.remoting.bodies import ClusterInfo, KVTable
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import ConnectError, RemoteFault
from gantrymq.remoting.javaproperties import read_properties

if TYPE_CHECKING:
    from gantrymq.kernel.broker import Broker

log = structlog.get_logger("gantrymq.register")

PROBE_S: Final = 2.0
"""How long the other address may take to answer; a machine that is gone holds up the registration so long."""
RUN_KEY: Final = "brokerRun"
"""Under this name a broker's runtime information has the number of its run."""
_RUN_BITS: Final = 62


class Rivals:
    """Finds another live broker of this name and number. ``run``: a number by which this broker knows itself again."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._established = False
        self.run = f"{broker.env.random_int(1 << _RUN_BITS):x}"

    def registered(self) -> None:
        """A nameserver has taken this broker: from now on a rival does not end it."""
        self._established = True

    async def check(self, nameserver: Channel, timeout: float) -> None:
        """Returns when the place is free, or nobody can tell.

        With a rival :class:`StartError`, and :class:`RemoteFault` once this broker was registered anywhere; what the
        nameserver's connection may raise.
        """
        address = await self._registered_address(nameserver, timeout)
        if not address or address == self._broker.address or not await self._lives(address):
            return
        broker = self._broker
        text = (
            f"{address} is a broker {broker.name!r} with the id {broker.broker_id} already, and answers; this one at "
            f"{broker.address} must have another broker.name or broker.id (a slave of it: an id that is free, above 0)"
        )
        if not self._established:
            raise StartError(text)
        raise RemoteFault(ResponseCode.SYSTEM_ERROR, text)

    async def _registered_address(self, nameserver: Channel, timeout: float) -> str:
        try:
            answer = await nameserver.call(Command(RequestCode.GET_BROKER_CLUSTER_INFO), timeout)
            table = ClusterInfo.from_bytes(answer.body or b"{}").broker_addr_table if answer.code == 0 else {}
        except RemoteFault as fault:
            log.debug("nameserver_lists_no_brokers", address=nameserver.address, reason=fault.remark)
            return ""
        known = table.get(self._broker.name)
        return "" if known is None else known.broker_addrs.get(self._broker.broker_id, "")

    async def _lives(self, address: str) -> bool:
        """Whether another broker of this name and number answers there."""
        try:
            with trio.fail_after(PROBE_S):
                async with open_channel(address) as channel:
                    settings = await channel.call(Command(RequestCode.GET_BROKER_CONFIG))
                    runtime = await channel.call(Command(RequestCode.GET_BROKER_RUNTIME_INFO))
            if settings.code or runtime.code:
                return False
            says = read_properties(bytes(settings.body or b""))
            run = KVTable.from_bytes(runtime.body).table.get(RUN_KEY)
        except (ConnectError, RemoteFault, ValueError, trio.TooSlowError) as error:
            log.info("the registered one does not answer", address=address, reason=str(error) or "no answer")
            return False
        broker = self._broker
        named = (says.get("brokerName"), says.get("brokerId"), says.get("brokerClusterName"))
        return named == (broker.name, str(broker.broker_id), broker.cluster) and run != self.run

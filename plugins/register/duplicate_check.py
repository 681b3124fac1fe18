"""Two brokers must not go by one name and number: clients would be sent to either, and each has a log of its own.

Before a broker registers over a new connection it looks who is registered by its name and number. If that is another
address, and a broker by this name and number answers there, the newcomer stays away: at its start it ends with a text
that names both, later it goes on without this nameserver. RocketMQ's nameserver lets the later one take the place.

Two that start at the same instant both find the place free. So a newcomer looks a few times more while it settles: who
finds the other one there knows by their runs which of them came first. That one takes the place back, the other ends.

Of two masters the one that was promoted later stays, whoever came first: epochs stand above all of this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import attrs
import structlog
import trio

from gantrymq.kernel.errors import StartError
from gantrymq.remoting.bodies.routes import ClusterInfo
from gantrymq.remoting.bodies.tables import KVTable
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.epoch import EPOCH_KEY, Epoch, epoch_in
from gantrymq.remoting.errors import ConnectError, RemoteFault
from gantrymq.remoting.javaproperties import read_properties

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.plugins.interfaces import Replication

log = structlog.get_logger("gantrymq.register")

PROBE_S: Final = 2.0
"""How long the other address may take to answer; a machine that is gone holds up the registration so long."""
PROMOTED_PROBE_S: Final = 0.5
"""The same for a broker that was promoted and comes for the first time: most likely because that one hangs. Should it
have been promoted later, its nameserver knows."""
RUN_KEY: Final = "brokerRun"
"""Under this name a broker's runtime information has the number of its run. A later run has a higher one, as text."""
SETTLED_KEY: Final = "brokerSettled"
"""And under this one whether it keeps its place whoever comes."""
LOOKS_S: Final = (1.0, 3.0, 6.0)
"""When a newcomer looks again: after its first registration, and after each look."""
_RUN_BITS: Final = 62


@attrs.frozen
class _Rival:
    run: str
    is_settled: bool
    epoch: Epoch | None = None


class DuplicateCheck:
    """Finds another live broker of this name and number. ``run``: a number by which this broker knows itself again."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._settled = False
        self.has_registered = False
        """A nameserver has taken this broker in this run: clients may know it, so being fenced does not end it."""
        self.replication: Replication | None = None
        """Who knows this broker's epoch; whoever was promoted later stays."""
        self.lost = False
        """A rival stays, this broker ends. Its farewell would take the rival from RocketMQ's nameservers, which do not
        look whose address it names."""
        self.run = f"{broker.env.wall_ms():012x}-{broker.env.random_int(1 << _RUN_BITS):x}"

    def monotonic(self) -> float:
        """The time, in seconds; 0 where nobody asks for it."""
        return 0.0 if self.replication is None else self._broker.env.monotonic()

    @property
    def is_fenced(self) -> bool:
        """Whether another broker was promoted: this one stays away from the nameservers."""
        return self.replication is not None and bool(self.replication.fenced)

    def settle(self) -> None:
        """A nameserver has taken this broker, and it was looked often enough: from now on a rival does not end it."""
        self._settled = True

    def runtime_info(self) -> dict[str, str]:
        """What others are told of this broker, to know who came first."""
        return {RUN_KEY: self.run, SETTLED_KEY: str(self._settled).lower()}

    async def check(self, nameserver: Channel, timeout: float) -> bool:
        """Whether the place is to be taken: nobody has it, or one who is gone, or one who came later and is to end.

        False when it is ours, or nobody can tell.
        With a rival that came before :class:`StartError`, and :class:`RemoteFault` once this broker is settled; what
        the nameserver's connection may raise.
        """
        address = await self._registered_address(nameserver, timeout)
        if address == self._broker.address:
            return False
        rival = await self._find(address) if address else None
        if rival is None:
            return True
        broker = self._broker
        own = self.replication.epoch if self.replication is not None else None
        if own is not None and rival.epoch is not None and own.number != rival.epoch.number:
            return self._by_epoch(own, rival.epoch, address)
        if not rival.is_settled and (self._settled or self.run < rival.run):
            log.warning("duplicate_broker_found", address=address, broker=broker.name)
            return True
        text = (
            f"{address} is a broker {broker.name!r} with the id {broker.broker_id} already, and answers; this one at "
            f"{broker.address} must have another broker.name or broker.id (a slave of it: an id that is free, above 0)"
        )
        if not self._settled:
            self.lost = True
            raise StartError(text)
        raise RemoteFault(ResponseCode.SYSTEM_ERROR, text)

    def _by_epoch(self, own: Epoch, other: Epoch, address: str) -> bool:
        """Whoever was promoted later is the master, whoever came first."""
        assert self.replication is not None
        if own.outranks(other):
            self.replication.send_epoch(address)
            return True
        text = (
            f"{address} is the master {self._broker.name!r} of epoch {other}, this one at {self._broker.address} was "
            f"that of epoch {own}: start it as a slave (broker.id above 0)"
        )
        self.replication.learn_epoch(other, address)
        if not self.has_registered and not self.replication.returns:
            self.lost = True
            raise StartError(text)
        raise RemoteFault(ResponseCode.SYSTEM_ERROR, text)

    async def _registered_address(self, nameserver: Channel, timeout: float) -> str:
        try:
            answer = await nameserver.call(Command(RequestCode.GET_BROKER_CLUSTER_INFO), timeout)
            if answer.code or not answer.body:
                raise RemoteFault(answer.code, answer.remark or "no list")
            table = ClusterInfo.from_bytes(answer.body).broker_addr_table
        except RemoteFault as fault:
            log.debug("nameserver_lists_no_brokers", reason=fault.remark)
            return self._broker.address
        known = table.get(self._broker.name)
        self._tell_others({} if known is None else known.broker_addrs)
        return "" if known is None else known.broker_addrs.get(self._broker.broker_id, "")

    def _tell_others(self, addresses: Mapping[int, str]) -> None:
        """A promoted broker tells those that the nameserver has of this name: slaves leave the old master then."""
        if self.replication is not None and not self._settled and not self._broker.broker_id:
            for number, address in addresses.items():
                if number and address != self._broker.address:
                    self.replication.send_epoch(address)

    def _probe_s(self) -> float:
        own = self.replication.epoch if self.replication is not None and not self._broker.broker_id else None
        return PROMOTED_PROBE_S if own is not None and own.number and not self.has_registered else PROBE_S

    async def _find(self, address: str) -> _Rival | None:
        """The other broker of this name and number that answers there. RocketMQ's say nothing of their runs."""
        try:
            with trio.fail_after(self._probe_s()):
                async with open_channel(address) as channel:
                    settings = await channel.call(Command(RequestCode.GET_BROKER_CONFIG))
                    runtime = await channel.call(Command(RequestCode.GET_BROKER_RUNTIME_INFO))
            if settings.code or runtime.code:
                return None
            says = read_properties(bytes(settings.body or b""))
            told = KVTable.from_bytes(runtime.body).table
        except (ConnectError, RemoteFault, ValueError, trio.TooSlowError) as error:
            log.info("registered_broker_silent", address=address, reason=str(error) or "no answer")
            return None
        broker = self._broker
        named = (says.get("brokerName"), says.get("brokerId"), says.get("brokerClusterName"))
        run = told.get(RUN_KEY, "")
        if named != (broker.name, str(broker.broker_id), broker.cluster) or run == self.run:
            return None
        return _Rival(run, told.get(SETTLED_KEY) != "false", epoch_in(told, EPOCH_KEY))

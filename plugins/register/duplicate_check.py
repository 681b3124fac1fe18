"""Prevents two brokers under one name and id: clients would be sent to either, and each has its own log.

Before a broker registers over a new connection, it asks which broker is registered under its name and id. If that is
another address, and a broker with this name and id answers there, the new broker does not register: at start it exits
with an error that names both, later it continues without this nameserver. RocketMQ's nameserver lets the later broker
replace the earlier one. At start, a broker that refuses the query because of missing rights counts as a duplicate;
later the address may be another broker's, so a warning is logged.

Two brokers that start at the same time both find the name free. A starting broker therefore checks a few more times:
their run ids show which of them started first. That one registers again, the other exits.

Of two masters, the one that was promoted last stays, whichever started first: epochs take precedence.
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
"""How long the other address may take to answer; an unreachable machine delays the registration by this time."""
PROMOTED_PROBE_S: Final = 0.5
"""The same for the first registration of a promoted broker: most likely the other one hangs. If the other one was
promoted later, the nameserver knows its epoch."""
RUN_KEY: Final = "brokerRun"
"""The key of the run id in a broker's runtime information. Ids of later runs compare greater, as text."""
SETTLED_KEY: Final = "brokerSettled"
"""The key that says whether the broker keeps its name against later brokers."""
CHECK_DELAYS_S: Final = (1.0, 3.0, 6.0)
"""The intervals, in seconds, between a new broker's checks after its first registration."""
_RUN_BITS: Final = 62


@attrs.frozen
class _OtherBroker:
    run: str
    is_settled: bool
    epoch: Epoch | None = None


class DuplicateCheck:
    """Finds another live broker with this name and id. ``run`` identifies this run of the broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._settled = False
        self.has_registered = False
        """A nameserver has accepted this broker in this run: clients may know it, so being fenced does not end it."""
        self.replication: Replication | None = None
        """Provides this broker's epoch; of two masters the one that was promoted last stays."""
        self.lost = False
        """The other broker stays and this one exits without unregistering: RocketMQ's nameservers would remove the
        other one, because they do not compare addresses."""
        self.run = f"{broker.env.wall_ms():012x}-{broker.env.random_int(1 << _RUN_BITS):x}"

    def monotonic(self) -> float:
        """Return the time, in seconds; 0 where no check needs it."""
        return 0.0 if self.replication is None else self._broker.env.monotonic()

    @property
    def is_fenced(self) -> bool:
        """Whether another broker was promoted: this one does not register."""
        return self.replication is not None and bool(self.replication.fenced)

    def settle(self) -> None:
        """Keep the name from now on: the broker is registered and has checked often enough."""
        self._settled = True

    def runtime_info(self) -> dict[str, str]:
        """Return the entries by which others find out which broker started first."""
        return {RUN_KEY: self.run, SETTLED_KEY: str(self._settled).lower()}

    async def check(self, nameserver: Channel, timeout: float) -> bool:
        """Return whether to replace the registration: there is none, its broker is gone, or started later and will
        exit.

        False if this broker holds it, or the nameserver does not list brokers. Raises :class:`StartError` if the other
        broker started first, :class:`RemoteFault` instead once this broker is settled, and errors of the connection.
        """
        address = await self._registered_address(nameserver, timeout)
        if address == self._broker.address:
            return False
        other = await self._find(address) if address else None
        if other is None:
            return True
        broker = self._broker
        own = self.replication.epoch if self.replication is not None else None
        if own is not None and other.epoch is not None and own.number != other.epoch.number:
            return self._by_epoch(own, other.epoch, address)
        if not other.is_settled and (self._settled or self.run < other.run):
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
        """The broker that was promoted last is the master, whichever started first."""
        assert self.replication is not None
        if own.outranks(other):
            self.replication.send_epoch(address)
            return True
        text = (
            f"{address} is the master {self._broker.name!r} of epoch {other}, this one at {self._broker.address} was "
            f"that of epoch {own}: start it as a slave (broker.id above 0)"
        )
        self.replication.learn_epoch(other, address)
        if not self.has_registered and not self.replication.returns_as_slave:
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
        self._send_epoch_to_others({} if known is None else known.broker_addrs)
        return "" if known is None else known.broker_addrs.get(self._broker.broker_id, "")

    def _send_epoch_to_others(self, addresses: Mapping[int, str]) -> None:
        """Send a promoted broker's epoch to the others of its name: slaves then leave the old master."""
        if self.replication is not None and not self._settled and not self._broker.broker_id:
            for number, address in addresses.items():
                if number and address != self._broker.address:
                    self.replication.send_epoch(address)

    def _probe_s(self) -> float:
        own = self.replication.epoch if self.replication is not None and not self._broker.broker_id else None
        return PROMOTED_PROBE_S if own is not None and own.number and not self.has_registered else PROBE_S

    async def _find(self, address: str) -> _OtherBroker | None:
        """Return the other broker with this name and id at ``address``. RocketMQ's brokers report no run id."""
        try:
            with trio.fail_after(self._probe_s()):
                async with open_channel(address) as channel:
                    settings = await channel.call(Command(RequestCode.GET_BROKER_CONFIG))
                    runtime = await channel.call(Command(RequestCode.GET_BROKER_RUNTIME_INFO))
            refusal = settings if settings.code else runtime
            if refusal.code:
                self._refused(address, refusal)
                return None
            says = read_properties(bytes(settings.body or b""))
            reported = KVTable.from_bytes(runtime.body).table
        except (ConnectError, RemoteFault, ValueError, trio.TooSlowError) as error:
            log.info("registered_broker_silent", address=address, reason=str(error) or "no answer")
            return None
        broker = self._broker
        named = (says.get("brokerName"), says.get("brokerId"), says.get("brokerClusterName"))
        run = reported.get(RUN_KEY, "")
        if named != (broker.name, str(broker.broker_id), broker.cluster) or run == self.run:
            return None
        return _OtherBroker(run, reported.get(SETTLED_KEY) != "false", epoch_in(reported, EPOCH_KEY))

    def _refused(self, address: str, answer: Command) -> None:
        """The server at ``address`` does not answer who it is. A settled or promoted broker continues: another broker
        may have the address now. :class:`StartError` if keys are missing before that."""
        broker, remark = self._broker, answer.remark or "no remark"
        log.warning("registered_broker_refuses", address=address, broker=broker.name, code=answer.code, reason=remark)
        is_promoted = self.replication is not None and self.replication.epoch.number > 0
        if answer.code == ResponseCode.NO_PERMISSION and not self._settled and not is_promoted:
            self.lost = True
            raise StartError(
                f"{address} is registered as the broker {broker.name!r} with the id {broker.broker_id} already, and"
                f" refuses the query of this broker at {broker.address}, so it may be that broker ({remark}): set"
                " plugin.acl.keys to the keys of an administrator there; if it is another broker, start again in two"
                " minutes"
            )

"""Keep copies of the log on slaves, or be one; RocketMQ's brokers may be at the other end.

Slot: none.
Hooks: before_append, collect_metrics, config_section, configure, dispatch, register_ack_gates, register_processors,
register_tasks, runtime_info.
Config ``[plugin.ha]``, a master's (``broker.id`` 0): ``role``, ``listen``, ``sync_slaves``, ``sync_timeout``,
``fall_behind_max``, ``transfer_batch``, ``full_copy``, ``peers``, ``slaves_max``, ``lease``, ``refuse_without_lease``;
a slave's: ``master``,
``master_broker``, ``sync_tables``; both: ``heartbeat``, ``housekeeping``.
Files: ``config/ha-cut.json`` of a slave, from when it finds a tail that was never its master's until the next start;
``config/ha-epoch.json``, the epochs, and of a slave its master's role.
Provides: Replication. Answers for RocketMQ's ``HAService``, ``HAConnection`` and ``SlaveSynchronize``.

``frames`` is the wire, ``master`` sends, ``copies`` makes the guarantee, ``compare`` tells whether a slave may go on,
``matches`` answers it, ``find`` looks for its master, ``epochs`` knows who was promoted last, ``lease`` who was heard,
``fencing`` keeps a deposed master from messages, ``deposed`` makes it a slave again, ``slave`` takes, ``tables`` are
the master's, ``master_address`` is where that is, ``vip`` is for RocketMQ's slaves, ``role`` changes who is who,
``status``, ``lag`` and ``metrics`` report it. ``docs/howto/cluster.md``.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import structlog

from gantrymq.kernel import hookimpl
from gantrymq.kernel.batch import AppendBatch, DispatchBatch, Source
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.processors import Heavy
from gantrymq.kernel.tasks import BackgroundTask
from gantrymq.plugins.ha.compare import cut_as_planned
from gantrymq.plugins.ha.config import HaConfig
from gantrymq.plugins.ha.copies import CopiedGate, Copies
from gantrymq.plugins.ha.deposed import become_slave
from gantrymq.plugins.ha.epochs import Epochs
from gantrymq.plugins.ha.fencing import FenceGate, RoleChanges, refuse_all
from gantrymq.plugins.ha.lag import LagWatch
from gantrymq.plugins.ha.lease import Lease
from gantrymq.plugins.ha.master import Master
from gantrymq.plugins.ha.master_address import MasterAddress
from gantrymq.plugins.ha.matches import MatchRequests
from gantrymq.plugins.ha.metrics import report_master, report_slave
from gantrymq.plugins.ha.role import change_number, fixed_number, origin_of
from gantrymq.plugins.ha.slave import Slave
from gantrymq.plugins.ha.status import master_info, slave_info
from gantrymq.plugins.ha.tables import Tables
from gantrymq.plugins.ha.vip import VipPort
from gantrymq.plugins.interfaces import LiveSettings, Replication
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.epoch import EPOCH_KEY, Epoch
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.peers import LOOPBACK, PeerRule

if TYPE_CHECKING:
    from gantrymq.kernel.acks import AckGate
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.config.declarations import BrokerConfig
    from gantrymq.kernel.config.sections import Config
    from gantrymq.kernel.metrics import Metrics
    from gantrymq.kernel.processors import Processor

log = structlog.get_logger("gantrymq.ha")


class HaPlugin:
    """A master's or a slave's half, by ``broker.id``."""

    name = "ha"
    sources = Source.ALL
    _tables: Tables  # of a slave, from register_tasks on
    _epochs: Epochs  # both from configure on
    _roles: RoleChanges
    _lease: Lease

    def __init__(self) -> None:
        self.master: Master | None = None
        self.slave: Slave | None = None
        self.copies = Copies(lambda: None)

    @property
    def ha_address(self) -> str:
        """Where slaves find this broker's log; empty on a slave."""
        return "" if self.master is None else self.master.address

    def master_is(self, broker: str, ha: str) -> None:
        """A nameserver has said where the master is."""
        self._master_address.master_is(broker, ha)

    @property
    def epoch(self) -> Epoch:
        """A master's own; a slave's is the highest that it knows."""
        return self._epochs.known if self.master is None or self._epochs.own is None else self._epochs.own

    @property
    def fenced(self) -> str:
        """Why this master takes nothing any more; empty while it may."""
        return self._epochs.fenced

    @property
    def returns(self) -> bool:
        """Whether this master starts again as a slave by itself when it is fenced."""
        return self._epochs.returns

    @property
    def refusal(self) -> str:
        """Why this master takes no messages now; empty while it does."""
        return self._epochs.fenced or (self._lease.refusal if self._config.refuse_without_lease else "")

    @property
    def beat(self) -> float:
        """A third of the lease."""
        return self._lease.beat

    @property
    def has_lease(self) -> bool:
        """Of a master: whether it has heard from a nameserver or a slave lately."""
        return not self._lease.refusal

    def nameserver_answered(self, asked_at: float) -> None:
        """It knows of no other master."""
        if self.master is not None and not self._epochs.fenced:
            self._lease.nameserver_answered(asked_at)

    def learn_epoch(self, epoch: Epoch, source: str) -> None:
        """``source`` says that ``epoch`` has begun."""
        self._epochs.learn(epoch, source, is_master=self.master is not None)

    def send_epoch(self, address: str) -> None:
        """The broker there may have missed that this one was promoted."""
        self._roles.send(address, self.ha_address)

    @hookimpl
    def config_section(self) -> tuple[str, type[Any]]:
        """``[plugin.ha]``."""
        return "ha", HaConfig

    @hookimpl
    def configure(self, broker: Broker, config: Config) -> None:
        """Take the section; a master takes its address as well."""
        self._config = section = config.section(HaConfig)
        if broker.broker_id and broker.address in (section.master, section.master_broker):
            raise StartError(f"plugin.ha: {broker.address} is this broker itself, it cannot be its own master")
        self._master_address = MasterAddress(broker.address, section.master, section.master_broker)
        self.copies = Copies(broker.wake)
        self._epochs = Epochs(broker.env, broker.root)
        self._roles = RoleChanges(broker, self._epochs, self._master_address)
        self._lease = Lease(
            broker.env,
            max(section.lease, 2 * section.heartbeat),
            has_nameservers=not broker.broker_id and bool(config.broker.nameservers),
        )
        if broker.broker_id:
            self._epochs.begin_as_slave()
        else:
            origin, source = origin_of(broker, "broker", "id")
            self._epochs.begin_as_master(source if origin == "override" else "")
            if self._epochs.fenced:
                broker.before_listening.append(partial(self._return, broker))
            self._config = section = self._with_role(broker, section)
        broker.registry.provide(Replication, self)
        if broker.broker_id:
            cut_as_planned(broker)
            broker.before_listening.append(self._settle)
        if broker.broker_id == 0:
            self.master = Master(broker, section, self.copies, self._lease, self._epochs)

    def _with_role(self, broker: Broker, section: HaConfig) -> HaConfig:
        """A promoted broker promises what its master did, unless its configuration says something else."""
        role = self._epochs.master_role
        if not role or role == section.role or origin_of(broker, "plugin.ha", "role")[0] != "default":
            return section
        log.info("role_of_last_master", role=role)
        return attrs.evolve(section, role=role)

    async def _settle(self) -> None:
        """Readers are served when the log is known to be the master's, or when there is no master to ask."""
        if self.slave is not None:
            await self.slave.settle()

    async def _return(self, broker: Broker) -> None:
        """A master whose number is a promotion's becomes a slave again when it is fenced."""
        await self._epochs.wait_fenced()
        assert self._epochs.slave_number is not None
        try:
            await become_slave(broker, self._epochs.slave_number, self._epochs.fenced)
        except RemoteFault as fault:
            raise StartError(f"this broker is to start again as a slave: {fault.remark}") from None

    @hookimpl
    def register_ack_gates(self, broker: Broker) -> list[AckGate]:
        """Of a master: what it may not confirm; and of a ``sync_master`` what its slaves have."""
        section = self._config
        if self.master is None:
            return []
        fence = FenceGate(broker, lambda: self.refusal)
        if section.role != "sync_master":
            return [fence]
        copied = CopiedGate(
            broker.log, self.copies, section.sync_slaves, section.sync_timeout, section.fall_behind_max,
            lambda: self.has_lease,
        )  # fmt: skip
        return [fence, copied]

    @hookimpl
    def register_processors(self, broker: Broker) -> dict[int, Processor]:
        """1008 announces an epoch or a promotion; 47001 compares a slave's log with this one."""
        found: dict[int, Processor] = {RequestCode.NOTIFY_BROKER_ROLE_CHANGED: self._roles.answer}
        if self.master is not None:
            peers = PeerRule(self._config.peers or LOOPBACK)
            found[RequestCode.COMPARE_LOG] = Heavy(MatchRequests(broker, peers).answer)
        return found

    @hookimpl
    def register_tasks(self, broker: Broker) -> list[BackgroundTask]:
        """The task that waits for slaves, or the one that follows the master."""
        live = broker.registry.find(LiveSettings)
        if live is not None:
            live.allow("broker", broker.config.broker, ("id",), partial(self._renumber, broker))
            live.allow("plugin.ha", self._config, (), lambda _: None)  # shown as it is in force
        roles = BackgroundTask("ha roles", self._roles.run)
        if self.master is not None:
            lag = LagWatch(broker, self.copies)
            tasks = [
                BackgroundTask("ha master", self.master.run), BackgroundTask("ha lag", lag.run),
                BackgroundTask("vip port", VipPort(broker).run), roles,
            ]  # fmt: skip
            if self._epochs.returns and not self._epochs.fenced:
                tasks.append(BackgroundTask("ha return", partial(self._return, broker)))
            return tasks
        self.slave = Slave(broker, self._config, self._master_address, self._epochs)
        self._tables = Tables(broker, self._master_address, self._config.sync_tables)
        return [BackgroundTask("ha slave", self.slave.run), BackgroundTask("ha tables", self._tables.run), roles]

    def _renumber(self, broker: Broker, changed: BrokerConfig) -> None:
        promoted = self._roles.promoted
        master_at = "" if self.slave is None or promoted is not None else self.slave.connected_to
        if change_number(broker, changed.id, master_at) and changed.id == 0:
            self._epochs.begin(promoted or self._epochs.next(), broker.broker_id)

    @hookimpl(tryfirst=True)
    def before_append(self, batch: AppendBatch) -> None:
        """There will be something to send as soon as this sweep gives way; a deposed master takes nothing."""
        if self.master is not None:
            reason = self.refusal
            if reason:
                refuse_all(batch, reason)
            self.master.log_grew()

    @hookimpl
    def dispatch(self, batch: DispatchBatch) -> None:
        """More has passed the gates: a slave tells its master."""
        if self.slave is not None:
            self.slave.moved()
            self._tables.dispatched(batch.topics)

    @hookimpl
    def runtime_info(self, broker: Broker) -> dict[str, str]:
        """Role, slaves or master, and how far behind."""
        epoch = {EPOCH_KEY: str(self.epoch), "haFenced": self.fenced}
        if self.slave is not None:
            return epoch | {"haNotPromotable": fixed_number(broker)} | slave_info(broker, self.slave)
        epoch["haLease"] = str(self.has_lease).lower()
        return epoch | master_info(broker, self.copies, self.ha_address, self._config.role)

    @hookimpl
    def collect_metrics(self, broker: Broker, metrics: Metrics) -> None:
        """Who is how far behind."""
        if self.slave is not None:
            report_slave(metrics, broker, self.slave)
        else:
            report_master(metrics, broker, self.copies)

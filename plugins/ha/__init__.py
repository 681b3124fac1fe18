"""Replicate the log from a master to its slaves; the other side may be a RocketMQ broker.

Slot: none.
Hooks: appended, before_append, check_files, collect_metrics, config_section, configure, dispatch, persist, recovered,
register_ack_gates, register_processors, register_tasks, runtime_info.
Config ``[plugin.ha]``, for a master (``broker.id`` 0): ``role``, ``listen``, ``sync_slaves``, ``sync_timeout``,
``fall_behind_max``, ``transfer_batch``, ``full_copy``, ``peers``, ``authentication``, ``slaves_max``, ``lease``,
``refuse_without_lease``; for a slave: ``master``, ``master_broker``, ``sync_tables``, ``tls``; for both: ``heartbeat``,
``housekeeping``.
Files: ``config/ha-cut.json`` on a slave, from the discovery of a diverged tail until the next start in any role;
``config/ha-epoch.json`` with the epochs and, on a slave, its master's role; ``config/ha-progress.json`` with the
progress of delay levels and transactions at earlier ends of the log.
Provides: Replication. Replaces RocketMQ's ``HAService``, ``HAConnection`` and ``SlaveSynchronize``.

The modules: ``frames`` encodes the protocol, ``master`` sends the log, ``slave`` receives it, ``copies`` tracks the
progress of slaves for acknowledgments, ``compare`` checks that a slave's log is a prefix of its master's, ``matches``
answers these checks, ``tables`` fetches the master's tables, ``progress`` holds its progress until this log has reached
it, ``marks`` records it for a log that is cut, ``timer_progress`` fetches its timer's checkpoint, ``find`` and
``master_address`` find the master, ``epochs`` records promotions, ``lease`` expires without contact, ``fencing`` makes
a former master refuse messages, ``demotion`` makes it a slave again, ``role`` changes the role, ``vip`` serves
RocketMQ's slaves, ``status``, ``lag`` and ``metrics`` report the state, ``streams`` encrypts, ``tickets`` authenticates
slaves.
``docs/howto/cluster.md``.
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
from gantrymq.plugins.ha.compare import cut_as_planned, discard_planned_cut
from gantrymq.plugins.ha.config import HaConfig
from gantrymq.plugins.ha.copies import CopiedGate, Copies
from gantrymq.plugins.ha.demotion import become_slave
from gantrymq.plugins.ha.epochs import Epochs, start_as_slave
from gantrymq.plugins.ha.fencing import FenceGate, RoleChanges, refuse_all
from gantrymq.plugins.ha.file_check import check_cut, check_epochs, check_marks
from gantrymq.plugins.ha.find import find_live_master
from gantrymq.plugins.ha.lag import LagWatch
from gantrymq.plugins.ha.lease import Lease
from gantrymq.plugins.ha.marks import ProgressMarks
from gantrymq.plugins.ha.master import Master
from gantrymq.plugins.ha.master_address import MasterAddress
from gantrymq.plugins.ha.matches import MatchRequests
from gantrymq.plugins.ha.metrics import report_master, report_slave
from gantrymq.plugins.ha.role import change_number, fixed_number, origin_of, refuse_beside_master
from gantrymq.plugins.ha.slave import Slave
from gantrymq.plugins.ha.status import master_info, slave_info
from gantrymq.plugins.ha.tables import Tables
from gantrymq.plugins.ha.tickets import Tickets
from gantrymq.plugins.ha.timer_progress import TimerReports
from gantrymq.plugins.ha.vip import VipPort
from gantrymq.plugins.interfaces import (
    ConsumerOffsets,
    Encryption,
    Health,
    LevelPositions,
    LiveSettings,
    Replication,
)
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.epoch import EPOCH_KEY, EPOCH_START_KEY, LOG_EPOCH_KEY, LOG_KEPT_KEY, LOG_LACKS_KEY, Epoch
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.peers import LOOPBACK, PeerRule

if TYPE_CHECKING:
    from gantrymq.kernel.acks import AckGate
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.config.declarations import BrokerConfig
    from gantrymq.kernel.config.sections import Config
    from gantrymq.kernel.metrics import Metrics
    from gantrymq.kernel.processors import Processor
    from gantrymq.kernel.stopped_store import StoppedStore

log = structlog.get_logger("gantrymq.ha")


class HaPlugin:
    """The master's or the slave's side of replication, by ``broker.id``."""

    name = "ha"
    sources = Source.ALL
    _tables: Tables  # on a slave, set by register_tasks
    _epochs: Epochs  # this and the following are set by configure
    _roles: RoleChanges
    _lease: Lease
    _marks: ProgressMarks
    _tickets: Tickets  # on a master

    def __init__(self) -> None:
        self.master: Master | None = None
        self.slave: Slave | None = None
        self.copies = Copies(lambda: None)
        self._is_cut = False
        """Whether this start has cut the log."""
        self._is_alone = False
        """Whether no master answered a moment ago, for the change of the id that follows."""

    @property
    def ha_address(self) -> str:
        """The master's address for its slaves; empty on a slave."""
        return "" if self.master is None else self.master.address

    def master_is(self, broker: str, ha: str) -> None:
        """Record the master's addresses, for clients and for slaves, as a nameserver reported them."""
        self._master_address.master_is(broker, ha)

    @property
    def epoch(self) -> Epoch:
        """The epoch of this master; on a slave, the highest known epoch."""
        return self._epochs.known if self.master is None or self._epochs.own is None else self._epochs.own

    @property
    def fenced(self) -> str:
        """Why this master is fenced; empty if it is not."""
        return self._epochs.fenced

    @property
    def returns_as_slave(self) -> bool:
        """Whether this master starts again as a slave automatically when it is fenced."""
        return self._epochs.returns_as_slave

    @property
    def refusal(self) -> str:
        """Why this master refuses messages now; empty if it accepts them."""
        if self._epochs.is_undecided:
            return "this broker starts as the master, and its epoch has not begun yet"
        return self._epochs.fenced or (self._lease.refusal if self._config.refuse_without_lease else "")

    @property
    def epoch_query_interval(self) -> float:
        """The interval between requests to the nameservers: a third of the lease, in seconds."""
        return self._lease.query_interval

    @property
    def has_lease(self) -> bool:
        """Whether the lease is valid: a nameserver or a slave was in contact within the lease."""
        return not self._lease.refusal

    def nameserver_answered(self, asked_at: float) -> None:
        """Renew the lease. A nameserver answered a request sent at ``asked_at`` (monotonic, in seconds) and reported
        no other master."""
        if self.master is not None and not self._epochs.fenced:
            self._lease.nameserver_answered(asked_at)

    def learn_epoch(self, epoch: Epoch, source: str) -> None:
        """Record ``epoch``, which ``source`` has reported."""
        self._epochs.learn(epoch, source, is_master=self.master is not None)

    def send_epoch(self, address: str) -> None:
        """Notify the broker at ``address`` of this master's epoch, in case it missed the promotion."""
        self._roles.send(address, self.ha_address)

    @hookimpl
    def config_section(self) -> tuple[str, type[Any]]:
        """Return the section's name and class: ``[plugin.ha]``."""
        return "ha", HaConfig

    @hookimpl
    def configure(self, broker: Broker, config: Config) -> None:
        """Read the section and the epochs; a master also binds its address for slaves."""
        self._config = section = config.section(HaConfig)
        if broker.broker_id and broker.address in (section.master, section.master_broker):
            raise StartError(
                f"plugin.ha: {broker.address} is this broker; it cannot be its own master; set another address"
            )
        self._master_address = MasterAddress(broker.address, section.master, section.master_broker)
        self.copies = Copies(broker.wake)
        self._epochs = Epochs(broker.env, broker.root)
        self._marks = ProgressMarks(broker.env, broker.root)
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
            number_from = source if origin == "override" else ""
            self._epochs.begin_as_master(number_from)
            if self._epochs.fenced:
                broker.before_listening.append(partial(self._return, broker))
            elif self._epochs.is_undecided:
                broker.before_listening.append(partial(self._begin_epoch, broker, number_from))
            discard_planned_cut(broker)
            self._config = section = self._with_role(broker, section)
        broker.registry.provide(Replication, self)
        if broker.broker_id:
            self._is_cut = cut_as_planned(broker)
            broker.before_listening.append(self._settle)
        if broker.broker_id == 0:
            controls_access = any(info.slot == "access_control" for info in broker.manager.plugins)
            required = section.authentication == "required" or (section.authentication == "auto" and controls_access)
            self._tickets = Tickets(broker, PeerRule(section.peers or LOOPBACK), required)
            self.master = Master(broker, section, self.copies, self._lease, self._epochs, self._tickets)

    @hookimpl
    def recovered(self, broker: Broker) -> None:
        """Correct the epoch of the log, whose end is final now, and the progress that counts what was cut off."""
        self._epochs.log_recovered(broker.log.end, is_master=broker.broker_id == 0)
        registry = broker.registry
        levels, offsets = registry.find(LevelPositions), registry.find(ConsumerOffsets)
        self._marks.set_back(broker.log.end, levels, offsets, is_cut=self._is_cut)

    def _with_role(self, broker: Broker, section: HaConfig) -> HaConfig:
        """``section`` with the role of the last master, unless the configuration sets a role: a promotion keeps it."""
        role = self._epochs.master_role
        if not role or role == section.role or origin_of(broker, "plugin.ha", "role")[0] != "default":
            return section
        log.info("role_of_last_master", role=role)
        return attrs.evolve(section, role=role)

    async def _settle(self) -> None:
        """On a slave, wait for the comparison with the master's log, or until no master can be reached."""
        if self.slave is not None:
            await self.slave.settle()

    async def _return(self, broker: Broker) -> None:
        """Make a promoted master a slave again when it is fenced."""
        await self._epochs.wait_fenced()
        assert self._epochs.slave_number is not None
        try:
            await become_slave(broker, self._epochs.slave_number, self._epochs.fenced)
        except RemoteFault as fault:
            raise StartError(f"a fenced broker cannot start again as a slave: {fault.remark}") from None

    async def _begin_epoch(self, broker: Broker, number_from: str) -> None:
        """Begin the epoch of a former slave that starts as a master; :class:`StartError` if a master of its name
        answers."""
        master = await find_live_master(broker, self._config.master_broker, self._epochs.known)
        if not master:
            self._epochs.begin(self._epochs.next())
            self._epochs.log_recovered(broker.log.end, is_master=True)
            return
        raise StartError(
            f"this broker was a slave, and the master of {broker.name!r}, {master}, answers: both would accept "
            f"messages. {start_as_slave(number_from)}; to make it the master, stop that "
            f"one and run `gantrymq cluster promote {broker.name}`"
        )

    @hookimpl
    def register_ack_gates(self, broker: Broker) -> list[AckGate]:
        """Return, on a master, the gate that closes when it is fenced or has no lease; on a ``sync_master`` also the
        gate of the slaves."""
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
        """Serve 1008 (announces an epoch), 47001 (compares a slave's log with this one) and 47004 (lets it connect)."""
        found: dict[int, Processor] = {RequestCode.NOTIFY_BROKER_ROLE_CHANGED: self._roles.answer}
        if self.master is not None:
            peers = PeerRule(self._config.peers or LOOPBACK)
            found[RequestCode.COMPARE_LOG] = Heavy(MatchRequests(broker, peers).answer)
            found[RequestCode.GET_SLAVE_TICKET] = self._tickets.answer
        return found

    @hookimpl
    def register_tasks(self, broker: Broker) -> list[BackgroundTask]:
        """Return the tasks of a master, or those of a slave."""
        live = broker.registry.find(LiveSettings)
        if live is not None:
            renumber, check = partial(self._renumber, broker), partial(self._check_number, broker)
            live.allow("broker", broker.config.broker, ("id",), renumber, check)
            live.allow("plugin.ha", self._config, (), lambda _: None)  # shows the role in force to administrators
        health = broker.registry.find(Health)
        roles = BackgroundTask("ha roles", self._roles.run)
        if health is not None and self.master is not None:
            health.add("replication", lambda: self.refusal)
        if self.master is not None:
            self.master.encryption = broker.registry.find(Encryption)
            lag = LagWatch(broker, self.copies)
            tasks = [
                BackgroundTask("ha master", self.master.run), BackgroundTask("ha lag", lag.run),
                BackgroundTask("vip port", VipPort(broker).run), roles,
            ]  # fmt: skip
            if self._epochs.returns_as_slave and not self._epochs.fenced:
                tasks.append(BackgroundTask("ha return", partial(self._return, broker)))
            return tasks
        self.slave = Slave(broker, self._config, self._master_address, self._epochs)
        if health is not None:
            health.add("replication", self.slave.too_far_behind)
        slave, interval = self.slave, self._config.sync_tables
        self._tables = Tables(broker, self._master_address, interval, slave.follows, self._marks)
        timer = TimerReports(broker, self._master_address, interval, slave.follows)
        return [
            BackgroundTask("ha slave", slave.run), BackgroundTask("ha tables", self._tables.run),
            BackgroundTask("ha timer", timer.run), roles,
        ]  # fmt: skip

    async def _check_number(self, broker: Broker, changed: BrokerConfig) -> None:
        """Before a request makes this slave the master: :class:`RemoteFault` if a master of its name answers."""
        if broker.broker_id and changed.id == 0:
            refuse_beside_master(await find_live_master(broker, self._config.master_broker, self._epochs.known))
            self._is_alone = True

    def _renumber(self, broker: Broker, changed: BrokerConfig) -> None:
        promoted, is_alone, self._is_alone = self._roles.promoted, self._is_alone, False
        if broker.broker_id and changed.id == 0 and promoted is None and not is_alone:
            raise RemoteFault(
                ResponseCode.SYSTEM_ERROR,
                "broker.id = 0 would promote this slave without a look for its master: run `gantrymq cluster promote`, "
                "or stop the broker and start it again",
            )
        master_at = "" if self.slave is None or promoted is not None else self.slave.connected_to
        if change_number(broker, changed.id, master_at) and changed.id == 0:
            self._epochs.begin(promoted or self._epochs.next(), broker.broker_id)

    @hookimpl(tryfirst=True)
    def before_append(self, batch: AppendBatch) -> None:
        """Refuse all rows while this master must not accept messages."""
        if self.master is not None:
            reason = self.refusal
            if reason:
                refuse_all(batch, reason)

    @hookimpl
    def appended(self, batch: AppendBatch) -> None:
        """Wake the tasks that send to slaves."""
        if self.master is not None:
            self.master.log_grew()

    @hookimpl
    def dispatch(self, batch: DispatchBatch) -> None:
        """Wake the report to the master: records have passed this slave's gates."""
        if self.slave is not None:
            self.slave.moved()
            self._tables.dispatched(batch.topics)

    @hookimpl
    def persist(self, broker: Broker) -> dict[str, bytes] | None:
        """Return the file of the marks if it has changed; a master adds one, a slave when it adopts progress."""
        if self.master is not None:
            registry = broker.registry
            end = min(broker.log.durable, broker.store.dispatched)  # before it is all that both count
            self._marks.add(end, registry.find(LevelPositions), registry.find(ConsumerOffsets))
        return self._marks.changes()

    @hookimpl
    def check_files(self, store: StoppedStore) -> None:
        """Check the epochs, the offset of a truncation, and the marks."""
        check_epochs(store)
        check_cut(store)
        check_marks(store)

    @hookimpl
    def runtime_info(self, broker: Broker) -> dict[str, str]:
        """Return the role, the slaves or the master, and the lag."""
        epoch = {EPOCH_KEY: str(self.epoch), "haFenced": self.fenced}
        if self._epochs.of_log is not None:
            epoch[LOG_EPOCH_KEY] = str(self._epochs.of_log.epoch)
        if self.slave is not None and self._epochs.lacks_before:
            epoch[LOG_LACKS_KEY] = str(self._epochs.lacks_before)
        if self.slave is not None and self._epochs.kept_from:
            epoch[LOG_KEPT_KEY] = str(self._epochs.kept_from)
        if self.slave is not None:
            return epoch | {"haNotPromotable": fixed_number(broker)} | slave_info(broker, self.slave)
        epoch["haLease"] = str(self.has_lease).lower()
        if self._epochs.start is not None:
            epoch[EPOCH_START_KEY] = str(self._epochs.start)
        return epoch | master_info(broker, self.copies, self.ha_address, self._config.role)

    @hookimpl
    def collect_metrics(self, broker: Broker, metrics: Metrics) -> None:
        """Report the lag of each slave, or of this slave."""
        if self.slave is not None:
            report_slave(metrics, broker, self.slave)
        else:
            report_master(metrics, broker, self.copies)
            if self.master is not None:
                for reason, count in self.master.refused.items():
                    metrics.counter(
                        "gantrymq_ha_refused_slaves_total", "Connections of slaves that were refused", count,
                        reason=reason,
                    )  # fmt: skip

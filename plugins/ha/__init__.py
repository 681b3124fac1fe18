"""Keep copies of the log on slaves, or be one; RocketMQ's brokers may be at the other end.

Slot: none.
Hooks: before_append, collect_metrics, config_section, configure, dispatch, register_ack_gates, register_services,
runtime_info.
Config ``[plugin.ha]``, a master's (``broker.id`` 0): ``role``, ``listen``, ``sync_slaves``, ``sync_timeout``,
``fall_behind_max``, ``transfer_batch``, ``full_copy``, ``peers``, ``slaves_max``; a slave's: ``master``,
``master_broker``, ``sync_tables``; both: ``heartbeat``, ``housekeeping``.
Files: ``config/ha-cut.json`` of a slave, from when it finds a tail that was never its master's until the next start.
Services: Replication. Answers for RocketMQ's ``HAService``, ``HAConnection`` and ``SlaveSynchronize``.

``frames`` is the wire, ``master`` sends, ``copies`` makes the guarantee, ``compare`` looks whether a slave may go on,
``slave`` takes, ``tables`` are the master's, ``whereabouts`` is where that is, ``vip`` is for RocketMQ's slaves,
``role`` changes who is who, ``status``, ``lag`` and ``told`` tell of it all. ``docs/howto/cluster.md``.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from gantrymq.kernel import hookimpl
from gantrymq.kernel.batch import AppendBatch, DispatchBatch
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.services import LiveSettings, Replication, Service
from gantrymq.plugins.ha.compare import cut_as_planned
from gantrymq.plugins.ha.config import HaConfig
from gantrymq.plugins.ha.copies import CopiedGate, Copies
from gantrymq.plugins.ha.lag import LagWatch
from gantrymq.plugins.ha.master import Master
from gantrymq.plugins.ha.role import change_number
from gantrymq.plugins.ha.slave import Slave
from gantrymq.plugins.ha.status import master_info, slave_info
from gantrymq.plugins.ha.tables import Tables
from gantrymq.plugins.ha.told import tell_master, tell_slave
from gantrymq.plugins.ha.vip import VipPort
from gantrymq.plugins.ha.whereabouts import Whereabouts

if TYPE_CHECKING:
    from gantrymq.kernel.acks import AckGate
    from gantrymq.kernel.broker import Broker
    from gantrymq.kernel.config import BrokerConfig, Config
    from gantrymq.kernel.metrics import Metrics


class HaPlugin:
    """A master's or a slave's half, by ``broker.id``."""

    name = "ha"
    _tables: Tables  # of a slave, from register_services on

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
        self._whereabouts.master_is(broker, ha)

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
        self._whereabouts = Whereabouts(broker.address, section.master, section.master_broker)
        self.copies = Copies(broker.wake)
        broker.services.provide(Replication, self)
        if broker.broker_id:
            cut_as_planned(broker)
        if broker.broker_id == 0:
            self.master = Master(broker, section, self.copies)

    @hookimpl
    def register_ack_gates(self, broker: Broker) -> list[AckGate]:
        """Of a ``sync_master``."""
        section = self._config
        if self.master is None or section.role != "sync_master":
            return []
        return [CopiedGate(broker.log, self.copies, section.sync_slaves, section.sync_timeout, section.fall_behind_max)]

    @hookimpl
    def register_services(self, broker: Broker) -> list[Service]:
        """The task that waits for slaves, or the one that follows the master."""
        live = broker.services.find(LiveSettings)
        if live is not None:
            live.allow("broker", broker.config.broker, ("id",), partial(self._renumber, broker))
        if self.master is not None:
            lag = LagWatch(broker, self.copies)
            return [
                Service("ha master", self.master.run), Service("ha lag", lag.run),
                Service("vip port", VipPort(broker).run),
            ]  # fmt: skip
        self.slave = Slave(broker, self._config, self._whereabouts)
        self._tables = Tables(broker, self._whereabouts, self._config.sync_tables)
        return [Service("ha slave", self.slave.run), Service("ha tables", self._tables.run)]

    def _renumber(self, broker: Broker, changed: BrokerConfig) -> None:
        change_number(broker, changed.id, "" if self.slave is None else self.slave.connected_to)

    @hookimpl
    def before_append(self, batch: AppendBatch) -> None:
        """There will be something to send as soon as this sweep gives way."""
        if self.master is not None:
            self.master.grown()

    @hookimpl
    def dispatch(self, batch: DispatchBatch) -> None:
        """More has passed the gates: a slave tells its master."""
        if self.slave is not None:
            self.slave.moved()
            self._tables.dispatched(batch.topics)

    @hookimpl
    def runtime_info(self, broker: Broker) -> dict[str, str]:
        """Role, slaves or master, and how far behind."""
        if self.slave is not None:
            return slave_info(broker, self.slave)
        return master_info(broker, self.copies, self.ha_address, self._config.role)

    @hookimpl
    def collect_metrics(self, broker: Broker, metrics: Metrics) -> None:
        """Who is how far behind."""
        if self.slave is not None:
            tell_slave(metrics, broker, self.slave)
        else:
            tell_master(metrics, broker, self.copies)

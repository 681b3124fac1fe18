"""Register this broker and its topics with the nameservers.

Slot: none; default.
Hooks: config_section, configure, register_tasks, runtime_info, started, stopping, topics_changed.
Config ``[plugin.register]``: interval, timeout; the addresses are ``broker.nameservers``.
Files: none.
Provides: Registration.
Replaces RocketMQ's BrokerOuterAPI and BrokerController.registerBrokerAll.

Each nameserver has its own task and connection, so an unreachable one delays no other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gantrymq.kernel import hookimpl
from gantrymq.kernel.tasks import BackgroundTask
from gantrymq.plugins.interfaces import Registration, Replication, TopicTable
from gantrymq.plugins.register.body import Announcement
from gantrymq.plugins.register.config import RegisterConfig
from gantrymq.plugins.register.duplicate_check import DuplicateCheck
from gantrymq.plugins.register.registrar import Registrar

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.config.sections import Config


class RegisterPlugin:
    """Offers the registrar to others and runs it while the sockets listen."""

    name = "register"
    _registrar: Registrar  # both from configure on
    _duplicate_check: DuplicateCheck

    @hookimpl
    def config_section(self) -> tuple[str, type[Any]]:
        """Return the name and the class of the section ``[plugin.register]``."""
        return "register", RegisterConfig

    @hookimpl
    def configure(self, broker: Broker, config: Config) -> None:
        """Create one link per nameserver; nothing is sent yet."""
        section = config.section(RegisterConfig)
        self._duplicate_check = DuplicateCheck(broker)
        self._registrar = Registrar(Announcement(broker), self._duplicate_check, config.broker.nameservers, section)
        broker.registry.provide(Registration, self._registrar)

    @hookimpl
    def register_tasks(self, broker: Broker) -> list[BackgroundTask]:
        """Return the task that keeps this broker registered."""
        topics = broker.registry.find(TopicTable)
        if topics is not None:
            self._registrar.on_ordered(topics.set_ordered)
        replication = broker.registry.find(Replication)
        if replication is not None and broker.broker_id != 0:
            self._registrar.on_master(replication.master_is)
        self._duplicate_check.replication = replication
        return [BackgroundTask("register", self._registrar.run)]

    @hookimpl
    def runtime_info(self, broker: Broker) -> dict[str, str]:
        """Distinguishes this run from other brokers and runs."""
        return self._duplicate_check.runtime_info()

    @hookimpl
    def started(self, broker: Broker) -> None:
        """The sockets listen and the address is known: register."""
        self._registrar.begin()

    @hookimpl
    def topics_changed(self) -> None:
        """Register again, with the topics as they are now."""
        self._registrar.topics_changed()

    @hookimpl
    def stopping(self, broker: Broker) -> None:
        """Unregister, while present clients are still served."""
        self._registrar.leave()

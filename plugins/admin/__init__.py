"""Requests of administrators that need several tables: topics, consumer groups, clients, settings.

Slot: none.
Hooks: collect_metrics, config_section, configure, register_processors.
Config ``[plugin.admin]``: client_timeout, status_timeout, max_clients, max_entries, log_levels.
Files: ``config/overrides.toml``.
Provides: LiveSettings.
Replaces RocketMQ's AdminBrokerProcessor and Broker2Client where no other plugin owns the table: codes 25, 26, 28,
202, 208, 222, 223, 300, 303, 305, 306, 307, 309, 316, 317, 321, 329, and 220, 221, 307 and 309 towards clients. Code
47002 (``plugins``) is GantryMQ's own.
``docs/howto/mqadmin.md`` has the commands that send them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gantrymq.kernel import hookimpl
from gantrymq.kernel.processors import Processor
from gantrymq.plugins.admin.brokers import BrokerAdmin
from gantrymq.plugins.admin.clients import ClientAdmin
from gantrymq.plugins.admin.config import AdminConfig
from gantrymq.plugins.admin.consumers import ConsumerAdmin
from gantrymq.plugins.admin.metrics import report
from gantrymq.plugins.admin.plugins import PluginAdmin
from gantrymq.plugins.admin.settings import ChangeableSettings
from gantrymq.plugins.admin.topics import TopicAdmin
from gantrymq.plugins.interfaces import LiveSettings
from gantrymq.remoting.log_levels import change_to

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.config.sections import Config
    from gantrymq.kernel.metrics import Metrics


class AdminPlugin:
    """Creates the handlers of the kinds of requests."""

    name = "admin"
    _settings: ChangeableSettings  # from configure on

    def __init__(self) -> None:
        self._config = AdminConfig()

    @hookimpl
    def config_section(self) -> tuple[str, type[Any]]:
        """Return the name and the class of the section ``[plugin.admin]``."""
        return "admin", AdminConfig

    @hookimpl
    def configure(self, broker: Broker, config: Config) -> None:
        """Provide the allow list of settings that can change while the broker runs."""
        self._config = config.section(AdminConfig)
        self._settings = ChangeableSettings(broker)
        broker.registry.provide(LiveSettings, self._settings)
        self._settings.allow("plugin.admin", self._config, ("log_levels",), _change_levels)
        if self._config.log_levels:
            change_to(self._config.log_levels)

    @hookimpl
    def collect_metrics(self, broker: Broker, metrics: Metrics) -> None:
        """Report the broker's own metrics: store, connections, waiting requests."""
        report(metrics, broker)

    @hookimpl
    def register_processors(self, broker: Broker) -> dict[int, Processor]:
        """Return the handlers of the kinds of requests."""
        return {
            **TopicAdmin(broker, self._config).processors(),
            **ConsumerAdmin(broker).processors(),
            **ClientAdmin(broker, self._config).processors(),
            **BrokerAdmin(broker, self._settings).processors(),
            **PluginAdmin(broker).processors(),
        }


def _change_levels(config: AdminConfig) -> None:
    change_to(config.log_levels)

"""Every feature of the broker, one package each. A plugin imports the kernel and never a sibling.

The default set, in call order. ``[plugins] enable`` adds behind it, ``disable`` takes out what is not essential.
RocketMQ has the others built in, so a ``broker.conf`` enables a plugin when it sets one of the plugin's keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gantrymq.kernel.manager import PluginManager

DEFAULT_PLUGINS = (
    "gantrymq.plugins.topics:TopicsPlugin",
    "gantrymq.plugins.produce:ProducePlugin",
    "gantrymq.plugins.consume:ConsumePlugin",
    "gantrymq.plugins.offsets:OffsetsPlugin",
    "gantrymq.plugins.clients:ClientsPlugin",
    "gantrymq.plugins.retry:RetryPlugin",
    "gantrymq.plugins.reply:ReplyPlugin",
    "gantrymq.plugins.transaction:TransactionPlugin",
    "gantrymq.plugins.delay:DelayPlugin",
    "gantrymq.plugins.locks:LocksPlugin",
    "gantrymq.plugins.flush:FlushPlugin",
    "gantrymq.plugins.longpoll:LongPollPlugin",
    "gantrymq.plugins.filter:FilterPlugin",
    "gantrymq.plugins.index:IndexPlugin",
    "gantrymq.plugins.query:QueryPlugin",
    "gantrymq.plugins.flowcontrol:FlowControlPlugin",
    "gantrymq.plugins.retention:RetentionPlugin",
    "gantrymq.plugins.register:RegisterPlugin",
    "gantrymq.plugins.admin:AdminPlugin",
    "gantrymq.plugins.stats:StatsPlugin",
    "gantrymq.plugins.spark:SparkPlugin",
    "gantrymq.plugins.http:HttpPlugin",
)

OPTIONAL_PLUGINS = (
    "gantrymq.plugins.ha:HaPlugin",
    "gantrymq.plugins.metrics:MetricsPlugin",
    "gantrymq.plugins.acl:AclPlugin",
    "gantrymq.plugins.tls:TlsPlugin",
    "gantrymq.plugins.quota:QuotaPlugin",
    "gantrymq.plugins.audit:AuditPlugin",
    "gantrymq.plugins.dashboard:DashboardPlugin",
    "gantrymq.plugins.exporter:ExporterPlugin",
    "gantrymq.plugins.otel:OtelPlugin",
)


def optional_plugins() -> PluginManager:
    """Return the optional plugins, loaded: their sections say which keys of a ``broker.conf`` enable them."""
    from gantrymq.kernel.loading import load_plugins

    return load_plugins(OPTIONAL_PLUGINS)

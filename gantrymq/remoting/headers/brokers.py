"""The headers of requests for a broker's configuration and statistics.

Source: RocketMQ 4.9.7 ``common/protocol/header``.
"""

from __future__ import annotations

from gantrymq.remoting.headers.header import Header, Int32


class ConfigVersionResponse(Header, kw_only=True):
    """Response to 26: the configuration's data version as JSON."""

    version: str


class StatsHeader(Header, kw_only=True):
    """VIEW_BROKER_STATS_DATA (315)."""

    stats_name: str
    stats_key: str


class BrokerConsumeStatsHeader(Header, kw_only=True):
    """GET_BROKER_CONSUME_STATS (317): of all topics, or of ordered ones only."""

    is_order: bool


class DescribePluginsHeader(Header, kw_only=True):
    """DESCRIBE_PLUGINS (47002): of one plugin or of all; for how many seconds their hooks are to be timed from now on.

    The answer has no header; its body is a JSON object.
    """

    plugin_name: str | None = None
    measure_seconds: Int32 = 0


class ControlExporterHeader(Header, kw_only=True):
    """CONTROL_EXPORTER (47003): ``status``, ``run``, ``pause`` or ``resume``.

    The answer has no header; its body is the exporter's status as a JSON object.
    """

    action: str

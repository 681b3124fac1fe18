"""The headers of requests for a broker's configuration and statistics.

Source: RocketMQ 4.9.7 ``common/protocol/header``.
"""

from __future__ import annotations

from gantrymq.remoting.headers.header import Header


class ConfigVersionResponse(Header, kw_only=True):
    """Answer to 26: the configuration's data version as JSON."""

    version: str


class StatsHeader(Header, kw_only=True):
    """VIEW_BROKER_STATS_DATA (315)."""

    stats_name: str
    stats_key: str


class BrokerConsumeStatsHeader(Header, kw_only=True):
    """GET_BROKER_CONSUME_STATS (317): of all topics, or of ordered ones only."""

    is_order: bool

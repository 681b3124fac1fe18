"""Metrics of connected clients, with RocketMQ 5.3.3's names and labels
(``BrokerMetricsManager.initConnectionMetrics``)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from gantrymq.remoting.names import is_system_group
from gantrymq.remoting.versions import version_name

if TYPE_CHECKING:
    from gantrymq.kernel.metrics import Metrics
    from gantrymq.plugins.clients.clients import Clients

_MODES: Final = {"CONSUME_ACTIVELY": "pull", "CONSUME_PASSIVELY": "push", "CONSUME_POP": "pop"}
"""``ConsumeType`` and the names that the class gives its values."""


def report(metrics: Metrics, clients: Clients) -> None:
    """Report members of groups by language and version, and groups whose members have different subscriptions."""
    producers = Counter(
        (member.language, member.version)
        for group in clients.producers.groups.values()
        for member in group.members.values()
    )
    for (language, version), count in producers.items():
        metrics.gauge(
            "rocketmq_producer_connections", "Producers that are connected, once for each of their groups", count,
            language=language.lower(), version=version_name(version).lower(), protocol_type="remoting",
        )  # fmt: skip
    for name, group in clients.consumers.groups.items():
        mode = _MODES.get(group.consume_type, group.consume_type.lower())
        consumers = Counter((member.language, member.version) for member in group.members.values())
        for (language, version), count in consumers.items():
            metrics.gauge(
                "rocketmq_consumer_connections", "Consumers that are connected", count,
                consumer_group=name, language=language.lower(), version=version_name(version).lower(),
                consume_mode=mode, protocol_type="remoting", is_system=is_system_group(name),
            )  # fmt: skip
        metrics.gauge(
            "gantrymq_consumer_group_subscriptions_differ", "1 if members of a group have different subscriptions",
            int(group.differs), consumer_group=name,
        )  # fmt: skip

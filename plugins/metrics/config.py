"""Section ``[plugin.metrics]``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import attrs

from gantrymq.kernel.config.fields import address, duration, number
from gantrymq.kernel.config.rocketmq_keys import KeyGroup, NoCounterpart, SettingKey


def _read_exporter(properties: Mapping[str, str]) -> dict[SettingKey, str]:
    """RocketMQ 5's address for metrics; without a host, loopback and not the broker's own address."""
    kind = properties.get("metricsExporterType", "DISABLE")
    if kind == "DISABLE":
        return {}
    if kind != "PROM":
        raise NoCounterpart("metricsExporterType")
    host = properties.get("metricsPromExporterHost") or "127.0.0.1"
    return {("plugin.metrics", "listen"): f"{host}:{properties.get('metricsPromExporterPort', '5557')}"}


def _write_exporter(section: MetricsConfig) -> dict[str, str]:
    host, _, port = section.listen.rpartition(":")
    return {"metricsExporterType": "PROM", "metricsPromExporterHost": host, "metricsPromExporterPort": port}


@attrs.frozen(kw_only=True)
class MetricsConfig:
    """Listen address and limits."""

    broker_conf_groups: ClassVar = (
        KeyGroup(
            ("metricsExporterType", "metricsPromExporterHost", "metricsPromExporterPort"),
            _read_exporter,
            _write_exporter,
        ),
    )

    listen: str = address("127.0.0.1:5557", any_port=True)
    """RocketMQ's port. Any peer that can connect can read the names of topics and groups."""
    series_max: int = number(10_000, 100, 1_000_000)
    """The most series in one response; beyond it, series of the largest metrics are left out
    (``gantrymq_metrics_dropped_series``)."""
    connections_max: int = number(16, 1, 1024)
    """The most connections at the same time; further ones are closed at once."""
    timeout: float = duration("60s", minimum="100ms", maximum="10m")
    """How long a connection may be silent, take to send its request, or take to read the response."""
    hook_times: bool = False
    """Whether calls of plugins' hooks are timed (``gantrymq_plugin_seconds``)."""
    request_times: bool = True
    """Whether a sample of the requests is timed (``rocketmq_rpc_latency_milliseconds``)."""

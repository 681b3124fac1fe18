"""Section ``[plugin.otel]``."""

from __future__ import annotations

import attrs

from gantrymq.kernel.config.fields import duration, filled, number


def _is_share(instance: OtelConfig, attribute: attrs.Attribute[float], value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{attribute.name} must be from 0 to 1")


@attrs.frozen(kw_only=True)
class OtelConfig:
    """Where spans go, and how many."""

    endpoint: str = ""
    """The URL of the collector's OTLP/HTTP traces, such as ``http://collector:4318/v1/traces``. Empty: what the
    environment variables of OpenTelemetry (``OTEL_EXPORTER_OTLP_ENDPOINT``) say, or ``localhost:4318``."""
    service_name: str = filled("gantrymq-broker")
    """The attribute ``service.name`` of all spans."""
    sample: float = attrs.field(default=1.0, validator=_is_share)
    """The share of the traces that their producers have sampled, by trace id: a trace has all its spans or none."""
    spans_per_second: int = number(1_000, 1, 100_000)
    """The most spans a second; further ones are dropped and counted."""
    queue_max: int = number(10_000, 100, 1_000_000)
    """The most spans that wait for their export; further ones are dropped and counted."""
    export_interval: float = duration("1s", minimum="50ms", maximum="1m")
    """How often spans are exported."""
    export_timeout: float = duration("10s", minimum="100ms", maximum="1m")
    """How long an export may take, with its retries; after it, its spans are lost."""

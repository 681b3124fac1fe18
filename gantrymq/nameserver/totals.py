"""What a nameserver counts, as metrics."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

import attrs


class MetricsSink(Protocol):
    """Where metrics go: a collection for Prometheus."""

    def gauge(self, name: str, text: str, value: float, **labels: str | bool) -> None:
        """A present value; ``text`` describes it."""

    def counter(self, name: str, text: str, value: float, **labels: str | bool) -> None:
        """A total since the start."""


def _handshakes() -> Counter[str]:
    return Counter(ok=0, failed=0, unfinished=0, plain=0)


@attrs.define
class Totals:
    """Counts since the start. ``handshakes``: of TLS, by result."""

    handshakes: Counter[str] = attrs.field(factory=_handshakes)
    failed_reloads: int = 0
    refused_connections: int = 0

    def report(self, metrics: MetricsSink) -> None:
        """Add all counts."""
        for result, count in self.handshakes.items():
            metrics.counter(
                "gantrymq_nameserver_tls_handshakes_total", "TLS handshakes of the nameserver by result", count,
                result=result,
            )  # fmt: skip
        metrics.counter(
            "gantrymq_nameserver_tls_failed_reloads_total", "Changed certificates that the nameserver could not use",
            self.failed_reloads,
        )  # fmt: skip
        metrics.counter(
            "gantrymq_nameserver_refused_connections_total",
            "Connections that the nameserver closed because all were in use", self.refused_connections,
        )  # fmt: skip

"""RocketMQ 5's keys for it in a ``broker.conf``."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gantrymq.kernel.config.broker_conf import translate

PROM = {"metricsExporterType": "PROM"}


@pytest.mark.parametrize(
    ("properties", "address"),
    [
        (PROM, "127.0.0.1:5557"),
        (PROM | {"metricsPromExporterPort": "6000"}, "127.0.0.1:6000"),
        (PROM | {"metricsPromExporterHost": " 10.0.0.7 ", "brokerIP1": "10.0.0.8"}, "10.0.0.7:5557"),
    ],
)
def test_the_exporter_for_prometheus_is_the_plugin(properties: Mapping[str, str], address: str) -> None:
    ours, unmapped = translate(properties)
    assert ours["plugins", "enable"] == "metrics"
    assert ours["plugin.metrics", "listen"] == address
    assert not unmapped


def test_it_is_enabled_beside_the_one_for_copies() -> None:
    assert translate(PROM | {"brokerRole": "ASYNC_MASTER"})[0]["plugins", "enable"] == "ha,metrics"


@pytest.mark.parametrize(("kind", "unmapped"), [("DISABLE", []), ("OTLP_GRPC", ["metricsExporterType"])])
def test_other_exporters_are_none(kind: str, unmapped: list[str]) -> None:
    assert translate({"metricsExporterType": kind, "metricsPromExporterPort": "1"}) == ({}, unmapped)

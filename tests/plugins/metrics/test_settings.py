"""RocketMQ 5's keys for metrics in a ``broker.conf``."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gantrymq.kernel.config.broker_conf import translate
from gantrymq.kernel.config.declarations import plugin_sections
from gantrymq.kernel.config.sources import Settings, read_settings
from gantrymq.plugins import optional_plugins
from gantrymq.remoting.javaproperties import write_properties

PROM = {"metricsExporterType": "PROM"}


def read(properties: Mapping[str, str]) -> Settings:
    return read_settings("broker.conf", write_properties(dict(properties)), optional=optional_plugins)


@pytest.mark.parametrize(
    ("properties", "address"),
    [
        (PROM, "127.0.0.1:5557"),
        (PROM | {"metricsPromExporterPort": "6000"}, "127.0.0.1:6000"),
        (PROM | {"metricsPromExporterHost": " 10.0.0.7 ", "brokerIP1": "10.0.0.8"}, "10.0.0.7:5557"),
    ],
)
def test_the_exporter_for_prometheus_is_the_plugin(properties: Mapping[str, str], address: str) -> None:
    values = read(properties).values
    assert values["plugins", "enable"].value == "metrics"
    assert values["plugin.metrics", "listen"].value == address


def test_the_plugin_is_enabled_together_with_replication() -> None:
    assert read(PROM | {"brokerRole": "ASYNC_MASTER"}).values["plugins", "enable"].value == "ha,metrics"


@pytest.mark.parametrize(("kind", "unmapped"), [("DISABLE", ()), ("OTLP_GRPC", ("metricsExporterType",))])
def test_other_exporters_do_not_enable_the_plugin(kind: str, unmapped: tuple[str, ...]) -> None:
    properties = {"metricsExporterType": kind, "metricsPromExporterPort": "1"}
    found = translate(properties, plugin_sections(optional_plugins()))
    assert (found.settings, found.unmapped) == ({}, unmapped)
    assert read(properties).values == {}


def test_nothing_of_the_exporter_for_prometheus_is_unmapped() -> None:
    found = translate(PROM | {"metricsPromExporterPort": "6000"}, plugin_sections(optional_plugins()))
    assert found.unmapped == ()

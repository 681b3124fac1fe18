"""The text for Prometheus: its classic format, or OpenMetrics if the reader accepts it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

import attrs
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gantrymq.kernel.metrics import Distribution, Family, Metrics

_VERSION: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9}){0,3}")


@attrs.frozen
class Text:
    """The body and the media type of a response."""

    content_type: str
    body: bytes


def expose(metrics: Metrics, common: Mapping[str, str], accept: str) -> Text:
    """Return all ``metrics`` in the format that ``accept`` (a request's header) selects; ``common`` labels precede each
    series' own.

    Media types whose version is not a number are passed over; if nothing is left, the format is the classic one.
    """
    encode, content_type = choose_encoder(",".join(filter(_has_valid_version, accept.split(","))))
    return Text(content_type, encode(_Collected(metrics, common)))


def _has_valid_version(media_type: str) -> bool:
    """Whether the library can compare the version, if there is one, and put it into the response's ``Content-Type``."""
    parameters = (each.strip().partition("=") for each in media_type.split(";"))
    return all(_VERSION.fullmatch(value) for name, _, value in parameters if name == "version")


class _Collected(Collector):
    """Metric families for the library, which needs only :meth:`collect`."""

    def __init__(self, metrics: Metrics, common: Mapping[str, str]) -> None:
        self._metrics = metrics
        self._names = tuple(common)
        self._values = tuple(common.values())

    def collect(self) -> Iterator[Metric]:
        for family in sorted(self._metrics.families.values(), key=lambda each: each.name):
            yield self._family(family)

    def _family(self, family: Family) -> Metric:
        labels = (*self._names, *family.label_names)
        series = [((*self._values, *values), value) for values, value in family.series.items()]
        if family.kind == "histogram":
            histogram = HistogramMetricFamily(family.name, family.text, labels=labels)
            for values, value in series:
                if isinstance(value, Distribution):
                    buckets = [(_bound(bound), float(count)) for bound, count in value.buckets]
                    histogram.add_metric(values, buckets, value.total)
            return histogram
        made = (GaugeMetricFamily if family.kind == "gauge" else CounterMetricFamily)(
            family.name, family.text, labels=labels
        )
        for values, value in series:
            if not isinstance(value, Distribution):
                made.add_metric(values, value)
        return made


def _bound(bound: float) -> str:
    return "+Inf" if bound == float("inf") else repr(float(bound))

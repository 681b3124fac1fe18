"""Content negotiation: the format that a metrics client gets."""

from __future__ import annotations

import pytest

from gantrymq.kernel.metrics import Metrics
from gantrymq.plugins.metrics.exposition import Text, expose

CLASSIC = "text/plain; version=0.0.4; charset=utf-8"
CLASSIC_1 = "text/plain; version=1.0.0; charset=utf-8; escaping=underscores"
OPEN = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def exposed(accept: str) -> Text:
    metrics = Metrics(10)
    metrics.gauge("gantrymq_test", "A number", 1)
    return expose(metrics, {}, accept)


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", CLASSIC),
        ("*/*", CLASSIC),
        ("text/plain;version=0.0.4", CLASSIC),
        ("text/plain; version=1.0.0", CLASSIC_1),
        ("application/openmetrics-text", OPEN),
        ("application/openmetrics-text; version=1.0.0", f"{OPEN}; escaping=underscores"),
        ("text/html;q=1, application/openmetrics-text;version=0.0.1, text/plain;version=1.0.0", CLASSIC_1),
    ],
)
def test_the_first_known_media_type_selects_the_format(accept: str, content_type: str) -> None:
    text = exposed(accept)
    assert text.content_type == content_type
    assert text.body.endswith(b"# EOF\n") is content_type.startswith("application/openmetrics-text")


@pytest.mark.parametrize(
    "version", ["x", "\u00b2.0", "1.\u00b2", "1.0.0.\u00e9", '"1.0.0"', "", ".", "1..0", "9" * 5_000]
)
@pytest.mark.parametrize("kind", ["text/plain", "application/openmetrics-text"])
def test_a_media_type_whose_version_is_no_number_is_passed_over(kind: str, version: str) -> None:
    odd = f"{kind};version={version}"
    assert exposed(odd).content_type == CLASSIC
    assert exposed(f"{odd}, application/openmetrics-text").content_type == OPEN

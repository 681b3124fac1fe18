"""Responses of two brokers are normalized before they are compared."""

import pytest

from support.mqadmin import Case, Site, normalised


@pytest.mark.parametrize("rate", ["0.2", "0.20338983050847456", "0.1666666666666", "4.1e-05"])
def test_digits_of_a_rate_are_not_parsed_as_a_time(rate: str):
    case = Case("raw", "raw", (r"(?<='tps', )[\d.e-]+",))
    text = normalised(case, f"('sum', 40), ('tps', {rate})", Site("ns", "broker", "/folder"))
    assert text == "('sum', 40), ('tps', <...>)"

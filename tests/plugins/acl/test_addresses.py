"""Patterns of addresses, those of RocketMQ's ``RemoteAddressStrategyTest`` among them."""

from __future__ import annotations

import pytest

from gantrymq.plugins.acl.addresses import parse_rule, union


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("127.0.0.1", ["127.0.0.1", "::ffff:127.0.0.1"], ["127.0.0.2", "::1"]),
        ("127.0.0.{1,2,3}", ["127.0.0.1", "127.0.0.3"], ["127.0.0.4", "127.0.1.1"]),
        ("127.0.0.1,127.0.0.5", ["127.0.0.1", "127.0.0.5"], ["127.0.0.2"]),
        ("192.168.1.*", ["192.168.1.0", "192.168.1.255"], ["192.168.2.1", "192.169.1.1"]),
        ("192.168.*.*", ["192.168.7.9"], ["192.167.7.9"]),
        ("192.168.1-5.*", ["192.168.1.9", "192.168.5.0"], ["192.168.6.1", "192.168.0.1"]),
        ("192.168.1.10-20", ["192.168.1.10", "192.168.1.20"], ["192.168.1.9", "192.168.1.21"]),
        ("192.168.*.5", ["192.168.7.5"], ["192.168.7.6"]),
        ("*", ["1.2.3.4", "::1", "nonsense"], []),
        ("*.*.*.*", ["1.2.3.4"], []),
        ("", [], ["127.0.0.1", "::1", ""]),
        ("  ", [], ["127.0.0.1"]),
        ("::1", ["::1", "0:0:0:0:0:0:0:1"], ["::2", "127.0.0.1"]),
        ("1050::0005:0600:300c:326b", ["1050:0:0:0:5:600:300c:326b"], ["1050::6:600:300c:326b"]),
        (
            "1050::0005:0600:300c:1-200:*",
            ["1050::5:600:300c:1:9", "1050::5:600:300c:200:0"],
            ["1050::5:600:300c:201:0"],
        ),
        ("::ac5:78:{1,2}", ["::ac5:78:1", "::ac5:78:2"], ["::ac5:78:3"]),
        ("fe80::*", ["fe80::7", "fe80::ffff%eth0"], ["fe81::7"]),
    ],
)
def test_a_pattern_matches_its_addresses_and_no_others(pattern: str, inside: list[str], outside: list[str]) -> None:
    rule = parse_rule(pattern)
    assert [host for host in inside if not rule.matches(host)] == []
    assert [host for host in outside if rule.matches(host)] == []


@pytest.mark.parametrize(
    "pattern",
    ["1.2.3", "1.2.3.4.5", "1.2.3.256", "1.2.3.x", "1.2.3.-5", "1.2.3.5-", "1.2.3.9-5", "1.2.3.{4", "1.2.3.4}", "host",
     "1::2::3", "1:2:3", "12345::", "1.2.3.{a,b}", "1.2.3.\N{SUPERSCRIPT TWO}", "1.2.3.1_0"],
)  # fmt: skip
def test_invalid_address_patterns_are_rejected(pattern: str) -> None:
    with pytest.raises(ValueError, match="is not an address"):
        parse_rule(pattern)


def test_a_union_has_the_addresses_of_all() -> None:
    rule = union([parse_rule("10.0.0.1"), parse_rule("10.0.1.*"), parse_rule("")])
    assert [rule.matches(host) for host in ("10.0.0.1", "10.0.1.9", "10.0.2.1")] == [True, True, False]
    assert not union([])

"""Patterns of addresses: ``192.168.1.*``, ``10.0.1-5.*``, ``10.0.0.{1,2}``, lists with commas, and IPv6.

Source: RocketMQ 4.9.7 ``RemoteAddressStrategyFactory``. Where a pattern has fixed parts behind a range, they must match
here; RocketMQ ignores them.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

import attrs

_EVERY: Final = frozenset({"*", "*.*.*.*", "*:*:*:*:*:*:*:*"})
_Parts = tuple[tuple[int, int], ...]


@attrs.frozen
class AddressRule:
    """A set of addresses. ``patterns``: lowest and highest value of each of the 4 or 8 parts."""

    patterns: tuple[_Parts, ...] = ()
    every: bool = False

    def __bool__(self) -> bool:
        return self.every or bool(self.patterns)

    def matches(self, host: str) -> bool:
        """Whether the numeric address ``host`` belongs to the set."""
        if self.every or not self.patterns:
            return self.every
        parts = _parts_of(host)
        return any(
            len(pattern) == len(parts)
            and all(low <= part <= high for part, (low, high) in zip(parts, pattern, strict=True))
            for pattern in self.patterns
        )


def parse_rule(text: str) -> AddressRule:
    """The rule of one text of the file; a blank one matches nothing. ``ValueError`` names the text."""
    text = text.strip()
    if not text:
        return AddressRule()
    if text in _EVERY:
        return AddressRule(every=True)
    if text.endswith("}"):
        head, brace, last = text[:-1].rpartition("{")
        if not brace or not head.endswith((".", ":")):
            raise _wrong(text)
        return AddressRule(tuple(_parse(head + part.strip(), text) for part in last.split(",") if part.strip()))
    return AddressRule(tuple(_parse(part.strip(), text) for part in text.split(",") if part.strip()))


def union(rules: Iterable[AddressRule]) -> AddressRule:
    """The addresses of any of the rules."""
    rules = tuple(rules)
    patterns = tuple(pattern for rule in rules for pattern in rule.patterns)
    return AddressRule(patterns, any(rule.every for rule in rules))


def _wrong(text: str) -> ValueError:
    return ValueError(f"{text!r} is not an address: expected forms are 10.0.0.1, 10.0.0.*, 10.0.1-5.*, 10.0.0.{{1,2}}")


def _parse(text: str, whole: str) -> _Parts:
    is_v6 = ":" in text
    parts = _expand(text, whole) if is_v6 else text.split(".")
    if len(parts) != (8 if is_v6 else 4):
        raise _wrong(whole)
    return tuple(_range_of(part.strip(), is_v6, whole) for part in parts)


def _expand(text: str, whole: str) -> list[str]:
    """The parts of an IPv6 pattern, those that ``::`` stands for as zeros."""
    head, double, tail = text.partition("::")
    if "::" in tail:
        raise _wrong(whole)
    first, last = ([part for part in each.split(":") if part] if double else each.split(":") for each in (head, tail))
    return [*first, *["0"] * (8 - len(first) - len(last)), *last] if double else first


def _range_of(part: str, is_v6: bool, whole: str) -> tuple[int, int]:
    most, base = (0xFFFF, 16) if is_v6 else (255, 10)
    if part == "*":
        return 0, most
    low, dash, high = part.partition("-")
    if not part.isascii() or not low.isalnum() or (dash and not high.isalnum()):
        raise _wrong(whole)
    try:
        first = int(low, base)
        last = int(high, base) if dash else first
    except ValueError:
        raise _wrong(whole) from None
    if not first <= last <= most:
        raise _wrong(whole)
    return first, last


def _parts_of(host: str) -> tuple[int, ...]:
    try:
        address: IPv4Address | IPv6Address = ip_address(host.partition("%")[0])
    except ValueError:
        return ()
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is None:
            return tuple(int(part, 16) for part in address.exploded.split(":"))
        address = address.ipv4_mapped
    return tuple(address.packed)

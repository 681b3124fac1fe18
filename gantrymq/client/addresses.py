"""Nameservers' addresses as users write them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from gantrymq.remoting.address import parse_address


def parse_nameservers(text: str | Iterable[str]) -> tuple[str, ...]:
    """Addresses from ``host:port[;host:port...]`` or from several such texts; ValueError names the one that is none.

    Commas separate as well, and ``http://`` in front of an address is left out, as RocketMQ's clients do.
    """
    if isinstance(text, str):
        text = (text,)
    given = [part for each in text for part in _split(each)]
    addresses = tuple(dict.fromkeys(_without_scheme(part) for part in given))
    if not addresses:
        raise ValueError("no nameserver given: host:port is expected, as in 127.0.0.1:9876")
    for address in addresses:
        parse_address(address)
    return addresses


def _split(text: str) -> list[str]:
    if not isinstance(text, str):
        raise ValueError(f"{text!r} is not an address: host:port is expected, as in '127.0.0.1:9876'")
    return [part for part in re.split(r"[;,\s]+", text) if part]


def _without_scheme(text: str) -> str:
    scheme, separator, rest = text.partition("://")
    if not separator:
        return text
    rest = rest.removesuffix("/")
    if scheme.lower() != "http" or "/" in rest:
        raise ValueError(
            f"{text!r} is not a nameserver: give its host:port, as in 127.0.0.1:9876, not a URL "
            "(one with a path, alone, is asked for the addresses)"
        )
    return rest


def is_discovery_url(text: object) -> bool:
    """Whether ``text`` is a URL with a path: ``http://host:port`` alone is a nameserver's address in another form."""
    if not isinstance(text, str) or not re.match(r"\s*https?://", text, re.IGNORECASE):
        return False
    return urlsplit(text.strip()).path not in ("", "/")

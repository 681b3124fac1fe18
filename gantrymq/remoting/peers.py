"""Permissions of peers by address, and fair sharing of scarce resources between addresses."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final, Generic, TypeVar

T = TypeVar("T")

LOOPBACK: Final = ("127.0.0.0/8", "::1/128")
IPV6_SITE_BITS: Final = 64
"""The prefix length of an IPv6 address that identifies a site, which can choose the remaining bits (RFC 4291)."""


class PeerRule:
    """Addresses and networks, such as ``10.0.0.7`` and ``10.0.0.0/24``."""

    def __init__(self, texts: Iterable[str]) -> None:
        """``ValueError`` names the text that is neither an address nor a network."""
        self._networks = []
        for text in texts:
            try:
                self._networks.append(ip_network(text))
            except ValueError:
                raise ValueError(
                    f"must be addresses or networks like '10.0.0.7' or '10.0.0.0/24', not {text!r}"
                ) from None

    def admits(self, host: str) -> bool:
        """Whether the rule contains ``host``, a numeric address."""
        address = _parse(host)
        return address is not None and any(address in network for network in self._networks)


def is_loopback(host: str) -> bool:
    """Whether ``host`` is a numeric loopback address; False for a name."""
    address = _parse(host)
    return address is not None and address.is_loopback


def names_loopback(host: str) -> bool:
    """Whether the header ``Host`` of a request is ``localhost`` or a loopback address, with or without a port; True for
    an empty text: a request of HTTP/1.0 may have none. A server at a loopback address that answers other requests can
    be read by any web page in a browser of its machine (DNS rebinding)."""
    name = host.rpartition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
    return not host or name.lower() == "localhost" or is_loopback(name)


@lru_cache(4096)
def site_of(host: str) -> str:
    """The owner of connections from ``host``: an IPv4 address, or the first 64 bits of an IPv6 address."""
    address = _parse(host)
    if isinstance(address, IPv6Address):
        return str(ip_network((int(address) >> IPV6_SITE_BITS << IPV6_SITE_BITS, IPV6_SITE_BITS)))
    return host if address is None else str(address)


def _parse(host: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return address if mapped is None else mapped


class FairShares(Generic[T]):
    """Counts the places of each owner, of a limited number, so that no owner can take all of them."""

    def __init__(self) -> None:
        self._held: dict[str, dict[T, None]] = {}
        self._most: str | None = None

    def add(self, owner: str, item: T) -> None:
        """``owner`` takes one more place."""
        held = self._held.setdefault(owner, {})
        held[item] = None
        if self._most is not None and len(held) > len(self._held.get(self._most, ())):
            self._most = owner

    def remove(self, owner: str, item: T) -> None:
        """``owner`` releases a place."""
        held = self._held.get(owner)
        if held is not None and item in held:
            del held[item]
            if not held:
                del self._held[owner]
            if owner == self._most:
                self._most = None

    def count(self, owner: str) -> int:
        """The number of places of ``owner``."""
        return len(self._held.get(owner, ()))

    def to_displace(self, owner: str) -> T | None:
        """If all places are taken: the place that ``owner`` takes over, or None if its share is not below the largest
        one.

        It is the newest place of the owner with the most places; after the exchange that owner has at least as many
        places as ``owner``.
        """
        if self._most is None:
            self._most = max(self._held, key=lambda each: len(self._held[each]), default=None)
        if self._most is None or self.count(owner) + 1 >= len(self._held[self._most]):
            return None
        return next(reversed(self._held[self._most]))

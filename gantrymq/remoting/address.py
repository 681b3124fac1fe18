"""``host:port`` as text and as a pair."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address


def parse_address(text: str, *, any_port: bool = False) -> tuple[str, int]:
    """Host and port of ``host:port`` (``[::1]:9876`` for IPv6); ValueError names the problem.

    ``any_port`` allows the port 0, with which a listener chooses a free one.
    """
    host, separator, port = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not separator or not host:
        raise ValueError(f"{text!r} is not an address: host:port is expected, as in 127.0.0.1:9876")
    lowest = 0 if any_port else 1
    if not (port.isascii() and port.isdigit()) or not lowest <= int(port) < 65536:
        raise ValueError(f"{text!r} is not an address: the port must be a number from {lowest} to 65535")
    return host, int(port)


def format_address(host: str, port: int) -> str:
    """The address as text, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def encode_host(address: str, port: int) -> bytes:
    """Address and port in the stored form: 8 bytes, 20 for IPv6. :class:`ValueError` unless it is an IP address."""
    return ip_address(address).packed + port.to_bytes(4, "big")


def decode_host(host: bytes) -> tuple[str, int]:
    """Address and port of a stored host."""
    if len(host) == 8:
        return str(IPv4Address(host[:4])), int.from_bytes(host[4:], "big")
    if len(host) == 20:
        return str(IPv6Address(host[:16])), int.from_bytes(host[16:], "big")
    raise ValueError(f"a stored host has 8 or 20 bytes, this has {len(host)}")

"""Many TLS handshakes at once, which cost a client next to nothing."""

from __future__ import annotations

import ssl
import sys

import pytest
import trio

from gantrymq.remoting.address import parse_address
from support.certificates import client_context

FLOOD = """
import socket, sys
hello, host, port = bytes.fromhex(sys.argv[1]), sys.argv[2], int(sys.argv[3])
for _ in range(10):
    sockets = [socket.create_connection((host, port)) for _ in range(100)]
    for sock in sockets:
        sock.sendall(hello)
    for sock in sockets:
        sock.recv(65536)
        sock.close()
"""
"""A thousand handshakes, each ended when the server has done its part: that costs a client next to nothing."""


def client_hello() -> bytes:
    """The first bytes that a client with TLS sends."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = client_context().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


async def flood(address: str) -> None:
    """A thousand handshakes from another process, each ended when the server has done its part."""
    host, port = parse_address(address)
    await trio.run_process([sys.executable, "-c", FLOOD, client_hello().hex(), host, str(port)])

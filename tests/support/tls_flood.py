"""Many concurrent TLS handshakes at little cost for the client."""

from __future__ import annotations

import ssl
import sys
from contextlib import suppress
from pathlib import Path

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

COMPLETE = """
import socket, ssl, sys, threading
authority, host, port, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
context = ssl.create_default_context(cafile=authority)
done = []
def connect():
    for _ in range(count // 4):
        with socket.create_connection((host, port), 60) as plain:
            tls = context.wrap_socket(plain, server_hostname=host)
            tls.unwrap()  # the server ends its part as well, so it has read all of the handshake
            done.append(tls)
threads = [threading.Thread(target=connect) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
sys.exit(len(done) != count)
"""
"""A program that makes ``count`` complete handshakes, four at a time; none of them may fail or take 60 s."""


def client_hello() -> bytes:
    """The first bytes that a client with TLS sends."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = client_context().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def shake_hands_in_memory(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Run both sides of a handshake without a network."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    parts = [client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1"),
             server.wrap_bio(to_server, to_client, server_side=True)]  # fmt: skip
    for _ in range(2):
        for part in parts:
            with suppress(ssl.SSLWantReadError):
                part.do_handshake()
    assert parts[1].version() == "TLSv1.3"


async def flood(address: str) -> None:
    """A thousand handshakes from another process, each ended when the server has done its part."""
    host, port = parse_address(address)
    await trio.run_process([sys.executable, "-c", FLOOD, client_hello().hex(), host, str(port)])


async def shake_hands(address: str, authority: Path, count: int) -> None:
    """``count`` whole handshakes from another process, which trusts ``authority``; all must succeed."""
    host, port = parse_address(address)
    await trio.run_process([sys.executable, "-c", COMPLETE, str(authority), host, str(port), str(count)])

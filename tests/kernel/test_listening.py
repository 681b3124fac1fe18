"""The address that a broker waits at, on real sockets."""

from __future__ import annotations

import select
import socket

import pytest

from gantrymq.kernel.listening import SystemListener


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_who_connects_is_accepted_with_its_address_and_without_blocking(host: str) -> None:
    listener = SystemListener(host, 0)
    try:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(listener.address, 5)
        listener.listen(4)
        with pytest.raises(BlockingIOError):
            listener.accept()
        with socket.create_connection(listener.address, 5) as near:
            assert select.select([listener.fileno()], [], [], 5)[0]
            far, peer = listener.accept()
            with far:
                assert peer == near.getsockname()[:2]
                assert far.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                with pytest.raises(BlockingIOError):
                    far.recv(1)
    finally:
        listener.close()


@pytest.mark.parametrize("port", [None, 1 << 16], ids=["taken", "no port"])
def test_an_address_that_cannot_be_had_is_an_error(port: int | None) -> None:
    listener = SystemListener("127.0.0.1", 0)
    listener.listen(1)
    try:
        with pytest.raises((OSError, OverflowError)):
            SystemListener("127.0.0.1", listener.address[1] if port is None else port)
    finally:
        listener.close()

"""The listening address of a broker, on real sockets."""

from __future__ import annotations

import errno
import select
import socket

import pytest
import structlog
import trio
import trio.testing

from gantrymq.kernel.env.system import SystemListener
from gantrymq.kernel.network.listening import accept_from, serve_connections
from support.processes import free_ports


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_connections_are_accepted_with_their_address_without_blocking(host: str) -> None:
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
def test_an_unavailable_address_is_an_error(port: int | None) -> None:
    listener = SystemListener("127.0.0.1", 0)
    listener.listen(1)
    try:
        with pytest.raises((OSError, OverflowError)):
            SystemListener("127.0.0.1", listener.address[1] if port is None else port)
    finally:
        listener.close()


def test_nobody_else_gets_a_port_that_the_system_has_chosen() -> None:
    """Others bind it as they bind a port of their own, before the listener listens."""
    listener = SystemListener("127.0.0.1", 0)
    try:
        with pytest.raises(OSError, match="in use"):
            SystemListener(*listener.address)
        listener.listen(4)
    finally:
        listener.close()


@pytest.mark.parametrize("first_port", [0, None], ids=["any", "given"])
def test_a_port_is_free_again_as_soon_as_its_listener_and_its_connections_are_closed(first_port: int | None) -> None:
    listener = SystemListener("127.0.0.1", free_ports()[0] if first_port is None else first_port)
    listener.listen(4)
    with socket.create_connection(listener.address, 5) as near:
        assert select.select([listener.fileno()], [], [], 5)[0]
        far, _ = listener.accept()
        far.close()  # this side closes first, so the system keeps the connection in TIME_WAIT
        assert near.recv(1) == b""
    listener.close()
    again = SystemListener(*listener.address)
    again.listen(4)
    again.close()


class Short(SystemListener):
    """The process has no descriptor left for the first attempts, and its first peer leaves at once."""

    def __init__(self, attempts: int) -> None:
        super().__init__("127.0.0.1", 0)
        self._errors = [errno.ECONNABORTED, *[errno.EMFILE] * attempts]

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        if self._errors:
            raise OSError(self._errors.pop(0), "no")
        return super().accept()


@pytest.mark.trio
async def test_connections_without_a_free_descriptor_are_accepted_later_and_logged_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    listener = Short(attempts=20)
    listener.listen(4)
    with socket.create_connection(listener.address, 5) as near, structlog.testing.capture_logs() as logs:
        far, peer = await accept_from(listener, "a slave")
        with far:
            assert peer == near.getsockname()[:2]
    listener.close()
    assert trio.current_time() == pytest.approx(2.0, abs=0.2)
    assert [(entry["event"], entry["peer"]) for entry in logs] == [("accept_failed", "a slave")]


@pytest.mark.trio
async def test_an_error_in_serving_a_connection_closes_only_this_one_and_is_logged_at_intervals(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            if await stream.receive_some(10) == b"bad":
                raise TypeError("not expected")
            await stream.send_all(b"answer")

    async def exchange(request: bytes) -> bytes:
        async with await trio.open_tcp_stream(*listener.address) as stream:
            await stream.send_all(request)
            return bytes(await stream.receive_some(10))

    listener = SystemListener("127.0.0.1", 0)
    listener.listen(4)
    with structlog.testing.capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_connections, listener, "a reader", 4, serve)
            async with await trio.open_tcp_stream(*listener.address) as open_before:
                for _ in range(6):
                    assert await exchange(b"bad") == b""
                    assert await exchange(b"good") == b"answer"
                await open_before.send_all(b"good")
                assert await open_before.receive_some(10) == b"answer"
            nursery.cancel_scope.cancel()
    failures = [entry for entry in logs if entry["event"] == "connection_failed"]
    assert [(entry["log_level"], entry["peer"], entry["error"]) for entry in failures] == [
        ("error", "a reader", "TypeError('not expected')")
    ]
    assert failures[0]["exc_info"] is True

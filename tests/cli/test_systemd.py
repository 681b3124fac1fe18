"""Notifications to systemd: a real server sends them to its socket, and a broker that hangs sends no watchdog."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from gantrymq.cli.systemd import Notifier

PATIENCE_S = 60.0


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """The end of systemd."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(PATIENCE_S)
        yield sock


def wait_for(manager: socket.socket, text: str) -> list[str]:
    """All messages up to the one with this text."""
    messages: list[str] = []
    while not messages or text not in messages[-1]:
        messages.append(manager.recv(4096).decode())
    return messages


@pytest.mark.slow
def test_a_server_reports_its_start_its_state_and_its_end(manager: socket.socket, tmp_path: Path) -> None:
    environ = {**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "600000"}
    environ.pop("WATCHDOG_PID", None)
    command = [sys.executable, "-m", "gantrymq.cli", "serve", "--data", str(tmp_path / "store")]
    command += ["--listen", "127.0.0.1:0", "--nameserver-listen", "127.0.0.1:0", "--set", "plugin.http.listen="]
    command += ["--set", "store.commit_log_file_bytes=1 MiB"]
    child = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        assert wait_for(manager, "READY=1") == ["READY=1"]
        assert wait_for(manager, "STATUS=")[-1] == "STATUS=serving"
        for _ in range(2):
            assert wait_for(manager, "WATCHDOG=1")
        child.send_signal(signal.SIGTERM)
        wait_for(manager, "STOPPING=1")
        assert child.wait(PATIENCE_S) == 0
    finally:
        child.kill()
        child.wait()


@pytest.mark.trio
async def test_the_watchdog_is_not_fed_while_the_broker_does_not_work(manager: socket.socket, tmp_path: Path) -> None:
    reasons = {"log": "the log is\npoisoned"}
    notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "30000"})
    assert notifier.watchdog_s == 0.03
    async with trio.open_nursery() as nursery:
        nursery.start_soon(notifier.report, lambda: reasons, lambda: reasons)
        assert await trio.to_thread.run_sync(manager.recv, 4096) == b"STATUS=the log is poisoned"
        await trio.sleep(0.1)
        manager.setblocking(False)
        with pytest.raises(BlockingIOError):
            manager.recv(4096)
        reasons.clear()
        manager.settimeout(PATIENCE_S)
        assert await trio.to_thread.run_sync(manager.recv, 4096) == b"WATCHDOG=1"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": "/nowhere/at/all"}, {"WATCHDOG_USEC": "x"}])
def test_a_notification_without_a_listener_is_dropped(environ: dict[str, str]) -> None:
    notifier = Notifier(environ)
    notifier.send(READY="1")
    assert notifier.watchdog_s == 0
    assert notifier.is_on == ("NOTIFY_SOCKET" in environ)


def test_a_watchdog_for_another_process_is_not_ours() -> None:
    assert Notifier({"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}).watchdog_s == 0


def test_an_abstract_address_is_understood() -> None:
    name = f"gantrymq-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(f"\0{name}")
        sock.settimeout(PATIENCE_S)
        Notifier({"NOTIFY_SOCKET": f"@{name}"}).send(READY="1", STATUS="x")
        assert sock.recv(100) == b"READY=1\nSTATUS=x"

"""Child processes of tests: their output is read, and none outlives its block."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.processes import Child, ChildFailed, free_ports

DEAF = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); sys.stdin.read()"


def python(code: str, tmp_path: Path) -> Child:
    return Child([sys.executable, "-c", code], tmp_path / "log")


@pytest.fixture
def echo(tmp_path: Path) -> Iterator[Child]:
    with python("import sys\nfor line in sys.stdin: print(line.strip(), flush=True)", tmp_path) as child:
        yield child


def test_lines_and_events_come_in_order(echo: Child):
    for line in ("first", '{"event": "a", "n": 1}', "between", '{"event": "b"}'):
        echo.say(line)
    assert echo.wait_line(lambda line: line == "first") == "first"
    assert echo.wait_event("b") == {"event": "b"}
    assert echo.try_line(0) is None


def test_a_silent_child_is_reported_with_its_last_output(tmp_path: Path):
    with python(
        "import sys; print('one word'); print('an error', file=sys.stderr); sys.stdout.flush()", tmp_path
    ) as child:
        with pytest.raises(ChildFailed, match=r"(?s)ended before.*exit code.*one word.*an error"):
            child.wait_line(lambda line: line == "another word")
        assert child.wait() == 0


def test_waiting_for_a_silent_child_times_out(echo: Child):
    with pytest.raises(ChildFailed, match=r"nothing awaited came in 0\.05 s"):
        echo.wait_event("never", timeout=0.05)


def test_a_hanging_child_prints_its_stack_and_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Child.terminate, "__defaults__", (0.2,))
    with python(DEAF, tmp_path) as child:
        child.wait_line(lambda line: line == "deaf")
        pid = child.pid
        with pytest.raises(ChildFailed, match=r"(?s)still runs 1 s after SIGTERM.*-- threads\n.*:1 <module>"):
            child.terminate(1)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert child.process.returncode == -6
    assert "Current thread" in child.log.read_text()


def test_concurrent_calls_get_different_ports():
    with ThreadPoolExecutor(8) as threads:
        given = [port for ports in threads.map(lambda _: free_ports(2), range(40)) for port in ports]
    assert len(set(given)) == len(given)


def test_free_ports_and_their_neighbors_are_free():
    ports = free_ports(3, around=(0, 1, -2))
    assert len(set(ports)) == 3
    for port in ports:
        for distance in (0, 1, -2):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port + distance))


def test_lines_before_the_start_of_a_program_are_read_next(tmp_path: Path) -> None:
    said = '{"event":"message"}\nnoise\n{"event":"started"}\n{"event":"message","number":2}'
    with Child([sys.executable, "-c", f"print({said!r})"], tmp_path / "log") as child:
        child.wait_started()
        assert [child.try_line(10) for _ in range(2)] == ['{"event":"message"}', "noise"]
        assert list(child.events()) == [{"event": "message", "number": 2}]


def test_a_program_that_ends_before_it_has_started_is_reported(tmp_path: Path) -> None:
    with (
        Child([sys.executable, "-c", "print('no')"], tmp_path / "log") as child,
        pytest.raises(ChildFailed, match="ended before it had started"),
    ):
        child.wait_started()

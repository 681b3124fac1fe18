"""The start of the measured systems, and the report about one that ends too early."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gantrymq.remoting.address import parse_address
from gantrymq.remoting.command import encode
from gantrymq.testing.requests import send

LOG_FILE_BYTES = 16 * 2**20
FAILING_PLUGIN = '''
"""A plugin that fails at one message.

Hooks: ``before_append``.
"""
from gantrymq.kernel import hookimpl


class Failing:
    name = "failing"

    @hookimpl
    def before_append(self, batch):
        if b"fail" in batch.bodies:
            raise ValueError("the plugin was asked to fail")


plugin = Failing()
'''


def send_until_reset(address: str, body: bytes, connected: Callable[[], object] = lambda: None) -> None:
    """Send one message after the other; always ends with the error of a connection that was lost.

    ``connected`` is called before the first message.
    """
    frame = encode(send("systems", body, queues=4))
    with socket.create_connection(parse_address(address), 30.0) as connection:
        connected()
        while True:
            connection.sendall(frame)
            if not connection.recv(65_536):
                raise ConnectionResetError("the broker closed the connection")


@pytest.mark.slow
def test_a_broker_that_ended_by_an_error_is_reported_with_its_exit_code_and_the_error(
    load: Any, tmp_path: Path
) -> None:
    systems = load("systems")
    (tmp_path / "failing.py").write_text(FAILING_PLUGIN)
    plugin = ("--set", f"plugins.load={tmp_path / 'failing.py'}:plugin")
    with (
        pytest.raises(RuntimeError, match="GantryMQ ended with exit code 1: ") as raised,
        systems.start("gantrymq", systems.Setup(log_file_bytes=LOG_FILE_BYTES, arguments=plugin)) as running,
    ):
        send_until_reset(running.address, b"fail")
    assert "the plugin was asked to fail" in str(raised.value)
    assert isinstance(raised.value.__cause__, OSError)


@pytest.mark.slow
def test_a_broker_that_was_stopped_by_a_signal_is_reported_with_exit_code_0(load: Any) -> None:
    systems = load("systems")
    with (
        pytest.raises(RuntimeError, match="GantryMQ ended with exit code 0: "),
        systems.start("gantrymq", systems.Setup(log_file_bytes=LOG_FILE_BYTES)) as running,
    ):
        send_until_reset(running.address, b"x", partial(os.kill, running.pid, signal.SIGTERM))


@pytest.mark.slow
def test_a_failure_beside_a_broker_that_runs_is_reported_as_it_is_with_the_log(load: Any) -> None:
    systems = load("systems")
    with (
        pytest.raises(ConnectionResetError, match="by another one") as raised,
        systems.start("gantrymq", systems.Setup(log_file_bytes=LOG_FILE_BYTES)),
    ):
        raise ConnectionResetError("by another one")
    (note,) = raised.value.__notes__
    assert "still runs; the end of its log: " in note


class _Stopped(Exception):
    """Raised instead of a start."""


@pytest.mark.parametrize("module", ["systems", "security"])
def test_each_store_has_a_broker_name_of_its_own_and_no_broker_listens_for_http(
    load: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, module: str
) -> None:
    measured = load(module)

    def settings_of(home: Path) -> dict[str, str]:
        started: list[str] = []

        def note(arguments: Sequence[str], *_: Any, **__: Any) -> None:
            started.extend(arguments)
            raise _Stopped

        monkeypatch.setattr(measured, "gantrymq_child", note)
        with pytest.raises(_Stopped), measured._gantrymq("plain" if module == "security" else measured.Setup(), home):
            pass
        values = [value for option, value in pairwise(started) if option == "--set"]
        return {name: value for name, _, value in (text.partition("=") for text in values)}

    found = [settings_of(tmp_path / name) for name in ("one", "two", "one")]
    names = [each["broker.name"] for each in found]
    assert names[0] == names[2] != names[1]  # a store is started again under its name
    assert all(name.startswith("bench-") for name in names)
    assert [each["plugin.http.listen"] for each in found] == ["", "", ""]

"""The servers as processes: the banner, the signals, and every reason that refuses the start."""

from __future__ import annotations

import errno
import gc
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from gantrymq import Message
from gantrymq.cli import servers, signals
from gantrymq.cli.end_deadline import EndDeadline
from gantrymq.cli.loading import ConfigFlags, Loader, load
from gantrymq.cli.servers import COLLECTOR_THRESHOLDS, settle_collector
from gantrymq.client import connect
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import GantryError
from gantrymq.testing.harness import make_broker
from support.foreign import ask
from support.processes import Child, ChildFailed, gantrymq_child, wait_for

# a server that starts where it should refuse would run for ever
pytestmark = pytest.mark.timeout(120)

Cli = Callable[..., Any]
Serve = Callable[..., Child]
ANY_PORT = ["--listen", "127.0.0.1:0", "--nameserver-listen", "127.0.0.1:0"]
SMALL = ["--set", "store.commit_log_file_bytes=4 MiB"]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Start ``gantrymq serve`` on a store of this test; stopped at the end."""
    with ExitStack() as stack:

        def start(*arguments: str, command: str = "serve") -> Child:
            store = ["--data", str(tmp_path / "store"), *SMALL] if command != "nameserver" else []
            return stack.enter_context(gantrymq_child([command, *store, *arguments], tmp_path / "log"))

        yield start


def ready(child: Child) -> dict[str, str]:
    """The addresses of the ``ready`` line."""
    line = child.wait_line(lambda text: text.startswith("ready"))
    return dict(word.partition("=")[::2] for word in line.split()[1:])  # type: ignore[misc]


def errors(child: Child) -> list[str]:
    """The child's messages to the user (its log lines are JSON)."""
    return [line for line in child.log.read_text().splitlines() if not line.startswith("{")]


def logged(child: Child) -> list[dict[str, Any]]:
    """The events of the child's log."""
    return [json.loads(line) for line in child.log.read_text().splitlines() if line.startswith("{")]


def test_the_banner_has_all_addresses_and_precedes_ready(serve: Serve, tmp_path: Path) -> None:
    child = serve(*ANY_PORT, "--set", "broker.advertise=127.0.0.1:7777", "--set", "plugin.flush.mode=async")
    lines = []
    for line in child.lines():
        lines.append(line)
        if line.startswith("ready"):
            break
    text = "\n".join(lines)
    assert lines[0].startswith("GantryMQ 0.")
    assert "(plain)" in lines[0] or "(compiled)" in lines[0]
    assert "broker-a in DefaultCluster, id 0" in text
    assert "advertises 127.0.0.1:7777" in text
    assert f"store       {tmp_path / 'store'}" in text
    assert "flush       async" in text
    assert "plugins     topics produce consume" in text
    assert child.terminate() == 0
    assert errors(child) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_the_broker_which_exits_with_0(serve: Serve, cli: Cli, number: int, tmp_path: Path) -> None:
    child = serve(*ANY_PORT)
    nameserver = ready(child)["nameserver"]
    lines = tmp_path / "lines"
    lines.write_text("one\ntwo\n")
    assert cli("produce", "--topic", "t", "--nameserver", nameserver, "--file", str(lines)).code == 0
    child.process.send_signal(number)
    assert child.wait() == 0
    assert not (tmp_path / "store" / "abort").exists()
    (asked,) = [event for event in logged(child) if event["event"] == "stop_requested"]
    assert (asked["level"], asked["reason"]) == ("info", signal.Signals(number).name)


@pytest.mark.slow
def test_a_signal_under_load_drains_and_acknowledged_messages_survive(serve: Serve) -> None:
    child = serve(*ANY_PORT)
    acknowledged: set[bytes] = set()

    async def produce(nameserver: str) -> None:
        async with connect(nameserver) as client, client.producer(retries=0, timeout=30) as producer:

            async def send(number: int) -> None:
                body = b"%d" % number
                await producer.send("load", body)
                acknowledged.add(body)

            for number in range(201):
                await send(number)
            child.process.send_signal(signal.SIGTERM)
            with suppress(GantryError):
                for number in itertools.count(201):
                    await send(number)

    async def consume(nameserver: str) -> set[bytes]:
        found: set[bytes] = set()
        async with connect(nameserver) as client, client.consumer("load", "readers", start="first") as consumer:
            with trio.fail_after(20):
                while not acknowledged <= found:
                    found.add((await anext(consumer)).body)
        return found

    trio.run(produce, ready(child)["nameserver"])
    assert child.wait() == 0
    assert errors(child) == []
    assert len(acknowledged) > 200
    again = serve(*ANY_PORT)
    assert acknowledged <= trio.run(consume, ready(again)["nameserver"])
    assert again.terminate() == 0


HANGING = """
import time
from gantrymq.kernel import hookimpl

class Hanging:
    name = "hanging"

    @hookimpl
    def stopping(self, broker):
        print("hanging", flush=True)
        time.sleep(60)
"""


@pytest.mark.slow
def test_a_second_signal_ends_a_hanging_broker(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hanging_plugin.py").write_text(HANGING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    child = serve(*ANY_PORT, "--enable", "hanging_plugin:Hanging")
    ready(child)
    child.process.send_signal(signal.SIGTERM)
    child.wait_line(lambda line: line == "hanging")

    def is_ended_by_another() -> bool:
        child.process.send_signal(signal.SIGTERM)  # at first it may be a repetition
        return child.process.poll() is not None

    wait_for(is_ended_by_another)
    assert child.wait(5) == 143
    assert errors(child) == ["gantrymq: forced to end"]


def test_a_ctrl_c_that_arrives_twice_is_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """``timeout`` and ``sudo`` pass the signal on to their child, which then gets it twice."""
    now = 100.0
    codes: list[int] = []
    monkeypatch.setattr(signals, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(signals, "os", SimpleNamespace(write=lambda *_: None, _exit=codes.append))
    stops: list[None] = []

    async def main() -> None:
        nonlocal now
        with signals.ending_by_signal(lambda: stops.append(None)):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            now = 100.49
            signal.raise_signal(signal.SIGTERM)
            assert codes == []
            now = 100.5
            signal.raise_signal(signal.SIGTERM)
            await trio.testing.wait_all_tasks_blocked()

    trio.run(main)
    assert (stops, codes) == ([None], [128 + signal.SIGTERM])


FAILING = """
from gantrymq.kernel import hookimpl

class Failing:
    name = "failing"

    @hookimpl
    def before_append(self, batch):
        raise KeyError("of the plugin")
"""

REFUSING = """from gantrymq.kernel import hookimpl
from gantrymq.remoting.codes import ResponseCode


class Refusing:
    name = "refusing"

    @hookimpl
    def before_append(self, batch):
        for row in batch.live:
            batch.refuse(row, ResponseCode.NO_PERMISSION, "not on Sundays")
"""


@pytest.mark.slow
def test_a_plugin_that_fails_ends_the_broker_with_one_line(
    serve: Serve, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "failing_plugin.py").write_text(FAILING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    child = serve(*ANY_PORT, "--enable", "failing_plugin:Failing")
    nameserver = ready(child)["nameserver"]
    lines = tmp_path / "lines"
    lines.write_text("one\n")
    outcome = cli("produce", "--topic", "t", "--nameserver", nameserver, "--file", str(lines))
    assert (outcome.code, "Traceback" in outcome.err) == (1, False)
    assert child.wait() == 1
    assert user_lines(child.log.read_text()) == [
        "gantrymq: a plugin failed, so the broker has ended: plugin 'failing': "
        f"before_append failed: KeyError('of the plugin') at {tmp_path}/failing_plugin.py:9; "
        "--disable failing starts the broker without it"
    ]
    again = serve(*ANY_PORT)
    ready(again)
    assert again.terminate() == 0


@pytest.mark.slow
@pytest.mark.parametrize("after", [0.02, 0.06, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.6])
def test_ctrl_c_at_any_moment_of_the_start_ends_without_a_traceback(serve: Serve, after: float) -> None:
    child = serve(*ANY_PORT)
    time.sleep(after)  # the moment is the test
    child.process.send_signal(signal.SIGINT)
    try:
        code = child.wait(10)
    except ChildFailed:
        # The interpreter drops what is raised in a callback of its own import locks, and the module ``site`` what is
        # raised by a .pth file: the user tries again. Otherwise the child is only slow.
        if any(dropped in child.log.read_text() for dropped in ("Exception ignored in", "Error processing line")):
            child.process.send_signal(signal.SIGINT)
        code = child.wait()
    text = child.log.read_text()
    # what the interpreter says before it has come into our main() is its own
    own = ("Fatal Python error", "Error processing line")
    if not any(words in text for words in own) and ("Traceback" not in text or "in main" in text):
        assert code in (0, 130, -signal.SIGINT), text
        assert "Traceback" not in text


def events(child: Child, name: str) -> list[dict[str, Any]]:
    """The child's log events of this name."""
    lines = [line for line in child.log.read_text().splitlines() if line.startswith("{")]
    return [event for event in map(json.loads, lines) if event["event"] == name]


def wait_events(child: Child, name: str, count: int = 1) -> list[dict[str, Any]]:
    deadline = time.monotonic() + 20
    while len(found := events(child, name)) < count:
        assert time.monotonic() < deadline, child.log.read_text()
        time.sleep(0.02)
    return found


def test_sighup_applies_changeable_settings_and_names_those_that_need_a_restart(
    serve: Serve, cli: Cli, tmp_path: Path
) -> None:
    config = tmp_path / "gantrymq.toml"
    config.write_text("[plugin.topics]\ndefault_queues = 3\n[limits]\nconnections = 100\n")
    child = serve(*ANY_PORT, "--config", str(config), "--log-level", "info")
    nameserver = ready(child)["nameserver"]
    line = tmp_path / "line"
    line.write_text("one\n")
    assert cli("produce", "--topic", "before", "--nameserver", nameserver, "--file", str(line)).code == 0

    config.write_text("[plugin.topics]\ndefault_queues = 2\n[limits]\nconnections = 200\n")
    child.process.send_signal(signal.SIGHUP)
    assert wait_events(child, "settings_reloaded")[0]["changed"] == ["plugin.topics.default_queues"]
    assert wait_events(child, "restart_needed")[0]["settings"] == ["limits.connections"]
    assert cli("produce", "--topic", "after", "--nameserver", nameserver, "--file", str(line)).code == 0

    def describe(topic: str) -> Any:
        return cli("topic", "describe", topic, "--json", "--nameserver", nameserver)

    wait_for(lambda: describe("after").code == 0)  # the broker registers a topic after the message that created it
    queues = {topic: len(json.loads(describe(topic).out)) for topic in ("before", "after")}
    assert queues == {"before": 3, "after": 2}

    config.write_text("[plugin.topics]\ndefault_queues = -1\n")
    child.process.send_signal(signal.SIGHUP)
    assert "plugin.topics" in wait_events(child, "reload_failed")[0]["reason"]
    config.write_text("[plugin.topics]\ndefault_queues = 2\n[limits]\nconnections = 100\n")
    child.process.send_signal(signal.SIGHUP)
    assert wait_events(child, "settings_reloaded", 2)[1]["changed"] == []
    assert child.terminate() == 0
    assert not (tmp_path / "store" / "abort").exists()


def test_sighup_while_a_broker_restarts_is_applied_when_it_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "gantrymq.toml"
    config.write_text("[plugin.topics]\ndefault_queues = 3\n")
    flags = ConfigFlags(
        config=str(config), data=str(tmp_path / "store"), listen="127.0.0.1:0", disable=["register"],
        sets=["store.commit_log_file_bytes=4 MiB", "plugin.http.listen="],
    )  # fmt: skip
    lives: list[Any] = []

    def load_before_the_change() -> Any:
        loaded = load(flags)
        if len(lives) == 1:
            config.write_text("[plugin.topics]\ndefault_queues = 2\n")
            os.kill(os.getpid(), signal.SIGHUP)
        return loaded

    def banner(broker: Any, _server: Any) -> list[str]:
        lives.append(broker)
        if len(lives) == 1:
            broker.restart()
        else:
            os.kill(os.getpid(), signal.SIGTERM)
        return []

    deadly: list[int] = []
    before = signal.signal(signal.SIGHUP, lambda number, _frame: deadly.append(number))
    for name in ("raise_descriptor_limit", "end_where_memory_ends", "settle_collector"):
        monkeypatch.setattr(servers, name, lambda: None)
    monkeypatch.setattr(servers, "banner", banner)
    try:
        with capture_logs() as logs:
            trio.run(servers.run_broker, load(flags), load_before_the_change, EndDeadline(60))
    finally:
        signal.signal(signal.SIGHUP, before)
    assert deadly == [], "without a handler of ours, it ends the process"
    assert len(lives) == 2
    assert [each["changed"] for each in logs if each["event"] == "settings_reloaded"] == [
        ["plugin.topics.default_queues"]
    ]


def test_a_broker_restarts_in_its_process_with_the_configuration_in_force_if_the_file_has_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "gantrymq.toml"
    config.write_text("[plugin.topics]\ndefault_queues = 3\n")
    loader = Loader(
        ConfigFlags(
            config=str(config), data=str(tmp_path / "store"), listen="127.0.0.1:0", disable=["register"],
            sets=["store.commit_log_file_bytes=4 MiB", "plugin.http.listen="],
        )
    )  # fmt: skip
    lives: list[Any] = []

    def banner(broker: Any, _server: Any) -> list[str]:
        lives.append({f"{row.section}.{row.key}": row.value for row in broker.config.explain()})
        if len(lives) == 1:
            config.write_text("[plugin.topics\n")
            overrides = tmp_path / "store" / "config" / "overrides.toml"
            overrides.parent.mkdir(exist_ok=True)
            overrides.write_text("[plugin.topics]\nmax_topics = 77\n")
            broker.restart()
        else:
            os.kill(os.getpid(), signal.SIGTERM)
        return []

    for name in ("raise_descriptor_limit", "end_where_memory_ends", "settle_collector"):
        monkeypatch.setattr(servers, name, lambda: None)
    monkeypatch.setattr(servers, "banner", banner)
    with capture_logs() as logs:
        trio.run(servers.run_broker, loader.load(), loader.load, EndDeadline(60), None, loader.load_known)
    assert [(life["plugin.topics.default_queues"], life["plugin.topics.max_topics"] == 77) for life in lives] == [
        (3, False), (3, True),
    ]  # fmt: skip
    (failed,) = [each for each in logs if each["event"] == "reload_failed"]
    assert (failed["log_level"], f"{config}: invalid TOML" in failed["reason"]) == ("error", True)


@pytest.mark.parametrize("kind", ["reader gone", "disk full", "closed", "none"])
def test_a_server_goes_on_if_a_line_cannot_be_printed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        stdout: TextIO | None = None
        if kind == "reader gone":
            reader, writer = os.pipe()
            os.close(reader)
            stdout = stack.enter_context(open(writer, "w"))
        elif kind != "none":
            stdout = stack.enter_context(open("/dev/full", "w"))
        if kind == "closed" and stdout is not None:
            stdout.close()
        monkeypatch.setattr(sys, "stdout", stdout)
        for line in ("banner", "ready", "banner again"):
            servers.print_line(line)
        if stdout is not None and not stdout.closed:
            stdout.flush()


@pytest.mark.parametrize(
    ("redirection", "code", "text"),
    [(">&-", 0, ""), (">/dev/full", 1, "gantrymq: No space left on device; the disk is full; free disk space")],
)
def test_a_command_without_a_usable_stdout_ends_without_a_traceback(redirection: str, code: int, text: str) -> None:
    command = ["sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, "-m", "gantrymq.cli", "version"]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr.partition(", or")[0].strip()) == (code, text)


ONCE = """
class Once:
    name = "once"
    made = 0

    def __init__(self):
        Once.made += 1
        if Once.made > 1:
            raise KeyError("registered already")
"""


def test_sighup_changes_nothing_if_a_plugin_cannot_be_made_twice(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "once.py").write_text(ONCE)
    child = serve(*ANY_PORT, "--enable", f"{tmp_path}/once.py:Once", "--log-level", "info")
    ready(child)
    child.process.send_signal(signal.SIGHUP)
    assert "registered already" in wait_events(child, "reload_failed")[0]["reason"]
    assert child.terminate() == 0


@pytest.mark.parametrize("failure", [TypeError("x"), KeyError("x")])
def test_a_reload_that_fails_unexpectedly_leaves_the_broker_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    flags = ConfigFlags(
        data=str(tmp_path / "store"), listen="127.0.0.1:0", disable=["register"],
        sets=["store.commit_log_file_bytes=4 MiB", "plugin.http.listen="],
    )  # fmt: skip

    def fail() -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        raise failure

    def banner(_broker: Any, _server: Any) -> list[str]:
        os.kill(os.getpid(), signal.SIGHUP)
        return []

    for name in ("raise_descriptor_limit", "end_where_memory_ends", "settle_collector"):
        monkeypatch.setattr(servers, name, lambda: None)
    monkeypatch.setattr(servers, "banner", banner)
    with capture_logs() as logs:
        trio.run(servers.run_broker, load(flags), fail, EndDeadline(60))
    assert [each["reason"] for each in logs if each["event"] == "reload_failed"] == [repr(failure)]


def test_sighup_does_not_end_a_nameserver(serve: Serve, cli: Cli) -> None:
    child = serve("--listen", "127.0.0.1:0", "--log-level", "info", command="nameserver")
    address = ready(child)["nameserver"]
    child.process.send_signal(signal.SIGHUP)
    wait_events(child, "settings_reloaded")
    assert cli("topic", "list", "--nameserver", address).code == 0
    assert child.terminate() == 0


def test_a_broker_registers_with_a_nameserver_in_another_process(serve: Serve, cli: Cli) -> None:
    nameserver = serve("--listen", "127.0.0.1:0", command="nameserver")
    address = ready(nameserver)["nameserver"]
    broker = serve("--listen", "127.0.0.1:0", "--nameserver", f"127.0.0.1:1;{address}", command="broker")
    assert ready(broker)["nameserver"] == f"127.0.0.1:1;{address}"
    deadline = time.monotonic() + 20
    while "broker-a" not in cli("topic", "list", "--nameserver", address).out:
        assert time.monotonic() < deadline, broker.log.read_text()
    assert broker.terminate() == 0
    assert "broker-a" not in cli("topic", "list", "--nameserver", address).out
    assert nameserver.terminate() == 0


def test_a_port_in_use_is_reported_with_its_address(serve: Serve, cli: Cli, tmp_path: Path) -> None:
    taken = ready(serve(*ANY_PORT))
    other = ["--data", str(tmp_path / "other")]
    broker = cli("serve", *other, "--listen", taken["broker"], "--nameserver-listen", "127.0.0.1:0")
    assert (broker.code, broker.out) == (1, "")
    assert taken["broker"] in broker.err
    assert "in use" in broker.err
    assert "--listen" in broker.err
    alone = cli("nameserver", "--listen", taken["nameserver"])
    assert (alone.code, alone.out) == (1, "")
    assert alone.err == (
        f"gantrymq: nameserver: cannot listen at {taken['nameserver']}: Address already in use; "
        "another process listens there; stop it, or choose another address\n"
    )


def user_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("gantrymq:")]


def test_a_store_locked_by_another_broker_is_refused(serve: Serve, cli: Cli, tmp_path: Path) -> None:
    holder = serve(*ANY_PORT)
    ready(holder)
    outcome = cli("serve", "--data", str(tmp_path / "store"), *ANY_PORT)
    assert (outcome.code, outcome.out) == (1, "")
    (line,) = user_lines(outcome.err)
    assert f"the store is in use: another broker (process {holder.process.pid}) holds" in line
    assert str(tmp_path / "store") in line


@pytest.mark.parametrize("place", ["/proc/gantrymq-store", "a-file"])
def test_a_data_path_that_cannot_hold_a_store_is_named(cli: Cli, tmp_path: Path, place: str) -> None:
    (tmp_path / "a-file").touch()
    path = tmp_path / place  # an absolute place stays what it is
    outcome = cli("serve", "--data", str(path), *ANY_PORT)
    assert (outcome.code, outcome.out) == (1, "")
    (line,) = user_lines(outcome.err)
    assert str(path) in line


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_folder_without_permission_is_reported(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(path: str, *_rest: object, **_more: object) -> int:
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr("gantrymq.kernel.env.system.os.open", refuse)
    outcome = cli("serve", "--data", str(tmp_path / "store"), *ANY_PORT)
    (line,) = user_lines(outcome.err)
    assert outcome.code == 1
    assert os.strerror(number) in line


def test_a_full_disk_is_reported_at_the_start(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("gantrymq.kernel.env.system.os.posix_fallocate", full)
    outcome = cli("serve", "--data", str(tmp_path / "store"), *ANY_PORT)
    (line,) = user_lines(outcome.err)
    assert (outcome.code, outcome.out) == (1, "")
    assert str(tmp_path / "store") in line


def test_a_disk_without_room_for_the_first_log_file_is_reported_at_the_start(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("gantrymq.kernel.env.system.shutil.disk_usage", lambda _: usage._replace(free=8 << 20))
    outcome = cli("serve", "--data", str(tmp_path / "store"), *ANY_PORT)
    (line,) = user_lines(outcome.err)
    assert (outcome.code, outcome.out) == (1, "")
    assert "has 8 MiB free, and the first file of the log needs 1024 MiB" in line


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        (["--nameserver-listen", "nowhere"], "nameserver: 'nowhere' is not an address: host:port is expected"),
        (["--nameserver-listen", "127.0.0.1:99999"], "the port must be a number from 0 to 65535"),
        (["--nameserver-listen", "192.0.2.1:9876"], "nameserver: cannot listen at 192.0.2.1:9876"),
        (["--nameserver-listen", "127.0.0.1:0", "--listen", "192.0.2.1:0"], "cannot listen on 192.0.2.1:0"),
    ],
)
def test_an_invalid_address_is_reported(cli: Cli, tmp_path: Path, arguments: list[str], reported: str) -> None:
    outcome = cli("serve", "--data", str(tmp_path / "store"), "--listen", "127.0.0.1:0", *arguments)
    assert (outcome.code, outcome.out) == (1, "")
    (line,) = user_lines(outcome.err)
    assert reported in line


@pytest.mark.parametrize("way", ["serve --plugin", "serve load", "broker --plugin", "broker load"])
def test_a_plugin_in_a_file_runs_without_a_package(
    serve: Serve, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    (tmp_path / "refusing.py").write_text(REFUSING)
    monkeypatch.chdir(tmp_path)
    command, _, form = way.partition(" ")
    if form == "load":
        (tmp_path / "broker.toml").write_text('[plugins]\nload = ["./refusing.py:Refusing"]\n')
        arguments = ["--config", "broker.toml"]
    else:
        arguments = ["--plugin", "./refusing.py:Refusing"]
    if command == "serve":
        nameserver = ready(serve(*ANY_PORT, *arguments))["nameserver"]
    else:
        nameserver = ready(serve("--listen", "127.0.0.1:0", command="nameserver"))["nameserver"]
        ready(serve("--listen", "127.0.0.1:0", "--nameserver", nameserver, *arguments, command="broker"))
    lines = tmp_path / "lines"
    lines.write_text("one\n")
    outcome = cli("produce", "--topic", "t", "--nameserver", nameserver, "--file", str(lines))
    assert outcome.code == 1
    assert "not on Sundays" in outcome.err


def test_an_unexpected_error_is_one_line(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object, **_more: object) -> None:
        raise RuntimeError("never thought of")

    monkeypatch.setattr("gantrymq.kernel.broker.Broker.run", fail)
    outcome = cli("serve", "--data", str(tmp_path / "store"), *ANY_PORT)
    (line,) = user_lines(outcome.err)
    assert outcome.code == 1
    assert line == (
        "gantrymq: a bug in GantryMQ, please report it (RuntimeError: never thought of); "
        "GANTRYMQ_TRACEBACK=1 shows where"
    )


def test_a_nameservers_switches_are_set_at_its_start(serve: Serve, cli: Cli) -> None:
    child = serve(
        "--listen", "127.0.0.1:0", "--set", "enableAllTopicList=false", "--set", "supportActingMaster=true",
        command="nameserver",
    )  # fmt: skip
    address = ready(child)["nameserver"]
    received = ask(address, Command(RequestCode.GET_NAMESRV_CONFIG)).body.decode()
    assert {"supportActingMaster=true", "enableTopicList=true"} <= set(received.split())
    outcome = cli("topic", "list", "--nameserver", address)
    assert (outcome.code, "disable" in outcome.err) == (1, True)


def test_an_unknown_nameserver_setting_is_named(cli: Cli) -> None:
    outcome = cli("nameserver", "--listen", "127.0.0.1:0", "--set", "supportActing=true")
    assert outcome.code == 1
    assert "nameserver: 'supportActing' cannot be changed; these can: orderMessageEnable, " in outcome.err


@pytest.mark.slow
def test_the_memory_of_a_batch_is_kept_for_the_next_one(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    def pages_of_a_batch() -> float:
        """The pages that the system gives the broker for a batch, once it has some."""
        child = serve(*ANY_PORT)
        counts: list[int] = []

        def minor_faults() -> int:
            return int(Path(f"/proc/{child.process.pid}/stat").read_text().rpartition(")")[2].split()[7])

        async def produce(nameserver: str) -> None:
            async with connect(nameserver) as client, client.producer() as producer:
                for _ in range(30):
                    await producer.send_batch([Message("T", bytes(1000)) for _ in range(900)])
                    counts.append(minor_faults())

        trio.run(produce, ready(child)["nameserver"])
        assert child.terminate() == 0
        return (counts[-1] - counts[9]) / 20

    kept = pages_of_a_batch()
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", str(128 * 1024))  # the default, but set by the user
    assert kept < 50 < 200 < pages_of_a_batch()


@pytest.mark.slow
def test_the_garbage_collector_freezes_objects_of_the_start() -> None:
    before = gc.get_threshold()

    class Cycle:
        def __init__(self) -> None:
            self.me = self

    try:
        for _ in range(2):
            settle_collector()
            assert gc.get_freeze_count() > 1000
            assert gc.get_threshold() == COLLECTOR_THRESHOLDS
        old = weakref.ref(Cycle())
        assert old() is not None
        settle_collector()
        assert old() is None, "what a life before this one left behind goes"
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


def test_a_broker_freezes_the_garbage_collector_before_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(servers, "settle_collector", lambda: said.append("settled"))
    monkeypatch.setattr(servers, "print_line", said.append)

    async def run() -> None:
        broker = make_broker(tmp_path)
        stop = trio.Event()
        stop.set()
        async with trio.open_nursery() as nursery:
            await servers._live(broker, None, nursery, stop, None, servers._Reloads(lambda: load(ConfigFlags())))

    trio.run(run)
    assert said[0] == "settled"
    assert any(line.startswith("ready") for line in said[1:])

"""The log of a server: levels by component that change while it runs, and a file that SIGUSR1 opens again."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from gantrymq.cli import logs
from gantrymq.remoting import log_levels
from gantrymq.remoting.log_levels import LogLevels
from gantrymq.remoting.logs import COMPONENTS
from gantrymq.remoting.recent_events import recent_events
from support.processes import gantrymq_child, wait_for

Cli = Callable[..., Any]
ROOT = Path(__file__).resolve().parents[2]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("text", "level", "components"),
    [
        ("", "info", {}),
        ("warning", "warning", {}),
        ("ha=debug", "info", {"ha": "debug"}),
        (" error , gantrymq.ha = debug,acme.tap=info", "error", {"ha": "debug", "acme.tap": "info"}),
    ],
)
def test_levels_are_a_level_and_those_of_components(text: str, level: str, components: dict[str, str]) -> None:
    assert LogLevels.parse(text) == LogLevels(level, components)
    assert LogLevels.parse(str(LogLevels.parse(text))) == LogLevels.parse(text)


@pytest.mark.parametrize("text", ["loud", "=debug", "ha=loud", "ha=debug=info", "INFO"])
def test_other_texts_are_no_levels(text: str) -> None:
    with pytest.raises(ValueError, match="log level"):
        LogLevels.parse(text)


@pytest.fixture
def configured(tmp_path: Path) -> Iterator[Path]:
    before = structlog.get_config() if structlog.is_configured() else None
    path = tmp_path / "own.log"
    logs.configure_logs("warning,ha=debug", str(path))
    yield path
    logs.configure_logs("info")
    structlog.reset_defaults()
    if before is not None:
        structlog.configure(**before)


def test_each_component_has_its_level_which_can_change(configured: Path) -> None:
    def log_each(event: str) -> None:
        for component in ("ha", "index"):
            for method in ("debug", "info", "warning"):
                getattr(structlog.get_logger(f"gantrymq.{component}"), method)(event)

    log_each("one")
    log_levels.change_to("index=info")
    log_each("two")
    log_levels.change_to("")
    log_each("three")
    found = [(line["event"], line["component"], line["level"]) for line in lines(configured)]
    at_first = [("ha", "debug"), ("ha", "info"), ("ha", "warning"), ("index", "warning")]
    assert found == [
        *(("one", *each) for each in at_first),
        *(("two", *each) for each in (("ha", "warning"), ("index", "info"), ("index", "warning"))),
        *(("three", *each) for each in at_first),
    ]


def test_a_log_that_cannot_be_written_loses_lines_and_nothing_else(
    configured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, write = structlog.get_logger("gantrymq.ha"), os.write

    room = [20, 0, 0]

    def fill(descriptor: int, data: bytes) -> int:
        if count := room.pop(0):
            return write(descriptor, data[:count])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, "write", fill)
        log.warning("torn")
        log.warning("lost")
    log.warning("written")
    torn, last = configured.read_text().splitlines()
    assert len(torn) == 20
    assert json.loads(last)["event"] == "written"


def test_a_file_that_cannot_be_opened_again_stays_in_use(configured: Path) -> None:
    moved = configured.with_name("moved.log")
    configured.rename(moved)
    configured.mkdir()
    logs.reopen_log_file()
    assert [line["event"] for line in lines(moved)] == ["log_file_not_reopened"]
    configured.rmdir()
    logs.reopen_log_file()
    structlog.get_logger("gantrymq.ha").info("new")
    assert [line["event"] for line in lines(configured)] == ["new"]


@pytest.mark.parametrize("audited", [False, True])
def test_levels_change_and_the_file_is_opened_again_while_a_broker_runs(
    cli: Cli, tmp_path: Path, audited: bool
) -> None:
    own, moved = tmp_path / "gantrymq.log", tmp_path / "gantrymq.log.1"
    options = ["--log-level", "warning,server=info", "--log-file", str(own)]
    addresses = ["--listen", "127.0.0.1:0", "--nameserver-listen", "127.0.0.1:0"]
    small = ["--set", "store.commit_log_file_bytes=4 MiB"]
    trail = tmp_path / "audit.log"
    audit = ["--enable", "audit", "--set", f"plugin.audit.file={trail}"] if audited else []
    arguments = ["serve", "--data", str(tmp_path / "store"), *addresses, *small, *options, *audit]
    with gantrymq_child(arguments, tmp_path / "stderr") as child:
        at = ("--nameserver", child.wait_line(lambda line: line.startswith("ready")).partition("nameserver=")[2])
        assert not [line for line in lines(own) if line["component"] != "server"]
        done = cli("config", "set", "plugin.admin.log_levels=admin=info", *at)
        assert done.code == 0, done.err
        shown = json.loads(cli("config", "show", "plugin.admin.log*", "--json", *at).out)
        assert [row["settings"] for row in shown] == [{"plugin.admin.log_levels": "admin=info"}]
        assert [line["event"] for line in lines(own) if line["component"] == "admin"] == ["settings_changed"]

        refused = cli("config", "set", "plugin.admin.log_levels=loud", *at)
        assert (refused.code, "'loud' is not a log level" in refused.err) == (1, True)
        assert refused.err.count("127.0.0.1:") == 1, "the address is named once"
        done = cli("config", "set", "logLevels=warning,nameserver=info,server=info", "--nameservers", *at)
        assert done.code == 0, done.err
        shown = cli("config", "show", "logLevels", "--nameservers", *at).out.split()
        assert shown[-1] == "warning,nameserver=info,server=info"

        own.rename(moved)
        if audited:
            trail.rename(tmp_path / "audit.log.1")
            trail.touch()
        child.process.send_signal(signal.SIGUSR1)
        wait_for(own.exists, 10.0)
        wait_for(lambda: "log_file_reopened" in own.read_text(), 10.0)
        done = cli("config", "set", "plugin.admin.log_levels=warning,admin=info", *at)
        assert done.code == 0, done.err
        assert "settings_changed" in own.read_text()
        if audited:
            wait_for(lambda: "UPDATE_BROKER_CONFIG" in trail.read_text(), 10.0)
        assert child.terminate() == 0
    assert (tmp_path / "stderr").read_text() == ""
    assert "log_levels" in (tmp_path / "store" / "config" / "overrides.toml").read_text()


def test_a_log_file_that_cannot_be_opened_is_wrong_usage(cli: Cli, tmp_path: Path) -> None:
    done = cli("serve", "--data", str(tmp_path / "store"), "--log-file", str(tmp_path / "none" / "log"))
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert f"--log-file: {tmp_path}/none/log: No such file or directory" in done.err


def test_the_page_and_the_library_list_every_component() -> None:
    page = (ROOT / "docs" / "howto" / "logs.md").read_text()
    listed = re.findall(r"`(\w+)`", page.partition("The components are")[2].partition("\n\n")[0])
    sources = [path for folder in ("gantrymq", "kernel", "plugins") for path in (ROOT / folder).rglob("*.py")]
    used = {name for path in sources for name in re.findall(r'get_logger\("gantrymq\.(\w+)"', path.read_text())}
    assert set(listed) == used == set(COMPONENTS)


def test_the_newest_events_are_kept_for_a_dashboard(configured: Path) -> None:
    structlog.get_logger("gantrymq.tester").warning("kept_event", peer="127.0.0.1:1", count=2, text="x" * 600)
    structlog.get_logger("gantrymq.tester").info("dropped_by_level")
    newest = recent_events()[0]
    assert (newest["event"], newest["level"], newest["component"]) == ("kept_event", "warning", "tester")
    assert (newest["fields"]["count"], len(newest["fields"]["text"])) == (2, 501)
    assert lines(configured)[-1]["text"] == "x" * 600

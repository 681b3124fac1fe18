"""``plugins list`` and ``show``, and plugins that cannot be loaded."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gantrymq._version import __version__
from gantrymq.cli.group import collect_plugin_commands
from gantrymq.message import Message
from gantrymq.plugins import DEFAULT_PLUGINS
from gantrymq.testing.fixtures import StartPluginBroker

Cli = Callable[..., Any]

MODULE = """
from gantrymq.kernel import hookimpl

class Late:
    name = "late"
    version = "7"

    @hookimpl(tryfirst=True)
    def before_append(self, batch):
        pass

class Picky:  # refuses each delayed message once when it is due
    name = "picky"
    sources = ("timer",)

    def __init__(self):
        self.seen = set()

    @hookimpl
    def before_append(self, batch):
        for row in batch.live:
            if batch.topics[row] == "orders" and batch.bodies[row] not in self.seen:
                self.seen.add(batch.bodies[row])
                batch.refuse(row, 1, "not yet")

class Broken:
    name = "broken"

    @hookimpl
    def add_commands(self, cli):
        raise RuntimeError("no commands today")

class Typo:
    name = "typo"

    @hookimpl
    def before_apend(self, batch):
        pass
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "plugins_of_a_test.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    return "plugins_of_a_test"


def listed(cli: Cli, *arguments: str) -> list[dict[str, Any]]:
    outcome = cli("plugins", "list", "--json", *arguments)
    assert outcome.code == 0, outcome.err
    found: list[dict[str, Any]] = json.loads(outcome.out)
    return found


def test_the_default_plugins_are_listed_in_call_order(cli: Cli) -> None:
    rows = listed(cli)
    assert [row["origin"] for row in rows] == list(DEFAULT_PLUGINS)
    assert [row["order"] for row in rows] == list(range(1, len(rows) + 1))
    flush = next(row for row in rows if row["name"] == "flush")
    assert (flush["slot"], flush["essential"]) == ("flush", False)
    assert flush["hooks"]["make_flush_strategy"] == 1


def test_the_listed_order_of_a_hook_equals_pluggys_call_order(cli: Cli, module: str) -> None:
    rows = listed(cli, "--enable", f"{module}:Late")
    late = rows[-1]
    assert (late["name"], late["version"], late["origin"]) == ("late", "7", f"{module}:Late")
    places = {row["name"]: row["hooks"]["before_append"] for row in rows if "before_append" in row["hooks"]}
    assert sorted(places.values()) == list(range(1, len(places) + 1))
    assert places["late"] < places["delay"], "tryfirst goes before the band in the middle"


def test_text_output_has_the_same_plugins_as_json(cli: Cli) -> None:
    outcome = cli("plugins", "list")
    assert outcome.out.splitlines()[0].split() == ["order", "name", "version", "slot", "origin", "hooks"]
    assert "topics *" in outcome.out
    assert "gantrymq.plugins.flush:FlushPlugin" in outcome.out


def test_one_plugin_is_shown_with_settings_origins_and_hook_order(cli: Cli, module: str) -> None:
    arguments = ["--set", "plugin.delay.levels=1s 2s", "--set", "plugins.skip_errors=delay"]
    outcome = cli("plugins", "show", "delay", "--json", "--enable", f"{module}:Late", *arguments)
    assert outcome.code == 0, outcome.err
    found = json.loads(outcome.out)
    assert (found["name"], found["slot"], found["essential"], found["api_version"]) == ("delay", None, False, 1)
    assert (found["on_error"], found["section"]) == ("skip", "plugin.delay")
    assert found["purpose"]
    assert found["files"].startswith("config/delayOffset.json, every broker.persist_interval")
    levels = next(row for row in found["config"] if row["key"] == "levels")
    assert (levels["value"], levels["origin"], levels["source"]) == ("1s 2s", "flag", "--set")
    assert {row["origin"] for row in found["config"] if row["key"] != "levels"} <= {"default"}
    rows = listed(cli, "--enable", f"{module}:Late")
    count = sum("before_append" in row["hooks"] for row in rows)
    place = next(row for row in rows if row["name"] == "delay")["hooks"]["before_append"]
    assert found["hooks"]["before_append"] == [place, count]


def test_a_plugin_with_few_details_is_shown_as_text(cli: Cli, module: str) -> None:
    outcome = cli("plugins", "show", "flush")
    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    assert lines[0].startswith("flush: ")
    assert {"slot        flush", "essential   no", "api version 1", "files       none"} <= set(lines)
    assert "[plugin.flush]" in lines
    assert any(line.split()[:3] == ["mode", '"sync"', "default"] for line in lines)
    assert any(line.split() == ["make_flush_strategy", "1", "1"] for line in lines)
    outcome = cli("plugins", "show", "late", "--enable", f"{module}:Late")
    assert outcome.out.startswith("late: says nothing of its purpose\n")
    assert "files       -" in outcome.out.splitlines()


def test_a_plugin_that_is_not_loaded_is_an_error(cli: Cli) -> None:
    outcome = cli("plugins", "show", "flsh")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err == (
        "gantrymq: no plugin 'flsh' is loaded; did you mean 'flush'?; `gantrymq plugins list` shows all\n"
    )


def test_a_disabled_plugin_is_not_listed(cli: Cli) -> None:
    assert "filter" not in {row["name"] for row in listed(cli, "--disable", "filter")}


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        (["--enable", "gantrymq.nothing:X"], "plugin 'gantrymq.nothing:X': No module named 'gantrymq.nothing'"),
        (["--enable", "no-such-entry"], "no plugin 'no-such-entry' is installed"),
        (
            ["--enable", "plugins_of_a_test:Nobody"],
            "plugin 'plugins_of_a_test:Nobody': module plugins_of_a_test has no",
        ),
        (["--enable", "plugins_of_a_test:Typo"], "there is no hook 'before_apend'; did you mean 'before_append'?"),
        (["--disable", "topics"], "cannot disable 'topics': the broker does not work without it"),
        (["--disable", "filtr"], "cannot disable 'filtr': no such plugin; did you mean 'filter'?"),
    ],
)
def test_a_plugin_that_cannot_be_loaded_is_one_line(cli: Cli, module: str, arguments: list[str], reported: str) -> None:
    outcome = cli("plugins", "list", *arguments)
    assert (outcome.code, outcome.out) == (1, "")
    assert reported in outcome.err
    assert outcome.err.count("\n") == 1


def test_commands_of_plugins_are_added_and_a_broken_plugin_loses_only_its_own(
    cli: Cli, module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GANTRYMQ_PLUGINS__ENABLE", f"{module}:Broken")
    assert "export" in collect_plugin_commands()
    assert capsys.readouterr().err == (
        f"gantrymq: the commands of plugin '{module}:Broken' are missing: no commands today\n"
    )


def test_the_help_lists_ours_and_the_plugins_commands(cli: Cli) -> None:
    outcome = cli("--help")
    assert outcome.code == 0
    for name in ("serve", "broker", "nameserver", "topic", "produce", "consume", "plugins", "check-config", "export"):
        assert f" {name} " in outcome.out


def test_an_unknown_command_gets_a_suggestion(cli: Cli) -> None:
    outcome = cli("serv")
    assert outcome.code == 2
    assert "serve" in outcome.err
    assert "Traceback" not in outcome.err


def test_plugin_activity_of_a_running_broker_is_shown(cli: Cli, module: str, plugin_broker: StartPluginBroker) -> None:
    running = plugin_broker(f"{module}:Late")
    cli("plugins", "list")  # from here on what the broker logs is not in the output
    outcome = cli("plugins", "show", "offsets", "--broker", running.address)
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith("offsets: ")
    live = outcome.out.partition(f"\noffsets {__version__} at {running.address} (")[2].splitlines()
    assert live[1] == "background tasks  -"
    assert live[2].startswith("request codes     14 QUERY_CONSUMER_OFFSET, 15 UPDATE_CONSUMER_OFFSET")
    assert live[-1] == "errors            none since the start"
    found = json.loads(cli("plugins", "show", "offsets", "--broker", running.address, "--json").out)
    assert (found["section"], found["live"]["request_codes"][0]) == ("plugin.offsets", 14)
    outcome = cli("plugins", "show", "late", "--broker", running.address)
    assert outcome.out.startswith(f"late 7 at {running.address} ({module}:Late)\n"), (
        "this configuration has no such one"
    )


def test_refused_messages_that_the_broker_keeps_are_shown_and_delivered_later(
    cli: Cli, module: str, plugin_broker: StartPluginBroker
) -> None:
    running = plugin_broker(f"{module}:Picky")
    cli("plugins", "list")  # from here on what the broker logs is not in the output
    with running.client.producer() as producer:
        producer.send(Message("orders", b"kept", delay=0.05))
    with running.client.consumer("orders", "readers", start="first") as messages:
        assert next(messages).body == b"kept"
    outcome = cli("plugins", "show", "picky", "--broker", running.address)
    assert "refused           1 times a message that the broker keeps" in outcome.out.splitlines()


def test_hook_times_of_a_running_broker_are_traced(cli: Cli, module: str, plugin_broker: StartPluginBroker) -> None:
    running = plugin_broker(f"{module}:Late")
    cli("plugins", "list")  # from here on what the broker logs is not in the output
    stop = threading.Event()

    def send() -> None:
        with running.client.producer() as producer:
            while not stop.wait(0.01):
                producer.send("orders", b"x")

    thread = threading.Thread(target=send)
    thread.start()
    try:
        arguments = ("plugins", "trace", "--broker", running.address, "--seconds", "1", "--interval", "0.5")
        outcome = cli(*arguments, "--json")
        lines = [json.loads(line) for line in outcome.out.splitlines()]
        table = cli(*arguments)
    finally:
        stop.set()
        thread.join()
    assert (outcome.code, len(lines)) == (0, 2)
    found = {(row["plugin"], row["hook"]): row for line in lines for row in line["hooks"]}
    assert found["late", "before_append"]["calls_per_second"] > 0
    assert all(0 <= row["busy_percent"] <= 100 for row in found.values())
    assert table.code == 0
    assert table.out.splitlines()[1].split("  ")[0] == "plugin"
    assert "before_append" in table.out


@pytest.mark.parametrize(
    ("arguments", "code", "reported"),
    [
        (["show", "flush", "--broker", "nonsense"], 2, "nonsense"),
        (["show", "flush", "--broker", "127.0.0.1:1"], 1, "nothing listens there"),
        (["trace", "--broker", "127.0.0.1:1"], 1, "nothing listens there"),
        (["trace", "--interval", "61"], 2, "at most 60 seconds"),
    ],
)
def test_an_unreachable_broker_is_one_error(cli: Cli, arguments: list[str], code: int, reported: str) -> None:
    outcome = cli("plugins", *arguments)
    assert (outcome.code, outcome.out) == (code, "")
    assert reported in outcome.err
    assert "Traceback" not in outcome.err

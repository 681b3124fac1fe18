"""Contexts: nameservers, keys and TLS settings of clusters under names."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gantrymq.cli import group
from support.certificates import CA

Cli = Callable[..., Any]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the user's configuration, and no variable that names a cluster."""
    for variable in ("GANTRYMQ_NAMESERVER", "NAMESRV_ADDR", "GANTRYMQ_CONTEXT"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("GANTRYMQ_CONFIG_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


NOWHERE = "127.0.0.1:1"


def test_a_command_uses_the_current_context(cli: Cli, nameserver: str) -> None:
    assert cli("context", "add", "prod", "--nameserver", nameserver, "--use").code == 0
    assert cli("topic", "create", "orders").code == 0
    assert "orders" in cli("topic", "list").out


@pytest.mark.parametrize(
    ("variables", "options", "reaches"),
    [
        ({}, (), True),
        ({}, ("--context", "broken"), False),
        ({}, ("--nameserver", NOWHERE), False),
        ({"GANTRYMQ_CONTEXT": "broken"}, (), False),
        ({"GANTRYMQ_CONTEXT": "broken"}, ("--context", "prod"), True),
        ({"GANTRYMQ_NAMESERVER": NOWHERE}, (), False),
        ({"NAMESRV_ADDR": NOWHERE}, (), False),
        ({"GANTRYMQ_NAMESERVER": NOWHERE}, ("--context", "prod"), True),
        ({"GANTRYMQ_NAMESERVER": NOWHERE, "GANTRYMQ_CONTEXT": "prod"}, (), True),
    ],
)
def test_the_setting_nearest_to_the_command_takes_precedence(
    cli: Cli,
    nameserver: str,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    options: tuple[str, ...],
    reaches: bool,
) -> None:
    cli("context", "add", "prod", "--nameserver", nameserver, "--use")
    cli("context", "add", "broken", "--nameserver", NOWHERE)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    assert (cli("topic", "list", *options).code == 0) is reaches


def test_a_context_keeps_characters_of_all_planes(cli: Cli, nameserver: str, tmp_path: Path) -> None:
    secret = tmp_path / '🗝"\\\x7f'
    secret.write_text("secret")
    keys = ("--access-key", "me", "--secret-key-file", str(secret))
    assert cli("context", "add", "prod", "--nameserver", nameserver, *keys).code == 0
    assert cli("topic", "list", "--context", "prod").code == 0


def test_a_context_with_a_path_that_is_not_utf8_is_refused(cli: Cli, home: Path, tmp_path: Path) -> None:
    secret = Path(os.fsdecode(os.fsencode(tmp_path) + b"/key\xff"))
    secret.write_text("secret")
    keys = ("--access-key", "me", "--secret-key-file", str(secret))
    outcome = cli("context", "add", "prod", "--nameserver", NOWHERE, *keys)
    assert outcome.code == 2
    assert "context 'prod' cannot be saved" in " ".join(outcome.err.split())
    assert not (home / "contexts").exists()


def test_context_and_nameserver_exclude_each_other(cli: Cli) -> None:
    cli("context", "add", "prod", "--nameserver", NOWHERE)
    outcome = cli("topic", "list", "--context", "prod", "--nameserver", NOWHERE)
    assert outcome.code == 2
    assert "exclude each other" in outcome.err


def test_a_nameserver_on_the_command_line_does_without_a_current_context_that_is_gone(
    cli: Cli, nameserver: str
) -> None:
    cli("context", "add", "prod", "--nameserver", NOWHERE, "--use")
    (Path(os.environ["GANTRYMQ_CONFIG_HOME"]) / "contexts" / "prod.toml").unlink()
    outcome = cli("topic", "list")
    assert outcome.code == 2
    assert "no context 'prod'" in outcome.err
    assert cli("topic", "list", "--nameserver", nameserver).code == 0
    assert cli("context", "use", "--none").code == 0


def test_contexts_are_listed_changed_and_removed(cli: Cli, home: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("a-secret\n")
    keys = ("--access-key", "me", "--secret-key-file", str(tmp_path / "secret"))
    assert cli("context", "add", "dev", "--nameserver", "a:9876").code == 0
    assert cli("context", "add", "prod", "--nameserver", "b:9876;c:9876", *keys, "--tls-ca", str(CA)).code == 0
    assert cli("context", "use", "prod").code == 0
    assert [line.split() for line in cli("context", "list").out.splitlines()] == [
        ["dev", "a:9876"],
        ["*", "prod", "b:9876;c:9876", "as", "me", "TLS"],
    ]
    rows = json.loads(cli("context", "list", "--json").out)
    assert [(row["name"], row["current"], row["tls"]) for row in rows] == [("dev", False, False), ("prod", True, True)]
    path = home / "contexts" / "prod.toml"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "a-secret" not in path.read_text(), "only the place of the secret is kept"
    assert json.loads(cli("context", "add", "dev", "--nameserver", "d:9876", "--json").out) == {
        "name": "dev", "file": str(home / "contexts" / "dev.toml"), "current": False,
    }  # fmt: skip
    assert "d:9876" in cli("context", "list").out
    assert json.loads(cli("context", "use", "dev", "--json").out) == {"name": "dev", "current": True}
    assert json.loads(cli("context", "use", "--none", "--json").out) == {"name": None, "current": False}
    assert json.loads(cli("context", "remove", "prod", "--json").out) == {"name": "prod", "removed": True}
    assert [line.split() for line in cli("context", "list").out.splitlines()] == [["dev", "d:9876"]]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("add", "../x", "--nameserver", "a:9876"), "cannot name a context"),
        (("add", "x", "--nameserver", "a:99999"), "--nameserver"),
        (("add", "x", "--nameserver", "a:9876", "--access-key", "me"), "must be given together"),
        (("use", "gone"), "no context 'gone'; known: none"),
        (("use",), "give the name of a context, or --none"),
        (("remove", "gone"), "no context 'gone'"),
    ],
)
def test_wrong_usage_has_a_reason(cli: Cli, words: tuple[str, ...], reason: str) -> None:
    outcome = cli("context", *words)
    assert outcome.code == 2
    assert reason in " ".join(outcome.err.split())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nameserver = ", "cannot be read"),
        ("access_key = 'me'", "'nameserver' is missing"),
        ("nameserver = 'a:9876'\ncolor = 'red'", "is not a setting of a context"),
        ("nameserver = 'a:9876'\ntls = 'yes'", "is not a setting of a context"),
        ("nameserver = 'a:9876'\naccess_key = 'me'\nsecret_key_file = '/nowhere'", "No such file"),
    ],
)
def test_a_damaged_context_is_a_clear_error(cli: Cli, home: Path, text: str, reason: str) -> None:
    (home / "contexts").mkdir(parents=True)
    (home / "contexts" / "x.toml").write_text(text)
    outcome = cli("topic", "list", "--context", "x")
    assert outcome.code == 2
    assert reason in " ".join(outcome.err.split())


COMMANDS = """
import click

from gantrymq.cli.connecting import (
    connect_settings, context_option, nameserver_option, optional_nameserver_option, plain_settings, with_client
)
from gantrymq.kernel import hookimpl


@click.command("queue-count")
@click.argument("topic")
@nameserver_option
def queue_count(topic, nameserver):
    click.echo(len(with_client(nameserver, lambda client: client.admin.queues(topic))))


@click.command("who")
@context_option
def who():
    click.echo(f"{connect_settings()['access_key']} {plain_settings()['access_key']}")


@click.command("where")
@optional_nameserver_option
def where(nameserver):
    click.echo(f"{nameserver}")


class Counting:
    name = "counting"

    @hookimpl
    def add_commands(self, cli):
        for command in (queue_count, who, where):
            cli.add_command(command)
"""


def test_commands_of_a_plugin_use_contexts(
    cli: Cli, nameserver: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "counting.py").write_text(COMMANDS)
    (tmp_path / "secret").write_text("a-secret\n")
    monkeypatch.setenv("GANTRYMQ_PLUGINS__LOAD", f"{tmp_path / 'counting.py'}:Counting")
    monkeypatch.setattr(group.cli, "_plugin_commands", group.collect_plugin_commands(), raising=False)
    keys = ("--access-key", "me", "--secret-key-file", str(tmp_path / "secret"))
    cli("context", "add", "prod", "--nameserver", nameserver, "--use")
    cli("context", "add", "signed", "--nameserver", "a:9876", *keys)
    cli("topic", "create", "counted", "--queues", "3")
    assert cli("queue-count", "counted").out == "3\n"
    assert cli("queue-count", "counted", "--nameserver", NOWHERE).code == 1
    assert cli("who", "--context", "signed").out == "me me\n"
    assert cli("where").out == "None\n"
    assert cli("where", "--context", "signed").out == "a:9876\n"
    assert cli("where", "--nameserver", NOWHERE).out == f"{NOWHERE}\n"
    assert cli("where", "--nameserver", NOWHERE, "--context", "signed").code == 2

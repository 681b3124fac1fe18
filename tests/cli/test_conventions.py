"""Every command follows docs/reference/conventions.md."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
import rich.progress

from gantrymq.cli import progress
from gantrymq.cli.group import cli as root
from gantrymq.cli.options import Duration
from gantrymq.plugins.spark import command as export_command
from gantrymq.sync import Client
from gantrymq.testing.harness import cluster_in_thread
from support.processes import wait_for
from support.stores import make_store

SERVERS = {"serve", "broker", "nameserver", "worker", "dashboard", "cluster watch"}
WRITERS = {"completion", "definitions export", "plugins new"}
FILTERS = {"group reset-offsets", "acl explain", "acl grant", "export"}
TIMES = {"timeout", "response_timeout", "interval", "lease", "seconds", "every", "warm_up", "after", "within"}
NO_SERVER = "127.0.0.1:1"


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        context = click.Context(command, info_name="gantrymq")
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from leaves(below, (*path, name))
        if not command.invoke_without_command:
            return
    yield " ".join(path), command


COMMANDS = dict(leaves(root))


def options(command: click.Command) -> dict[str, click.Parameter]:
    return {name: each for each in command.params for name in each.opts}


def test_every_command_but_servers_and_writers_has_json() -> None:
    lacking = {name for name, command in COMMANDS.items() if "--json" not in options(command)}
    assert lacking == SERVERS | WRITERS


def test_a_topic_can_be_given_by_position_and_as_an_option() -> None:
    for name, command in COMMANDS.items():
        positions = [
            each.make_metavar(click.Context(command)) for each in command.params if each.param_type_name == "argument"
        ]
        takes_topic = any("TOPIC" in text.upper() for text in positions)
        if name not in FILTERS:
            assert ("--topic" in options(command)) == takes_topic, name


def test_every_time_is_a_duration() -> None:
    found = 0
    for name, command in COMMANDS.items():
        for each in command.params:
            if each.name in TIMES or each.metavar in ("SECONDS", "DURATION"):
                assert isinstance(each.type, Duration) or name == "export", (name, each.name)
                assert each.metavar == "DURATION", (name, each.name)
                found += 1
            assert not (each.type.name.startswith("float") and each.name != "rate"), (name, each.name)
    assert found > 20


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("3", 3.0), ("0.5", 0.5), (".5", 0.5), ("5.", 5.0), (".5m", 30.0), ("500ms", 0.5), ("3s", 3.0), ("2m", 120.0)],
)
def test_a_duration_has_a_unit_or_is_in_seconds(text: str, seconds: float) -> None:
    assert Duration().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "soon", "3 weeks", "-1s", "nan", "inf", ".", ".s", "9" * 400, "50ms"])
def test_a_duration_that_is_unreadable_or_too_short_is_wrong_usage(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"duration|too short"):
        Duration().convert(text, None, None)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_wrong_usage_is_one_line_with_the_prefix_and_code_2(cli: Callable[..., Any], name: str) -> None:
    done = cli(*name.split(), "--no-such-option")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("gantrymq: no such option")
    assert done.err.endswith(f"see gantrymq {name} --help\n")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("topic", "list"), ("topic", "describe", "T"), ("topic", "create", "T"), ("topic", "delete", "T", "--yes"),
        ("topic", "peek", "--topic", "T"), ("group", "list"), ("group", "describe", "g"), ("dlq", "list"),
        ("query", "T", "--key", "k"), ("delayed", "list"), ("cluster", "status"), ("consume", "T", "--group", "g"),
        ("message", "why", "ID", "T", "--group", "g"), ("message", "get", "ID", "T"), ("message", "trace", "ID"),
        ("client", "list"), ("client", "kick", "ID"), ("top", "--once"),
        ("definitions", "export"),
    ],
)  # fmt: skip
def test_a_cluster_that_cannot_be_reached_is_one_line_with_the_prefix_and_code_1(
    cli: Callable[..., Any], arguments: tuple[str, ...]
) -> None:
    done = cli(*arguments, "--nameserver", NO_SERVER)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(f"gantrymq: {NO_SERVER}: no nameserver can be reached")


@pytest.mark.parametrize(
    "arguments",
    [
        ("topic", "list"), ("topic", "describe", "T"), ("produce", "T", "--file", __file__), ("group", "list"),
        ("consume", "T", "--group", "g"), ("cluster", "status"), ("dlq", "list"), ("config", "show"),
    ],
)  # fmt: skip
def test_a_brokers_address_given_as_nameserver_is_one_line_that_says_so(
    cli: Callable[..., Any], gantry_broker: Any, arguments: tuple[str, ...]
) -> None:
    done = cli(*arguments, "--nameserver", gantry_broker.address)
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        f"gantrymq: {gantry_broker.address} is not a nameserver (is it a broker?): connect to the nameserver's "
        "address, whose port is 9876 unless it was configured\n"
    )


LONG = {"produce", "dlq replay", "definitions import", "store check", "store backup", "store restore"}
"""Commands whose work grows with the messages or topics, and that print no line for each. ``bench`` has a test of its
own, because it starts processes, and exports have a bar of their own."""


def test_long_work_has_a_progress_bar(
    cli: Callable[..., Any], gantry_broker: Any, gantry_client: Client, gantry_topic: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A command draws the bar in a terminal after a second; this test makes both so for all commands."""
    bars: list[tuple[str, int]] = []

    def leave(meter: progress.Meter, *_error: object) -> None:
        assert meter._shown is not None, "the bar was not drawn"
        meter._shown[0].stop()
        bars.append((meter.label, meter.done or meter.total or 0))

    monkeypatch.setattr(progress, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=SimpleNamespace(isatty=lambda: True)))
    monkeypatch.setattr(progress.Meter, "__exit__", leave)

    group, at = f"{gantry_topic}-g", ("--nameserver", gantry_broker.nameserver)
    (tmp_path / "lines").write_text("one\ntwo\n")
    settings = {"readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "topicSysFlag": 0, "order": False}
    topic = {"name": f"{gantry_topic}-new", "settings": settings}
    (tmp_path / "definitions").write_text(json.dumps({"version": 1, "topics": [topic], "groups": []}))
    store = str(make_store(tmp_path / "store", {"store.commit_log_file_bytes": "64 KiB"}, 1, 3, 10))
    backups = str(tmp_path / "backups")
    shown = {}
    for name, arguments in (
        ("produce", (gantry_topic, "--file", str(tmp_path / "lines"), *at)),
        ("dlq replay", (group, *at)),
        ("definitions import", (str(tmp_path / "definitions"), *at)),
        ("store check", ("--data", store)),
        ("store backup", (backups, "--data", store)),
        ("store restore", (backups, "--data", str(tmp_path / "restored"))),
    ):
        if name == "dlq replay":
            with gantry_client.consumer(gantry_topic, group, start="first", max_retries=0) as messages:
                next(messages).retry()
            wait_for(lambda: '"messages": 1' in cli("dlq", "list", group, "--json", *at).out)
        bars.clear()
        done = cli(*name.split(), *arguments)
        assert done.code == 0, (name, done.err)
        ((label, count),) = bars
        assert count > 0, name
        shown[name] = label
    assert set(shown) == LONG <= set(COMMANDS)


def test_an_export_and_its_compaction_have_a_progress_bar(
    cli: Callable[..., Any], gantry_broker: Any, gantry_client: Client, gantry_topic: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    drawn: list[str] = []
    update = rich.progress.Progress.update

    def spy(bar: Any, task: Any, **fields: Any) -> None:
        drawn.append(f"{fields['description']} {fields['figures']}")
        update(bar, task, **fields)

    monkeypatch.setattr(rich.progress.Progress, "update", spy)
    monkeypatch.setattr(export_command, "sys", SimpleNamespace(stderr=SimpleNamespace(isatty=lambda: True)))
    with gantry_client.producer() as producer:
        producer.send(gantry_topic, b"one")
    folder = str(tmp_path / "files")
    at = ("--nameserver", gantry_broker.nameserver)
    done = cli("export", "--topic", gantry_topic, "--to", folder, "--engine", "local", *at)
    assert done.code == 0, done.err
    assert drawn[-1].startswith("exporting 1/1 messages, ")
    done = cli("export", "compact", folder)
    assert done.code == 0, done.err
    assert drawn[-1] == "compacting 0/0 files"


@pytest.mark.parametrize("text", ["soon", "10ms", "-1"])
def test_the_interval_of_an_export_is_a_duration(cli: Callable[..., Any], text: str) -> None:
    done = cli("export", "--follow", "--every", text)
    assert (done.code, done.err.startswith("gantrymq: invalid value for '--every'")) == (2, True), done.err


def test_two_different_topics_and_none_are_wrong_usage(cli: Callable[..., Any]) -> None:
    done = cli("topic", "describe", "A", "--topic", "B")
    assert (done.code, done.err.startswith("gantrymq: two topics are given")) == (2, True)
    done = cli("topic", "describe")
    assert (done.code, done.err.startswith("gantrymq: a topic is missing")) == (2, True)


def keys_of(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for each in value:
            yield from keys_of(each)
    elif isinstance(value, dict):
        for name, each in value.items():
            yield name
            if name != "properties":  # RocketMQ's
                yield from keys_of(each)


@pytest.mark.parametrize("arguments", [("context", "list"), ("plugins", "list"), ("doctor",), ("version",)])
def test_json_of_commands_without_a_cluster_has_objects(cli: Callable[..., Any], arguments: tuple[str, ...]) -> None:
    document = json.loads(cli(*arguments, "--json").out)
    rows = document if isinstance(document, list) else [document]
    assert rows == [row for row in rows if isinstance(row, dict)]
    assert [key for key in keys_of(document) if key != key.lower() or "-" in key] == []


def test_json_is_one_document_with_snake_case_keys(
    cli: Callable[..., Any], gantry_broker: Any, gantry_client: Client, gantry_topic: str
) -> None:
    topic, at = gantry_topic, ("--nameserver", gantry_broker.nameserver, "--json")
    with gantry_client.producer() as producer:
        for body in (b"one", b"two"):
            producer.send(topic, body)
    for arguments in (
        ("topic", "list"), ("topic", "describe", topic), ("group", "list"), ("cluster", "status"),
        ("client", "list"), ("dlq", "list"), ("delayed", "list"),
        ("topic", "create", topic, "--update", "--queues", "8"),
        ("message", "why", "0" * 32, topic, "--group", "nobody"),
    ):  # fmt: skip
        done = cli(*arguments, *at)
        assert done.code == 0, done.err
        document = json.loads(done.out)
        rows = document if isinstance(document, list) else [document]
        assert rows == [row for row in rows if isinstance(row, dict)], arguments
        assert [key for key in keys_of(document) if key != key.lower() or "-" in key] == [], arguments
    lines = cli("topic", "peek", topic, *at).out.splitlines()
    assert sorted(json.loads(line)["body"] for line in lines) == ["one", "two"]
    assert [key for line in lines for key in keys_of(json.loads(line)) if key != key.lower()] == []


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("", "no answer on stdin, so nothing was changed; use --yes to skip the question"),
        ("n\n", "nothing was changed"),
    ],
)
def test_a_deletion_that_is_not_confirmed_is_a_failure(
    cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, says: str
) -> None:
    with cluster_in_thread(tmp_path) as cluster:
        at = ("--nameserver", cluster.nameserver)
        assert cli("topic", "create", "orders", *at).code == 0
        monkeypatch.setattr("sys.stdin", io.StringIO(answer))
        outcome = cli("topic", "delete", "orders", *at)
        assert outcome.code == 1
        assert outcome.err.endswith(f"gantrymq: {says}\n")
        assert cli("topic", "describe", "orders", *at).code == 0

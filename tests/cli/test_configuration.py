"""``check-config`` and ``print-config``, and what a wrong configuration prints."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "gantrymq.toml"
    path.write_text('[broker]\nname = "from-file"\nid = 3\n[plugin.flush]\nmode = "async"\n')
    return path


def test_print_config_shows_each_value_with_its_origin(cli: Cli, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GANTRYMQ_BROKER__CLUSTER", "from-env")
    outcome = cli("print-config", "--config", str(file), "--data", "/srv/store", "--set", "broker.id=4", "--json")
    rows = {
        (row["section"], row["key"]): (row["value"], row["origin"], row["source"]) for row in json.loads(outcome.out)
    }
    assert outcome.code == 0
    assert rows["broker", "name"] == ("from-file", "file", str(file))
    assert rows["broker", "cluster"] == ("from-env", "environment", "GANTRYMQ_BROKER__CLUSTER")
    assert rows["broker", "id"] == (4, "flag", "--set")
    assert rows["broker", "data"] == ("/srv/store", "flag", "--set")
    assert rows["broker", "persist_interval"] == ("5s", "default", "")
    assert rows["plugin.flush", "mode"] == ("async", "file", str(file))


def test_print_config_prints_a_valid_configuration_file(cli: Cli, file: Path, tmp_path: Path) -> None:
    first = cli("print-config", "--config", str(file))
    assert f"# file {file}" in first.out
    again = tmp_path / "again.toml"
    again.write_text(first.out)
    values = [json.loads(cli("print-config", "--config", str(path), "--json").out) for path in (file, again)]
    assert [row["value"] for row in values[0]] == [row["value"] for row in values[1]]
    assert {row["origin"] for row in values[1]} == {"file"}


def test_print_config_quotes_the_keys_that_toml_cannot_have_bare(cli: Cli, tmp_path: Path) -> None:
    path, again = tmp_path / "gantrymq.toml", tmp_path / "again.toml"
    quotas = {"orders.example.org": "requests=5", "50%": "requests=6", "a b": "requests=7", "plain": "requests=8"}
    path.write_text(
        '[plugins]\nenable = ["quota"]\n[plugin.quota.identities]\n'
        + "".join(f"{json.dumps(name)} = {json.dumps(text)}\n" for name, text in quotas.items())
    )
    again.write_text(cli("print-config", "--config", str(path)).out)
    rows = json.loads(cli("print-config", "--config", str(again), "--json").out)
    assert [row["value"] for row in rows if row["key"] == "identities"] == [quotas]


def test_the_output_of_print_config_has_no_text_that_a_broker_would_take_for_a_secret(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "exporting.toml"
    path.write_text('[plugins]\nenable = ["exporter"]\n[plugin.exporter]\nto = "s3://b/p"\nsecret_key = "hush-hush"\n')
    shown = cli("print-config", "--config", str(path))
    assert (shown.code, "hush-hush" in shown.out, "(hidden)" in shown.out) == (0, False, False)
    assert [line.split("  ")[0] for line in shown.out.splitlines() if "secret_key" in line] == [
        "# secret_key is set, not shown"
    ]
    again = tmp_path / "again.toml"
    again.write_text(shown.out)
    rows = json.loads(cli("print-config", "--config", str(again), "--json").out)
    assert [row["value"] for row in rows if row["key"] == "secret_key"] == [""]

    path.write_text(path.read_text().replace("hush-hush", "(hidden)"))
    refused = cli("check-config", "--config", str(path))
    assert refused.code == 2
    assert refused.err == (
        f"gantrymq: plugin.exporter.secret_key = (hidden) (file {path}): this is what commands show instead of a"
        " secret; set the secret itself, or remove the key\n"
    )


def test_check_config_prints_nothing_for_a_valid_file(cli: Cli, file: Path) -> None:
    outcome = cli("check-config", "--config", str(file))
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("ok: ")


def test_check_config_prints_each_error_on_its_own_line(cli: Cli, file: Path) -> None:
    file.write_text('[broker]\nid = -1\n[flush]\nmode = "async"\n[plugin.topics]\ndefault_quues = 4\n')
    outcome = cli("check-config", "--config", str(file))
    assert (outcome.code, outcome.out) == (2, "")
    assert sorted(outcome.err.splitlines()) == [
        f"gantrymq: [flush] (file {file}): there is no such section; did you mean 'plugin.flush'?",
        f"gantrymq: broker.id = -1 (file {file}): out of range; allowed: 0 and more",
        f"gantrymq: plugin.topics.default_quues (file {file}): there is no such key; did you mean 'default_queues'?",
    ]


def test_a_broker_conf_is_read_and_its_unknown_keys_are_reported(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(
        "brokerName=b\nautoCreateTopicEnable=false\ndefaultTopicQueueNums=6\ntransientStorePoolSize=5\n"
        "traceTopicEnable=false\nmsgTraceTopicName=my-traces\ntraceOn=false\n"
    )
    outcome = cli("print-config", "--config", str(path), "--json")
    rows = {(row["section"], row["key"]): row["value"] for row in json.loads(outcome.out)}
    assert (rows["plugin.topics", "auto_create"], rows["plugin.topics", "default_queues"]) == (False, 6)
    assert (rows["plugin.topics", "trace_topic"], rows["plugin.topics", "trace_topic_name"]) == (False, "my-traces")
    assert rows["plugin.produce", "trace"] is False
    assert outcome.err == f"gantrymq: {path}: transientStorePoolSize has no counterpart here and is ignored\n"


@pytest.mark.parametrize("command", ["serve", "broker", "check-config", "plugins list"])
def test_every_command_rejects_an_invalid_configuration_in_one_line(cli: Cli, command: str) -> None:
    outcome = cli(*command.split(), "--set", "broker.lissten=127.0.0.1:1")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err == ("gantrymq: broker.lissten (flag --set): there is no such key; did you mean 'listen'?\n")


def test_a_missing_file_is_named(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "none.toml"
    outcome = cli("check-config", "--config", str(path))
    assert (outcome.code, outcome.err) == (
        2,
        f"gantrymq: --config {path}: No such file or directory; check the path\n",
    )

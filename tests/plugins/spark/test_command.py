from __future__ import annotations

from pathlib import Path

import click
import pytest

from gantrymq.cli.__main__ import run
from gantrymq.plugins.spark import SparkPlugin


def test_the_plugin_adds_the_command() -> None:
    commands = click.Group()
    SparkPlugin().add_commands(commands)
    assert list(commands.commands) == ["export"]


def test_the_command_explains_itself_without_spark(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", "--help"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in ("--topic", "--to", "--nameserver", "--starting-offsets", "--overwrite"))


def test_missing_java_is_reported_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("gantrymq.spark.local.find_running", lambda: None)  # another test's session has found Java
    assert run(["export", "--topic", "orders", "--to", str(tmp_path / "out")]) == 2
    printed = capsys.readouterr().err
    assert "the export runs in Spark, which cannot start here" in printed
    assert "install" in printed
    assert "Traceback" not in printed
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("arguments", [[], ["--topic", "orders"], ["--topic", "o", "--to", "d", "--format", "csv"]])
def test_wrong_usage_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", *arguments]) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.spark
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--nameserver", "127.0.0.1:1"], "cannot connect to 127.0.0.1:1"),
        (["--nameserver", "nonsense"], "'nonsense' is not an address"),
        (["--starting-offsets", "latest"], "cannot start at latest"),
        (["--starting-offsets", "{"], "neither earliest, latest nor JSON"),
    ],
)
def test_an_impossible_export_is_one_clear_line(
    arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from gantrymq.spark import spark_status

    status = spark_status()
    if not status:
        pytest.skip(f"Spark cannot run here: {status.reason}")
    assert run(["export", "--topic", "orders", "--to", str(tmp_path / "out"), *arguments]) == 1
    printed = capsys.readouterr().err
    assert says in printed
    assert "Traceback" not in printed
    assert not (tmp_path / "out").exists()

"""``plugins new`` writes a well-formed package that passes its own tests, and never overwrites files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gantrymq.cli import plugin_project

Cli = Callable[..., Any]
LONGEST = "a" + "-b" * 19 + "c"


def run(folder: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=120, check=False, env={**os.environ, **environ}
    )


LOGGED = """
from types import SimpleNamespace

from gantrymq_order_audit import OrderAuditPlugin


def test_logged(plugin_broker, caplog):
    plugin_broker(OrderAuditPlugin)
    OrderAuditPlugin().load_state(SimpleNamespace(missing=(0, 8), data=None))
    assert [line.name for line in caplog.records if "messages_not_counted" in line.message] == ["gantrymq.order_audit"]
"""


@pytest.mark.once
@pytest.mark.slow
def test_the_tests_of_a_new_package_pass_in_a_fresh_folder(cli: Cli, tmp_path: Path) -> None:
    outcome = cli("plugins", "new", "order-audit", "--into", str(tmp_path))
    assert outcome.code == 0, outcome.err
    folder = tmp_path / "gantrymq-order-audit"
    assert outcome.out.endswith(f"Run its tests: cd {folder} && pytest\n")
    done = run(folder, "pytest", "-q", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8 passed" in done.stdout
    (folder / "tests" / "test_logged.py").write_text(LOGGED)
    done = run(folder, "pytest", "-q", "-p", "no:cacheprovider", "-k", "logged")
    assert "1 passed" in done.stdout, "the lines of the plugin are not in the captured log\n" + done.stdout


@pytest.mark.once
@pytest.mark.slow
def test_a_new_package_is_installed_and_enabled_by_its_entry_point(cli: Cli, tmp_path: Path) -> None:
    assert cli("plugins", "new", "order-audit", "--into", str(tmp_path)).code == 0
    site = tmp_path / "site"
    pip = ("pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(site))
    done = run(tmp_path, *pip, str(tmp_path / "gantrymq-order-audit"))
    assert done.returncode == 0, done.stderr
    assert (site / "gantrymq_order_audit" / "py.typed").exists()
    command = ("gantrymq.cli", "plugins", "show", "order_audit", "--enable", "order_audit", "--json")
    done = run(tmp_path, *command, PYTHONPATH=str(site))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["version"], found["section"], found["api_version"]) == ("0.1.0", "plugin.order_audit", 1)
    documented = (site / "gantrymq_order_audit" / "__init__.py").read_text().partition("Hooks: ")[2].partition(".")[0]
    assert sorted(documented.split(", ")) == sorted(found["hooks"])


@pytest.mark.once
@pytest.mark.parametrize("name", ["a", LONGEST])
def test_names_of_any_length_make_a_package_that_is_formatted(cli: Cli, tmp_path: Path, name: str) -> None:
    assert cli("plugins", "new", name, "--into", str(tmp_path)).code == 0
    (folder,) = tmp_path.iterdir()
    for command in (("check",), ("format", "--check", "--diff")):
        done = run(folder, "ruff", *command, "--no-cache", ".")
        assert done.returncode == 0, done.stdout
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    plain = name.replace("-", "_")
    assert project["name"] == f"gantrymq-{name}"
    (target,) = project["entry-points"]["gantrymq.plugins"].items()
    assert target[0] == plain
    assert target[1].startswith(f"gantrymq_{plain}:")
    left = [path for path in folder.rglob("*") if path.is_file() and "$" in path.read_text().replace("${{ ", "")]
    assert left == []


@pytest.mark.parametrize(
    ("name", "reported"),
    [
        ("Audit", "cannot be the name of a plugin"),
        ("1st", "cannot be the name of a plugin"),
        ("order--audit", "cannot be the name of a plugin"),
        ("../audit", "cannot be the name of a plugin"),
        ("audit-", "cannot be the name of a plugin"),
        ("", "cannot be the name of a plugin"),
        (LONGEST + "d", "at most 40 characters"),
        ("flush", "there is a plugin 'flush' already"),
        ("ha", "there is a plugin 'ha' already"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused(cli: Cli, tmp_path: Path, name: str, reported: str) -> None:
    outcome = cli("plugins", "new", name, "--into", str(tmp_path))
    assert (outcome.code, outcome.out) == (2, "")
    text = " ".join(outcome.err.replace("│", " ").split())
    assert reported in text
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_not_changed(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "gantrymq-billing"
    folder.mkdir()
    (folder / "mine").write_text("work of a week")
    outcome = cli("plugins", "new", "billing", "--into", str(tmp_path))
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err == f"gantrymq: {folder} exists; choose another name, or another folder with --into\n"
    assert [path.name for path in folder.iterdir()] == ["mine"]


def test_a_package_that_cannot_be_written_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Path, *_given: Any) -> int:
        raise OSError(28, "No space left on device", str(self))

    monkeypatch.setattr(Path, "write_text", fail)
    with pytest.raises(OSError, match="No space left"):
        plugin_project.write_project("audit", tmp_path)
    assert list(tmp_path.iterdir()) == []

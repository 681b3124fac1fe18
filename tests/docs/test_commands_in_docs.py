"""What the pages tell a reader to run is run, as they have it, beside a real `gantrymq serve`.

Every fenced block of shell or Python has a mark before it, a comment of its own line:

- ``run``: it is run, in the order of the page. Where it has 127.0.0.1:9876 the test's own nameserver is meant, where it
  has 127.0.0.1:5557 its broker's metrics.
- ``serve``: the command that is kept running meanwhile, with the plugins that it enables.
- ``test``: a module of tests, which pytest runs.
- ``plugin``: hooks of a plugin; they are defined and held to the hooks' signatures.
- ``not run: REASON``: it cannot be run in a test.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import attrs
import pytest

from gantrymq.cli.group import COMMANDS
from gantrymq.kernel import hookimpl, hookspecs
from gantrymq.kernel.config.sections import build_config
from gantrymq.kernel.config.sources import read_settings, show
from gantrymq.kernel.loading import load_plugins
from gantrymq.plugins import DEFAULT_PLUGINS
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from support.foreign import ask
from support.processes import gantrymq_child

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "examples").rglob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>[^\n]*?) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
LANGUAGES = {"sh", "python"}
MARK = re.compile(r"run|serve|test|plugin|not run: .{10,}")
COMMAND = re.compile(r"^(?:\$ )?(?:[A-Z_]+=\S+ )*(?:gantrymq|make|pip|python3?|pytest|cd|git) [a-z-]", re.MULTILINE)
"""What a block without a language must not have: the first words of commands."""
LINK = re.compile(r"\]\((?!https?:)([^)#]+)[^)]*\)")


class Block(NamedTuple):
    mark: str
    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of the page; an empty mark where it has none."""
    return [Block(match["mark"] or "", match["language"], match["text"]) for match in BLOCK.finditer(page.read_text())]


def marked(page: Path, *marks: str) -> list[Block]:
    return [block for block in blocks(page) if block.mark in marks]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """An empty folder with the examples, and ``gantrymq`` and ``pytest`` of this environment on the path."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "bin").mkdir()
    for name, module in (("gantrymq", "gantrymq.cli"), ("pytest", "pytest")):
        command = tmp_path / "bin" / name
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {module} "$@"\n')
        command.chmod(0o755)
    return tmp_path


@pytest.fixture
def server(place: Path, page: Path) -> Iterator[dict[str, str]]:
    """A broker and a nameserver on free ports, started as on the page; who is at which address."""
    environ = {"GANTRYMQ_BROKER__LISTEN": "127.0.0.1:0", "GANTRYMQ_NAMESERVER_LISTEN": "127.0.0.1:0"}
    arguments = ["serve", "--data", str(place / "gantrymq-data"), "--set", "store.commit_log_file_bytes=4 MiB"]
    enabled = re.findall(r" --enable (\w+)", "".join(block.text for block in marked(page, "serve")))
    for plugin in enabled:
        arguments += ["--enable", plugin, "--set", f"plugin.{plugin}.listen=127.0.0.1:0"]
    with gantrymq_child(arguments, place / "log", env=environ) as child:
        line = child.wait_line(lambda text: text.startswith("ready"))
        addresses = dict(part.split("=") for part in line.split() if "=" in part)
        if "metrics" in enabled:
            told = ask(addresses["broker"], Command(RequestCode.GET_BROKER_RUNTIME_INFO))
            addresses["metrics"] = json.loads(told.body)["table"]["metricsAddress"]
        yield addresses


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("page", [page for page in PAGES if marked(page, "run", "serve")], ids=name)
def test_what_a_page_says_works(page: Path, place: Path, server: dict[str, str]) -> None:
    nameserver = server["nameserver"]
    environ = {**os.environ, "PATH": f"{place / 'bin'}:{os.environ['PATH']}", "GANTRYMQ_NAMESERVER": nameserver}
    for block in marked(page, "run", "serve"):
        if block.mark == "serve":
            assert block.text.split()[:2] == ["gantrymq", "serve"]
            continue
        text = block.text.replace("127.0.0.1:9876", nameserver)
        text = text.replace("127.0.0.1:5557", server.get("metrics", "127.0.0.1:5557"))
        command = [sys.executable, "-W", "error", "-c", text] if block.language == "python" else ["bash", "-ec", text]
        done = subprocess.run(command, cwd=place, env=environ, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{block.text}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_of_shell_or_python_is_run_or_says_why_not(page: Path) -> None:
    for block in blocks(page):
        if block.language in LANGUAGES:
            assert MARK.fullmatch(block.mark), f"{name(page)}: a block without a mark:\n{block.text}"
        elif not block.language:
            assert not COMMAND.search(block.text), (
                f"{name(page)}: commands in a block without a language:\n{block.text}"
            )


@pytest.mark.parametrize(
    "block", [pytest.param(block, id=name(page)) for page in PAGES for block in marked(page, "plugin")]
)
def test_hooks_on_a_page_have_the_arguments_of_their_hooks(block: Block) -> None:
    place: dict[str, object] = {"attrs": attrs, "hookimpl": hookimpl}
    exec(compile(textwrap.dedent(block.text), "<page>", "exec", dont_inherit=True), place)
    owners = [
        place,
        *(vars(value) for value in place.values() if inspect.isclass(value) and value.__module__ == "builtins"),
    ]
    found = {
        hook: value for owner in owners for hook, value in owner.items() if hasattr(value, f"{hookspecs.PROJECT}_impl")
    }
    assert found, "a block that is marked as a plugin's has hooks"
    for hook, function in found.items():
        known = inspect.signature(getattr(hookspecs, hook)).parameters
        assert {*inspect.signature(function).parameters} - {"self"} <= {*known}, hook


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if marked(page, "test")], ids=name)
def test_tests_on_a_page_pass(page: Path, place: Path) -> None:
    environ = {**os.environ, "PATH": f"{place / 'bin'}:{os.environ['PATH']}", "GANTRYMQ_SIMULATION_SEEDS": "1"}
    for number, block in enumerate(marked(page, "test")):
        (place / f"test_of_page_{number}.py").write_text(block.text)
        command = ["pytest", "-q", "-p", "no:cacheprovider", f"test_of_page_{number}.py"]
        done = subprocess.run(command, cwd=place, env=environ, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_the_readme_is_run_from_start_to_end() -> None:
    marks = [(block.mark, block.language) for block in marked(ROOT / "README.md", "run", "serve")]
    assert marks == [("serve", "sh"), ("run", "sh"), ("run", "python"), ("run", "sh")]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), f"{name(page)}: {target}"


def test_the_page_of_the_configuration_has_every_key_with_its_default() -> None:
    text = (ROOT / "docs" / "howto" / "configure.md").read_text()
    rows = build_config(read_settings(), load_plugins(DEFAULT_PLUGINS)).explain()
    missing = [
        f"{row.section}.{row.key} = {show(row.value)}"
        for row in rows
        if f"| `{row.section}.{row.key}` | `{show(row.value)}` |" not in text
    ]
    assert not missing


def test_the_keys_of_the_page_exist() -> None:
    text = (ROOT / "docs" / "howto" / "configure.md").read_text()
    known = {
        f"{row.section}.{row.key}" for row in build_config(read_settings(), load_plugins(DEFAULT_PLUGINS)).explain()
    }
    assert set(re.findall(r"^\| `([a-z.]+\.[a-z0-9_]+)` \| `", text, re.MULTILINE)) == known


def test_commands_on_the_pages_exist() -> None:
    """Every ``gantrymq word`` in a fenced block is a command."""
    commands = {*COMMANDS, "export"}
    for page in PAGES:
        for fence in re.findall(r"^```\w*\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
            for word in re.findall(r"^(?:\w+=\S+ )*gantrymq ([a-z-]+)", fence, re.MULTILINE):
                assert word in commands, f"{name(page)}: gantrymq {word}"

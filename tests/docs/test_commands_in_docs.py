"""What the pages tell a reader to run is run, as they have it, beside a real `gantrymq serve`.

Every fenced block of shell or Python has a mark before it, a comment of its own line:

- ``run``: it is run, in the order of the page. Where it has 127.0.0.1:9876 the test's own nameserver is meant, where it
  has 127.0.0.1:10911 its broker, where it has 127.0.0.1:5557 or 127.0.0.1:8558 its broker's metrics or health pages.
- ``serve``: the command that is kept running meanwhile, with its options. A further one on the page replaces it. A page
  without this mark has a server from its beginning.
- ``beside it``: a second broker at 127.0.0.1:10921, which is kept running as well, until the page ends.
- ``until stopped``: it is started, gets SIGTERM after its first line of output or some seconds, and must end cleanly.
- ``part of FILE``: a part of a module that the page builds; its parts are the file's content, and equal the example's.
- ``test``: a module of tests, which pytest runs.
- ``plugin``: hooks of a plugin; they are defined and held to the hooks' signatures.
- ``not run: REASON``: it cannot be run in a test.

A comment ``<!-- prepare``, then Python, then ``-->`` is run in its place: what the following blocks need.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
import time
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
from support.processes import Child, free_ports, gantrymq_child
from support.warm import write_command

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
PREPARE = re.compile(r"^<!-- prepare\n(?P<text>.*?)^-->$", re.MULTILINE | re.DOTALL)
LANGUAGES = {"sh", "python"}
MARK = re.compile(r"run|serve|beside it|until stopped|part of \w+\.py|test|plugin|not run: .{10,}")
STEPS = ("run", "serve", "beside it", "until stopped", "prepare")
PART = "part of "
STOPPED_AFTER_S = 4
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


def steps(page: Path) -> list[Block]:
    """What is run of the page, in its order."""
    text = page.read_text()
    found = [(m.start(), Block(m["mark"] or "", m["language"], m["text"])) for m in BLOCK.finditer(text)]
    found += [(m.start(), Block("prepare", "python", m["text"])) for m in PREPARE.finditer(text)]
    return [block for _, block in sorted(found) if block.mark in STEPS or block.mark.startswith(PART)]


def marked(page: Path, *marks: str) -> list[Block]:
    return [block for block in blocks(page) if block.mark in marks]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """An empty folder with the examples, and ``gantrymq`` and ``pytest`` of this environment on the path."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "bin").mkdir()
    write_command(tmp_path / "bin" / "gantrymq")
    command = tmp_path / "bin" / "pytest"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m pytest "$@"\n')
    command.chmod(0o755)
    return tmp_path


class PageServer:
    """The broker and nameserver of a page, on free ports, with the options that the page has."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._child: Child | None = None
        self._second: Child | None = None
        self.addresses: dict[str, str] = {}
        self.environ: dict[str, str] = {}

    def start(self, command: str) -> None:
        """Start what the page has as ``gantrymq serve ...``; files are those of the page's folder."""
        self.stop()
        words = shlex.split(command.replace("\\\n", " "))
        assert words[:2] == ["gantrymq", "serve"], command
        arguments = ["serve", *map(self._resolved, words[2:]), "--set", "store.commit_log_file_bytes=4 MiB"]
        if "--data" not in arguments:
            arguments += ["--data", str(self._place / "gantrymq-data")]
        arguments += ["--set", "plugin.http.listen=127.0.0.1:0"]
        if "metrics" in words:
            arguments += ["--set", "plugin.metrics.listen=127.0.0.1:0"]
        environ = {"GANTRYMQ_BROKER__LISTEN": "127.0.0.1:0", "GANTRYMQ_NAMESERVER_LISTEN": "127.0.0.1:0"}
        self._child = gantrymq_child(arguments, self._place / "log", env=environ)
        banner = []
        for line in self._child.lines(120):
            banner.append(line)
            if line.startswith("ready"):
                break
        self.addresses = dict(part.split("=") for part in line.split() if "=" in part)
        pages = [text.rpartition("/")[2] for text in banner if text.startswith("  pages ")]
        if pages:  # of several processes
            self.addresses["http"] = pages[0]
        elif not {"acl", "tls"} & {*words}:
            info = ask(self.addresses["broker"], Command(RequestCode.GET_BROKER_RUNTIME_INFO))
            table = json.loads(info.body)["table"]
            self.addresses |= {"metrics": table.get("metricsAddress", ""), "http": table["httpAddress"]}
        self.environ = {
            **os.environ,
            "PATH": f"{self._place / 'bin'}:{os.environ['PATH']}",
            "GANTRYMQ_NAMESERVER": self.addresses["nameserver"],
            "GANTRYMQ_CONFIG_HOME": str(self._place / "config"),
        }

    def start_second(self, command: str) -> None:
        """Start what the page has as ``gantrymq broker ...``, with addresses of this server."""
        (port,) = free_ports()
        self.addresses["second"] = f"127.0.0.1:{port}"
        words = shlex.split(self.on_this_server(command.replace("\\\n", " ")))
        assert words[:2] == ["gantrymq", "broker"], command
        arguments = ["broker", *map(self._resolved, words[2:])]
        arguments += ["--set", "store.commit_log_file_bytes=4 MiB", "--set", "plugin.http.listen=127.0.0.1:0"]
        self._second = gantrymq_child(arguments, self._place / "second-log")
        self._second.wait_line(lambda line: line.startswith("ready"))

    def _resolved(self, word: str) -> str:
        key, equals, value = word.rpartition("=")
        path = self._place / value
        return f"{key}{equals}{path}" if value.startswith("./") or (value and path.is_file()) else word

    def on_this_server(self, text: str) -> str:
        """The text of a block with the addresses of this server."""
        text = text.replace("--listen 127.0.0.1:9876", "--listen 127.0.0.1:0")
        text = text.replace("127.0.0.1:9876", self.addresses.get("nameserver", "127.0.0.1:0"))
        text = text.replace("127.0.0.1:10911", self.addresses.get("broker", "127.0.0.1:0"))
        text = text.replace("127.0.0.1:10921", self.addresses.get("second", "127.0.0.1:0"))
        text = text.replace("127.0.0.1:8558", self.addresses.get("http", "127.0.0.1:8558"))
        return text.replace("127.0.0.1:5557", self.addresses.get("metrics", "127.0.0.1:5557"))

    def stop(self) -> None:
        """Stop what runs."""
        for child in (self._second, self._child):
            if child is not None:
                child.__exit__(None, None, None)
        self._child = self._second = None


@pytest.fixture
def server(place: Path) -> Iterator[PageServer]:
    """Nothing runs yet."""
    running = PageServer(place)
    running.environ = {**os.environ, "PATH": f"{place / 'bin'}:{os.environ['PATH']}"}
    yield running
    running.stop()


def command_of(block: Block, text: str, place: Path) -> list[str]:
    return [str(place / "bin" / "gantrymq"), "-c", text] if block.language == "python" else ["bash", "-ec", text]


def run_until_stopped(command: list[str], place: Path, environ: dict[str, str]) -> None:
    """Stop it after its first line, or after a time in which it says nothing."""
    log = place / "until-stopped"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=place, env=environ, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    end = time.monotonic() + STOPPED_AFTER_S
    while process.poll() is None and time.monotonic() < end and b"\n" not in log.read_bytes():
        time.sleep(0.05)
    assert process.poll() is None, f"it ended by itself:\n{log.read_text()}"
    os.killpg(process.pid, signal.SIGTERM)
    code = process.wait(60)
    assert code in {0, -signal.SIGTERM, 128 + signal.SIGTERM}, log.read_text()
    assert not re.search(r"Traceback|^(?:gantrymq: )?[Ee]rror", log.read_text(), re.MULTILINE), log.read_text()


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("page", [page for page in PAGES if steps(page)], ids=name)
def test_commands_on_a_page_run(page: Path, place: Path, server: PageServer) -> None:
    if not marked(page, "serve"):
        server.start("gantrymq serve")
    has_context = any(
        re.search(r"context add .*--use", block.text) for block in steps(page)
    )  # this variable replaces contexts
    for block in steps(page):
        if block.mark == "serve":
            server.start(block.text)
            continue
        if block.mark == "beside it":
            server.start_second(block.text)
            continue
        if block.mark.startswith(PART):
            with (place / block.mark.removeprefix(PART)).open("a") as module:
                module.write(f"{block.text}\n")
            continue
        if has_context:
            server.environ.pop("GANTRYMQ_NAMESERVER", None)
        command = command_of(block, server.on_this_server(block.text), place)
        if block.mark == "until stopped":
            run_until_stopped(command, place, server.environ)
            continue
        done = subprocess.run(command, cwd=place, env=server.environ, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{block.text}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr


def test_the_parts_in_the_tutorial_are_the_example_plugin() -> None:
    parts = [
        block.text
        for block in steps(ROOT / "docs" / "tutorial" / "write-a-plugin.md")
        if block.mark == f"{PART}gantrymq_stamp.py"
    ]
    joined = [line for line in "".join(parts).splitlines() if line]
    example = ROOT / "examples" / "plugins" / "stamp" / "gantrymq_stamp.py"
    assert joined == [line for line in example.read_text().splitlines() if line]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_of_shell_or_python_is_run_or_gives_a_reason(page: Path) -> None:
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
def test_hooks_on_a_page_have_the_specified_arguments(block: Block) -> None:
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
def test_links_between_pages_have_targets(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), f"{name(page)}: {target}"


def test_the_configuration_page_has_every_key_with_its_default() -> None:
    text = (ROOT / "docs" / "howto" / "configure.md").read_text()
    rows = build_config(read_settings(), load_plugins(DEFAULT_PLUGINS)).explain()
    missing = [
        f"{row.section}.{row.key} = {show(row.value)}"
        for row in rows
        if f"| `{row.section}.{row.key}` | `{show(row.value)}` |" not in text
    ]
    assert not missing


def test_keys_on_the_configuration_page_exist() -> None:
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

"""The pages of the documentation, and how their blocks are run beside a real ``gantrymq serve``.

Every fenced block of shell or Python has a mark before it, a comment of its own line:

- ``run``: it is run, in the order of the page. Where it has 127.0.0.1:9876 the test's own nameserver is meant, where it
  has 127.0.0.1:10911 its broker, where it has 127.0.0.1:5557 or 127.0.0.1:8558 its broker's metrics or health pages,
  and where it has 127.0.0.1:8081 its schema registry.
- ``serve``: the command that is kept running meanwhile, with its options. A further one on the page replaces it. A page
  without this mark has a server from its beginning.
- ``beside it``: a second broker at 127.0.0.1:10921, which is kept running as well, until the page ends.
- ``until stopped``: it is started, gets SIGTERM after its first line of output or some seconds, and must end cleanly.
- ``spark``: Python, SQL or ``gantrymq`` commands that use Spark. It is run in the Spark session of the tests, Python in
  one namespace for the page. ``tests/spark/test_pages.py`` runs the pages with this mark,
  ``tests/docs/test_commands_in_docs.py`` all others.
- ``output``: what the block before it prints, but for blanks; ``...`` stands for any text.
- ``part of FILE``: a part of a module that the page builds; its parts are the file's content, and equal the example's.
- ``test``: a module of tests, which pytest runs.
- ``plugin``: hooks of a plugin; they are defined and held to the hooks' signatures.
- ``not run: REASON``: it cannot be run in a test.

A comment ``<!-- prepare``, then Python, then ``-->`` is run in its place: what the following blocks need.
"""

from __future__ import annotations

import doctest
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

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
MARK = re.compile(r"run|serve|beside it|until stopped|spark|part of \w+\.py|test|plugin|not run: .{10,}")
STEPS = ("run", "serve", "beside it", "until stopped", "spark", "output", "prepare")
PART = "part of "
STOPPED_AFTER_S = 4


class Block(NamedTuple):
    """A fenced block: the mark before it, empty where it has none, its language and its text."""

    mark: str
    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of the page; an empty mark where it has none."""
    return [Block(match["mark"] or "", match["language"], match["text"]) for match in BLOCK.finditer(page.read_text())]


def steps(page: Path) -> list[Block]:
    """The blocks of the page that are run, in order."""
    text = page.read_text()
    found = [(m.start(), Block(m["mark"] or "", m["language"], m["text"])) for m in BLOCK.finditer(text)]
    found += [(m.start(), Block("prepare", "python", m["text"])) for m in PREPARE.finditer(text)]
    return [block for _, block in sorted(found) if block.mark in STEPS or block.mark.startswith(PART)]


def marked(page: Path, *marks: str) -> list[Block]:
    """The blocks of the page with one of these marks."""
    return [block for block in blocks(page) if block.mark in marks]


def name(page: Path) -> str:
    """The path of the page below the repository's folder."""
    return str(page.relative_to(ROOT))


def uses_spark(page: Path) -> bool:
    """Whether the page needs the Spark session of the tests."""
    return bool(marked(page, "spark"))


@contextmanager
def run_page_server(place: Path) -> Iterator[PageServer]:
    """The server of a page whose commands run in ``place``; nothing runs yet.

    ``place`` gets the examples, and a folder ``bin`` with ``gantrymq`` and ``pytest`` of this environment.
    """
    (place / "examples").symlink_to(ROOT / "examples")
    (place / "bin").mkdir()
    write_command(place / "bin" / "gantrymq")
    command = place / "bin" / "pytest"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m pytest "$@"\n')
    command.chmod(0o755)
    running = PageServer(place)
    try:
        yield running
    finally:
        running.stop()


class PageServer:
    """The broker and nameserver of a page, on free ports, with the options that the page has."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._child: Child | None = None
        self._second: Child | None = None
        self.addresses: dict[str, str] = {}
        self.registry = "127.0.0.1:0"
        self.environ = {**os.environ, "PATH": f"{place / 'bin'}:{os.environ['PATH']}"}

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
        text = text.replace("127.0.0.1:8081", self.registry)
        text = text.replace("127.0.0.1:8558", self.addresses.get("http", "127.0.0.1:8558"))
        return text.replace("127.0.0.1:5557", self.addresses.get("metrics", "127.0.0.1:5557"))

    def stop(self) -> None:
        """Stop what runs."""
        for child in (self._second, self._child):
            if child is not None:
                child.__exit__(None, None, None)
        self._child = self._second = None


def command_of(block: Block, text: str, place: Path) -> list[str]:
    """The command line for ``text`` of the block: this Python, or bash until the first command that fails."""
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


def run_page(page: Path, place: Path, server: PageServer, run_in_spark: Callable[[Block], str] | None = None) -> None:
    """Run what :func:`steps` gives of the page, in its order, in the folder ``place``.

    ``run_in_spark`` runs a block with the mark ``spark``, with the server's addresses in its text, and returns what it
    prints.
    """
    if not marked(page, "serve"):
        server.start("gantrymq serve")
    has_context = any(
        re.search(r"context add .*--use", block.text) for block in steps(page)
    )  # this variable replaces contexts
    printed = ""
    for block in steps(page):
        if block.mark == "serve":
            server.start(block.text)
        elif block.mark == "beside it":
            server.start_second(block.text)
        elif block.mark.startswith(PART):
            with (place / block.mark.removeprefix(PART)).open("a") as module:
                module.write(f"{server.on_this_server(block.text)}\n")
        elif block.mark == "output":
            check_output(block.text, printed)
        elif block.mark == "spark":
            assert run_in_spark is not None
            printed = run_in_spark(block._replace(text=server.on_this_server(block.text)))
        else:
            if has_context:
                server.environ.pop("GANTRYMQ_NAMESERVER", None)
            command = command_of(block, server.on_this_server(block.text), place)
            if block.mark == "until stopped":
                run_until_stopped(command, place, server.environ)
                continue
            done = subprocess.run(command, cwd=place, env=server.environ, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, f"{block.text}\n{done.stdout}\n{done.stderr}"
            assert "Traceback" not in done.stderr
            printed = done.stdout


def check_output(wanted: str, printed: str) -> None:
    """Whether a block printed the text of its page, ignoring trailing blanks and empty lines."""
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.OutputChecker().check_output(wanted.strip(), printed.strip(), flags), (
        f"the page has:\n{wanted}\nit printed:\n{printed}"
    )

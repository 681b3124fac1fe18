"""Foreign tools: missing ones are named, failed builds show the reason, and builds are reused."""

from __future__ import annotations

import itertools
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.foreign import JavaHost, ToolMissing, find_go, find_java
from support.processes import Child, ChildFailed


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is the whole PATH."""
    folder = tmp_path / "tools"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def tool(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "main").write_text("one")
    return folder


@pytest.mark.parametrize(("present", "missing"), [((), "java"), (("java",), "javac"), (("java", "javac"), "mvn")])
def test_each_missing_tool_is_named(tools: Path, tmp_path: Path, present: tuple[str, ...], missing: str):
    for name in present:
        tool(tools, name, "exit 0")
    with pytest.raises(ToolMissing, match=f"^{missing} is not installed"):
        find_java("4.9.7", source(tmp_path), tmp_path / "cache")


def test_without_go_its_name_is_reported(tools: Path, tmp_path: Path):
    with pytest.raises(ToolMissing, match=r"^go is not installed"):
        find_go(source(tmp_path), tmp_path / "cache")


def test_a_failed_build_shows_the_tools_output_and_is_retried(tools: Path, tmp_path: Path):
    sources = source(tmp_path)
    tool(tools, "go", "echo no such module >&2; exit 1")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no such module"):
            find_go(sources, tmp_path / "cache")


def test_commands_are_rebuilt_only_when_their_source_changes(tools: Path, tmp_path: Path):
    sources, count = source(tmp_path), tmp_path / "count"
    tool(tools, "go", f"echo built >> {count}")
    for text, builds in (("one", 1), ("one", 1), ("two", 2), ("two", 2)):
        (sources / "main").write_text(text)
        find_go(sources, tmp_path / "cache")
        assert count.read_text().count("built") == builds


HOST = """
import json, socket, threading

server = socket.create_server(("127.0.0.1", 0))
print(json.dumps({"event": "listening", "port": server.getsockname()[1]}), flush=True)

def serve(link):
    with link, link.makefile("r") as given, link.makefile("w") as stream:
        for argument in json.loads(given.readline()):
            print(argument, file=stream, flush=True)
        for line in given:
            if line == "fail\\n":
                print("!why it failed", "=1", sep="\\n", file=stream, flush=True)
                return
            print("heard", line.strip(), file=stream, flush=True)
        print("=0", file=stream, flush=True)

while True:
    threading.Thread(target=serve, args=server.accept()[:1], daemon=True).start()
"""


@pytest.fixture
def host(tmp_path: Path) -> Iterator[JavaHost]:
    """A process that speaks as Host.java does, with the answers that the test gives it."""

    class Fake:
        def program(self, home: Path, command: str) -> Child:
            assert command == "host"
            return Child([sys.executable, "-c", HOST], home / "host.err")

    with JavaHost(Fake(), tmp_path) as running:  # type: ignore[arg-type]
        yield running


def test_commands_of_one_process_have_separate_output_and_exit(host: JavaHost, tmp_path: Path):
    with host.start(tmp_path / "a", "one") as one, host.start(tmp_path / "b", "two") as two:
        for command, name in ((one, "one"), (two, "two")):
            command.say(f"for {name}")
            assert list(itertools.islice(command.lines(), 2)) == [name, f"heard for {name}"]
        one.say("fail")
        assert one.wait() == 1
        with pytest.raises(ChildFailed, match=r"(?s)ended before.*exit code 1.*why it failed"):
            one.wait_line(lambda line: False)
        two.say("more")
        assert two.wait_line(lambda line: True) == "heard more"
    assert two.wait() == 0


def test_a_command_that_shares_its_process_is_not_killed(host: JavaHost, tmp_path: Path):
    with host.start(tmp_path, "one") as command, pytest.raises(ChildFailed, match="alone"):
        command.kill()

"""Looking for foreign tools: what is missing is named, what fails to build shows why, what is built is kept."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from gantrymq.testing.foreign import ToolMissing, find_go, find_java


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


def test_without_go_its_name_is_told(tools: Path, tmp_path: Path):
    with pytest.raises(ToolMissing, match=r"^go is not installed"):
        find_go(source(tmp_path), tmp_path / "cache")


def test_a_failed_build_shows_what_the_tool_said_and_is_tried_again(tools: Path, tmp_path: Path):
    sources = source(tmp_path)
    tool(tools, "go", "echo no such module >&2; exit 1")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no such module"):
            find_go(sources, tmp_path / "cache")


def test_what_is_built_is_built_once_until_its_source_changes(tools: Path, tmp_path: Path):
    sources, count = source(tmp_path), tmp_path / "count"
    tool(tools, "go", f"echo built >> {count}")
    for text, builds in (("one", 1), ("one", 1), ("two", 2), ("two", 2)):
        (sources / "main").write_text(text)
        find_go(sources, tmp_path / "cache")
        assert count.read_text().count("built") == builds

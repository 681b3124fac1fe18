"""The Makefile lists every native source and module, so that a change rebuilds them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def words_of(variable: str) -> set[str]:
    """The words of a variable of the Makefile, expanded."""
    printed = subprocess.run(
        ["make", "--print-data-base", "--dry-run", "--question", "help"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    ).stdout  # fmt: skip
    found = re.search(rf"^{variable} := (.*)$", printed, re.MULTILINE)
    assert found, f"the Makefile has no {variable}"
    return set(found[1].split())


@pytest.mark.once
@pytest.mark.parametrize(
    ("variable", "patterns"), [("BUILD_INPUTS", ("*.pyx", "*.pxd", "*.pxi")), ("MODULES", ("*.py",))]
)
def test_make_rebuilds_when_any_source_changes(variable: str, patterns: tuple[str, ...]) -> None:
    sources = {
        path.relative_to(ROOT).as_posix()
        for folder in ("kernel", "plugins", "gantrymq")
        for pattern in patterns
        for path in (ROOT / folder).rglob(pattern)
        if not any(part.is_symlink() for part in path.parents)
    }
    assert sources
    assert sources <= words_of(variable)


@pytest.mark.once
def test_make_runs_tests_of_twins_with_both_twins(request: pytest.FixtureRequest) -> None:
    """Other folders are not collected for it, because that takes each worker ten seconds."""
    plugins = request.config.pluginmanager.get_plugins()
    folders: Any = next(plugin.TWIN_FOLDERS for plugin in plugins if hasattr(plugin, "TWIN_FOLDERS"))
    marked = {
        path.relative_to(ROOT)
        for path in (ROOT / "tests").rglob("test_*.py")
        if path != Path(__file__) and "pytest.mark.twins" in path.read_text()
    }
    outside = {path.as_posix() for path in marked if path.parts[1] not in folders}
    assert words_of("PLAIN_TESTS") == {*(f"tests/{folder}" for folder in folders), *outside}

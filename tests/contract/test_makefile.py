"""What make builds from: a native source or a module that it does not know of is not built anew when it changes."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

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
def test_make_builds_anew_when_any_source_changes(variable: str, patterns: tuple[str, ...]) -> None:
    sources = {
        path.relative_to(ROOT).as_posix()
        for folder in ("kernel", "plugins", "gantrymq")
        for pattern in patterns
        for path in (ROOT / folder).rglob(pattern)
        if not any(part.is_symlink() for part in path.parents)
    }
    assert sources
    assert sources <= words_of(variable)

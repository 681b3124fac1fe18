"""Every source file that a page names in backticks exists."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
PATH = re.compile(r"(?<![\w./*-])(?:\./)?((?:[\w-]+/)*[\w-]+\.(?:pyx|pxi|pxd|py))(?=[:\s,;)]|$)")
EXAMPLES = {"file.py"}
"""Files of readers, which pages use as examples."""


@cache
def sources() -> str:
    """The paths of all source files, each between line ends."""
    folders = ("kernel", "plugins", "gantrymq", "tests", "docs", "examples", "benchmarks")
    paths = [path.relative_to(ROOT) for folder in folders for path in (ROOT / folder).rglob("*.p*")]
    return "\n".join(f"/{path}" for path in [*ROOT.glob("*.py"), *paths]) + "\n"


def exists(path: str) -> bool:
    """Whether a source file has this path, or one that ends so."""
    return f"/{path.removeprefix('gantrymq/kernel/').removeprefix('gantrymq/plugins/')}\n" in sources()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_source_file_on_the_page_exists(page: Path) -> None:
    spans = re.findall(r"`([^`\n]+)`", FENCE.sub("", page.read_text()))
    named = [path for span in spans for path in PATH.findall(span) if path not in EXAMPLES]
    assert [path for path in named if not exists(path)] == []


def test_every_page_that_names_a_source_file_is_checked() -> None:
    assert exists("kernel/broker.py")
    assert exists("headers/table.py")
    assert not exists("oker.py")
    assert PATH.findall("gantrymq/kernel/fast/_memory.pyx") == ["gantrymq/kernel/fast/_memory.pyx"]

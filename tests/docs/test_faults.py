"""The tests that the fault catalogue names exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`(tests/[a-z0-9_/]+\.py)(?:::(test_[a-z0-9_]+))?`")


def test_every_test_on_the_page_exists() -> None:
    named = NAMED.findall((ROOT / "docs" / "design" / "faults.md").read_text())
    assert len(named) > 50
    for path, name in named:
        assert (ROOT / path).exists(), path
        if name:
            assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE), f"{path}::{name}"


def test_every_row_of_the_fault_catalog_is_on_the_page() -> None:
    rows: set[int] = set()
    for line in (ROOT / "docs" / "design" / "faults.md").read_text().splitlines():
        found = re.match(r"\| ([0-9][0-9, to]*) \|", line)
        if found:
            assert "`tests/" in line, line
            for part in found[1].split(", "):
                first, _, last = part.partition(" to ")
                rows.update(range(int(first), int(last or first) + 1))
    assert rows >= {*range(1, 70)}

"""The page of the faults names tests that exist."""

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

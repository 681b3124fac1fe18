"""The map of the kernel in ``docs/design/layout.md`` is complete."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_map_of_the_kernel_has_every_module() -> None:
    block = (ROOT / "docs" / "design" / "layout.md").read_text().split("```")[1]
    paths = [path for path in (ROOT / "kernel").rglob("*.py") if path.parent.name != "fast" and path.stem != "__init__"]
    assert len(paths) > 50
    assert {path.stem for path in paths} - set(re.findall(r"\w+", block)) == set()

"""Figures that the README tells of a measurement are those of the committed results."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_memory_in_the_readme_is_that_of_the_results() -> None:
    readme = (ROOT / "README.md").read_text()
    (told,) = [part for part in re.split(r"\n(?:\n|- )", readme) if "(benchmarks/RESULTS.md)" in part]
    results = (ROOT / "benchmarks" / "RESULTS.md").read_text()
    under_load = re.search(r"^\| resident memory, under [^|]+\| ([\d,]+) MiB", results, re.MULTILINE)
    assert under_load is not None
    assert re.findall(r"([\d,]+) MiB", told.replace("\n", " ")) == [under_load[1]]

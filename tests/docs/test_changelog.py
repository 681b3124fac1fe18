"""The changelog has the groups Added, Changed and Fixed, and the names in it exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "CHANGELOG.md").read_text()
GROUPS = ["Added", "Changed", "Fixed"]


def test_each_release_has_the_groups_in_their_order_and_no_entry_outside() -> None:
    releases = re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]
    assert releases
    for release in releases:
        before, *groups = re.split(r"^### ", release, flags=re.MULTILINE)
        assert not re.search(r"^- ", before, re.MULTILINE), "an entry belongs to a group"
        titles = [group.partition("\n")[0] for group in groups]
        assert titles == [title for title in GROUPS if title in titles]


def test_the_files_that_it_names_exist() -> None:
    named = re.findall(r"`((?:docs|tests|benchmarks)/[\w./-]+)`", TEXT)
    assert len(named) > 10
    assert [path for path in named if not (ROOT / path).exists()] == []

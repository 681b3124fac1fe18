"""The README links to each page."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\]\((docs/[\w/.-]+\.md)\)")


def test_the_readme_links_each_page_for_users_and_no_page_that_does_not_exist() -> None:
    linked = set(LINK.findall((ROOT / "README.md").read_text()))
    pages = {
        f"docs/{kind}/{page.name}"
        for kind in ("tutorial", "howto", "reference")
        for page in (ROOT / "docs" / kind).glob("*.md")
    }
    assert pages - linked == set()
    assert [page for page in linked if not (ROOT / page).is_file()] == []

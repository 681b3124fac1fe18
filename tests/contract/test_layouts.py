"""Each binary layout is defined once in the source."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LEAST_FIELDS = 3
"""Formats of one or two numbers are no layout."""


@pytest.mark.once
def test_no_layout_is_defined_twice() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for folder in ("kernel", "plugins", "gantrymq"):
        for path in (ROOT / folder).rglob("*.py"):
            if any(part.is_symlink() for part in path.parents):
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and ast.unparse(node.func) in ("struct.Struct", "Struct"):
                    text = ast.unparse(node.args[0])
                    if len(re.findall(r"[bBhHiIqQs]", text)) >= LEAST_FIELDS:
                        places[text].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert places
    assert {text: found for text, found in places.items() if len(found) > 1} == {}


@pytest.mark.once
def test_hosts_are_encoded_in_one_place() -> None:
    for folder in ("kernel", "plugins", "gantrymq"):
        for path in (ROOT / folder).rglob("*.py"):
            if path.relative_to(ROOT).as_posix() != "gantrymq/remoting/address.py":
                assert "def encode_host" not in path.read_text(), path


@pytest.mark.once
def test_message_ids_are_written_in_one_place() -> None:
    """A plain twin fills in a template, as its compiled loop does."""
    pattern = re.compile(r"%?016X|def (parse_)?offset_message_id|to_bytes\(8.*\.hex\(")
    paths = [path for folder in ("kernel", "plugins", "gantrymq") for path in (ROOT / folder).rglob("*.py")]
    own = [path for path in paths if not any(part.is_symlink() for part in path.parents)]
    found = {path for path in own if not path.name.startswith("plain") and pattern.search(path.read_text())}
    # the record that a client reads has its id as a property of that name
    assert found == {ROOT / "gantrymq/remoting/message_ids.py", ROOT / "gantrymq/remoting/records.py"}

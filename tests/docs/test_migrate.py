"""Our side of the tables for users of other clients: every call and option exists."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import gantrymq
import gantrymq.sync
from gantrymq.sync import Reader as SyncReader

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "migrate.md"
KINDS: dict[str, tuple[Any, ...]] = {
    "gantrymq": (gantrymq,),
    "client": (gantrymq.Client, gantrymq.sync.Client),
    "producer": (gantrymq.Producer, gantrymq.sync.Producer),
    "consumer": (gantrymq.Consumer, gantrymq.sync.Consumer),
    "reader": (gantrymq.Reader, SyncReader),
    "message": (gantrymq.ReceivedMessage, gantrymq.sync.ReceivedMessage),
}
SLOTS = {"body", "message_id", "queue", "queue_offset", "properties"}
"""Attributes of message objects."""


def ours() -> list[str]:
    """The code of the second column, each once."""
    found: list[str] = []
    for line in PAGE.read_text().splitlines():
        cells = re.split(r"(?<!\\)\|", line)
        if len(cells) == 4:
            found += [code.replace("\\|", "|") for code in re.findall(r"`([^`]+)`", cells[2])]
    return [code for code in dict.fromkeys(found) if code.removeprefix("await ").split(".")[0] in KINDS]


def test_the_migration_page_has_its_tables() -> None:
    assert len(re.findall(r"^\|---\|---\|$", PAGE.read_text(), re.MULTILINE)) == 4
    assert len(ours()) > 60


@pytest.mark.parametrize("code", ours())
def test_calls_named_on_the_migration_page_exist(code: str) -> None:
    awaits = code.startswith("await ")
    tree = ast.parse(code.removeprefix("await "), mode="eval")
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in KINDS):
            continue
        for kind in KINDS[node.value.id]:
            if node.value.id == "message" and node.attr in SLOTS:
                continue
            assert hasattr(kind, node.attr), f"{kind} has no {node.attr}"
    call = tree.body
    if not isinstance(call, ast.Call):
        return
    assert isinstance(call.func, ast.Attribute)
    assert isinstance(call.func.value, ast.Name)
    for number, kind in enumerate(KINDS[call.func.value.id]):
        function = getattr(kind, call.func.attr)
        bound = [None] * (inspect.isfunction(function) and inspect.isclass(kind))
        names = [str(each.arg) for each in call.keywords]
        inspect.signature(function).bind(*bound, *call.args, **dict.fromkeys(names))
        if not number:
            assert inspect.iscoroutinefunction(function) == awaits, f"{code}: awaited?"

"""No cycle of imports exists among the modules."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TYPE_CYCLE_MAX = 5
"""Modules that name each other's types at most; a part and its owner may."""


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "gantrymq" else ("gantrymq", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {
    module_of(path): path
    for folder in ("kernel", "plugins", "gantrymq")
    for path in sorted((ROOT / folder).rglob("*.py*"))
    if path.suffix in (".py", ".pyi")  # the stub stands for a compiled module
    and not any(part.is_symlink() for part in path.parents)
}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def is_for_types(test: ast.expr) -> bool:
    return any("TYPE_CHECKING" in (getattr(node, "id", ""), getattr(node, "attr", "")) for node in ast.walk(test))


def imports_of(node: ast.AST, with_types: bool) -> Iterator[str]:
    """The modules of ours that are imported anywhere in ``node``, in functions too."""
    if isinstance(node, ast.If) and not with_types and is_for_types(node.test):
        nodes: Iterator[ast.AST] = iter(node.orelse)
    else:
        nodes = ast.iter_child_nodes(node)
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in SOURCES)
    elif isinstance(node, ast.ImportFrom) and node.module in SOURCES:
        for alias in node.names:
            name = f"{node.module}.{alias.name}"
            yield name if name in SOURCES else node.module
    for child in nodes:
        if not isinstance(child, ast.expr):  # which has no imports, and most of the nodes
            yield from imports_of(child, with_types)


def cycles(with_types: bool) -> list[list[str]]:
    """Groups of modules that reach each other by imports."""
    graph = {module: set(imports_of(tree_of(path), with_types)) - {module} for module, path in SOURCES.items()}
    reached: dict[str, set[str]] = {}
    for module in graph:
        found: set[str] = set()
        open_ = [module]
        while open_:
            new = graph[open_.pop()] - found
            found |= new
            open_ += new
        reached[module] = found
    groups = {frozenset(other for other in reached[module] if module in reached[other]) for module in graph}
    return [sorted(group) for group in groups if group]


@pytest.mark.once
def test_modules_have_no_import_cycles() -> None:
    assert cycles(with_types=False) == []


@pytest.mark.once
def test_type_only_import_cycles_stay_small() -> None:
    large = [group for group in cycles(with_types=True) if len(group) > TYPE_CYCLE_MAX]
    assert large == []

"""Rules of style that a reader feels: sizes, docstrings, no leftovers."""

from __future__ import annotations

import ast
import re
import warnings
from pathlib import Path

import pytest

from gantrymq.kernel.loading import load_plugins
from gantrymq.plugins import DEFAULT_PLUGINS, OPTIONAL_PLUGINS

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("kernel", "plugins", "gantrymq", "tests/support")
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
MODULE_LINES = 400
FUNCTION_LINES = 70


def ident(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.filterwarnings("default:.* lines:UserWarning")
@pytest.mark.parametrize("path", SOURCES, ids=ident)
def test_functions_stay_within_the_length_limit(path: Path) -> None:
    text = path.read_text()
    if (lines := text.count("\n")) > MODULE_LINES:
        warnings.warn(f"{ident(path)} has {lines} lines", stacklevel=1)  # a subject may need them
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            assert length <= FUNCTION_LINES, f"{path}:{node.lineno}: {node.name} has {length} lines"


@pytest.mark.parametrize("path", SOURCES, ids=ident)
def test_public_names_have_docstrings(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), f"{path}: module without a docstring"
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            overloaded = any("overload" in ast.dump(decorator) for decorator in node.decorator_list)
            assert overloaded or ast.get_docstring(node), f"{path}:{node.lineno}: {node.name} without a docstring"


def test_no_todo_comment_remains() -> None:
    pattern = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    for path in SOURCES:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            assert not pattern.search(line), f"{path}:{number}: {line.strip()}"


def test_a_plugin_docstring_lists_exactly_its_hooks() -> None:
    for info in load_plugins(DEFAULT_PLUGINS, OPTIONAL_PLUGINS).plugins:
        module = __import__(type(info.plugin).__module__, fromlist=["__doc__"])
        match = re.search(r"Hooks: ((?:.|\n)*?)\.\n", module.__doc__ or "")
        assert match, f"plugin {info.name}: no line 'Hooks: ...' in its docstring"
        assert sorted(re.split(r",\s+", match[1])) == list(info.hooks), f"plugin {info.name}"
        for part in ("Slot:", "Config", "Files:"):
            assert part in (module.__doc__ or ""), f"plugin {info.name}: its docstring does not say {part}"

"""Style rules: sizes, docstrings, no leftovers."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
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
def test_functions_stay_within_the_length_limit_and_public_names_have_docstrings() -> None:
    assert len(SOURCES) > 400
    assert [offense for path in SOURCES for offense in offenses_of(ident(path), path.read_text())] == []


def offenses_of(name: str, text: str) -> Iterator[str]:
    """The offenses of the module ``name`` against the rules on length and docstrings."""
    if (lines := text.count("\n")) > MODULE_LINES:
        warnings.warn(f"{name} has {lines} lines", stacklevel=1)  # a subject may need them
    tree = ast.parse(text)
    if not ast.get_docstring(tree):
        yield f"{name}: module without a docstring"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            if length > FUNCTION_LINES:
                yield f"{name}:{node.lineno}: {node.name} has {length} lines"
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            overloaded = any("overload" in ast.dump(decorator) for decorator in node.decorator_list)
            if not (overloaded or ast.get_docstring(node)):
                yield f"{name}:{node.lineno}: {node.name} without a docstring"


def test_each_offense_is_found() -> None:
    text = "def long():\n" + "    pass\n" * FUNCTION_LINES + "def _hidden(): pass\nclass Bare: pass\n"
    assert list(offenses_of("m.py", text)) == [
        "m.py: module without a docstring",
        "m.py:1: long has 71 lines",
        "m.py:1: long without a docstring",
        "m.py:73: Bare without a docstring",
    ]


def test_no_todo_comment_remains() -> None:
    pattern = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    for path in SOURCES:
        if pattern.search(text := path.read_text()):
            found = [
                f"{path}:{number}: {line}" for number, line in enumerate(text.splitlines(), 1) if pattern.search(line)
            ]
            assert found == []


def test_a_plugin_docstring_lists_exactly_its_hooks() -> None:
    for info in load_plugins(DEFAULT_PLUGINS, OPTIONAL_PLUGINS).plugins:
        module = __import__(type(info.plugin).__module__, fromlist=["__doc__"])
        match = re.search(r"Hooks: ((?:.|\n)*?)\.\n", module.__doc__ or "")
        assert match, f"plugin {info.name}: no line 'Hooks: ...' in its docstring"
        assert sorted(re.split(r",\s+", match[1])) == list(info.hooks), f"plugin {info.name}"
        for part in ("Slot:", "Config", "Files:"):
            assert part in (module.__doc__ or ""), f"plugin {info.name}: its docstring does not say {part}"

"""The page of hooks, the hooks and their users agree; a turn calls hooks per batch, never per message."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

from gantrymq.kernel import hookspecs
from gantrymq.kernel.loading import load_plugins
from gantrymq.plugins import DEFAULT_PLUGINS, OPTIONAL_PLUGINS

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "hooks.md"
HOOKS = {
    name: function
    for name, function in vars(hookspecs).items()
    if inspect.isfunction(function) and hasattr(function, f"{hookspecs.PROJECT}_spec")
}


EXAMPLES = sorted((ROOT / "examples" / "plugins").glob("*/gantrymq_*.py"))


def users_of(name: str) -> list[str]:
    """The plugins that implement the hook: those of the package in call order, then the examples."""
    users = [info.name for info in load_plugins(DEFAULT_PLUGINS + OPTIONAL_PLUGINS).plugins if name in info.hooks]
    return users + [path.parent.name for path in EXAMPLES if implements(path, name)]


def implements(path: Path, name: str) -> bool:
    """Whether the example has a method of that name with the hooks' marker."""
    return any(
        isinstance(node, ast.FunctionDef)
        and node.name == name
        and any(ast.unparse(each).startswith("hookimpl") for each in node.decorator_list)
        for node in ast.walk(ast.parse(path.read_text()))
    )


@pytest.mark.parametrize("name", HOOKS)
def test_the_page_lists_exactly_the_plugins_that_use_a_hook(name: str) -> None:
    section = re.split(r"^#+ ", PAGE.read_text().partition(f"## `{name}(")[2], maxsplit=1, flags=re.MULTILINE)[0]
    listed = re.search(r"^Used by: ([^.]+)\.", section, re.MULTILINE)
    assert listed, f"{name}: the page does not say who uses it"
    assert " ".join(listed[1].split()) == ", ".join(users_of(name))


@pytest.mark.parametrize("name", HOOKS)
def test_each_hook_is_documented_with_its_exact_signature(name: str) -> None:
    arguments = ", ".join(inspect.signature(HOOKS[name]).parameters)
    assert f"## `{name}({arguments})`" in PAGE.read_text()


@pytest.mark.parametrize("name", HOOKS)
def test_each_entry_of_a_hook_has_all_fields_in_order(name: str) -> None:
    section = re.split(r"^#+ ", PAGE.read_text().partition(f"## `{name}(")[2], maxsplit=1, flags=re.MULTILINE)[0]
    fields = re.findall(r"^- \*\*(\w+):\*\* \S.*[^.]\.$", section, re.MULTILINE)
    assert fields == ["When", "Gets", "May", "Order", "Errors", "Cost"]
    assert "<!-- plugin -->" in section, "no example"


@pytest.mark.parametrize("name", HOOKS)
def test_each_entry_of_a_hook_names_its_kind_as_the_hook_does(name: str) -> None:
    kind = re.search(r"When: (once|rare|turn)\b", HOOKS[name].__doc__ or "")
    assert kind, f"{name}: the docstring names no kind"
    section = PAGE.read_text().partition(f"## `{name}(")[2]
    assert section.partition("- **When:** ")[2].startswith(kind[1])


def test_the_page_documents_no_hook_that_does_not_exist() -> None:
    documented = set(re.findall(r"^## `(\w+)\(", PAGE.read_text(), re.MULTILINE))
    assert documented == set(HOOKS)


@pytest.mark.parametrize("name", HOOKS)
def test_each_hook_is_used_by_a_shipped_plugin_and_its_docstring_names_one(name: str) -> None:
    users = users_of(name)
    assert users, f"no shipped plugin and no example uses {name}"
    first = re.search(r"First user: (\w+)\.", HOOKS[name].__doc__ or "")
    assert first, f"{name}: docstring names no first user"
    assert first[1] == "all" or first[1] in users, f"{name}: {first[1]} does not implement it, {users} do"

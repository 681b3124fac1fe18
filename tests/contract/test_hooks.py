"""The hook page, its documentation and its users stay in step; a sweep pays per batch, never per message."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from gantrymq.kernel import hookspecs
from gantrymq.kernel.loading import load_plugins
from gantrymq.plugins import DEFAULT_PLUGINS

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "hooks.md"
HOOKS = {
    name: function
    for name, function in vars(hookspecs).items()
    if inspect.isfunction(function) and hasattr(function, f"{hookspecs.PROJECT}_spec")
}


@pytest.mark.parametrize("name", HOOKS)
def test_each_hook_is_documented_with_its_exact_signature(name: str) -> None:
    arguments = ", ".join(inspect.signature(HOOKS[name]).parameters)
    assert f"## `{name}({arguments})`" in PAGE.read_text()


def test_the_page_documents_no_hook_that_does_not_exist() -> None:
    documented = set(re.findall(r"^## `(\w+)\(", PAGE.read_text(), re.MULTILINE))
    assert documented == set(HOOKS)


@pytest.mark.parametrize("name", HOOKS)
def test_each_hook_is_used_by_a_shipped_plugin_and_its_docstring_names_one(name: str) -> None:
    users = [info.name for info in load_plugins(DEFAULT_PLUGINS).plugins if name in info.hooks]
    assert users, f"no shipped plugin uses {name}"
    first = re.search(r"First user: (\w+)\.", HOOKS[name].__doc__ or "")
    assert first, f"{name}: docstring names no first user"
    assert first[1] == "all" or first[1] in users, f"{name}: {first[1]} does not implement it, {users} do"

"""Permitted imports among packages of the kernel: the store needs no network, the network no store."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.once  # it reads the source

ROOT = Path(__file__).resolve().parents[2]
ALLOWED = {
    "env": ("errors", "fast"),
    "config": ("errors", "manager"),
    "fast": ("batch", "env", "layouts", "processors", "store.log.record"),
    "store": ("batch", "env", "errors", "fast", "filters", "layouts"),
    "network": ("config", "env", "errors", "fast", "manager", "processors"),
}
"""For each package, the kernel's modules that it may import besides its own. ``env`` uses ``fast`` for the flusher; the
loops know what a record is (``store.log.record``, which is pure), and nothing else of the store."""
ALLOWED_AS_TYPES = {"fast": ("network.connection",)}
"""Modules used only in annotations."""

_PYX_IMPORT = re.compile(
    r"^\s*(?:from\s+(gantrymq\.\S+)\s+c?import\s+\(?([^)#\n]*(?:\n[^)]*\))?)|c?import\s+(gantrymq\.\S+))", re.MULTILINE
)


def of_types_alone(tree: ast.Module) -> set[ast.AST]:
    """The imports below ``if TYPE_CHECKING``."""
    return {
        inner for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for statement in node.body for inner in ast.walk(statement)
    }  # fmt: skip


def imports_of(text: str, *, compiled: bool = False) -> Iterator[tuple[str, bool]]:
    """The modules that a source imports, and whether for types alone; a name of a package counts as its module."""
    if compiled:
        for found in _PYX_IMPORT.finditer(text):
            names = [name.split()[0] for name in (found[2] or "").replace(")", "").split(",") if name.strip()]
            yield from ((f"{found[1]}.{name}", False) for name in names)
            if found[3]:
                yield found[3], False
        return
    tree = ast.parse(text)
    types = of_types_alone(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node in types) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((f"{node.module}.{alias.name}", node in types) for alias in node.names)


def forbidden(package: str, text: str, *, compiled: bool = False) -> list[str]:
    """The forbidden imports of the kernel in modules of ``package``."""
    found = []
    for name, for_types in imports_of(text, compiled=compiled):
        if not name.startswith("gantrymq.kernel."):
            continue
        inside = name.removeprefix("gantrymq.kernel.")
        allowed = (package, *ALLOWED[package], *(ALLOWED_AS_TYPES.get(package, ()) if for_types else ()))
        if not any(inside == one or inside.startswith(f"{one}.") for one in allowed):
            found.append(inside)
    return found


def test_every_kernel_package_has_a_layer() -> None:
    packages = {path.parent.name for path in (ROOT / "kernel").glob("*/__init__.py")}
    assert packages == set(ALLOWED)


@pytest.mark.parametrize("package", ALLOWED)
def test_a_package_imports_only_what_its_layer_may(package: str) -> None:
    sources = [
        path for path in (ROOT / "kernel" / package).rglob("*") if path.suffix in (".py", ".pyx", ".pxi", ".pxd")
    ]
    assert sources
    for path in sources:
        assert forbidden(package, path.read_text(), compiled=path.suffix != ".py") == [], path


@pytest.mark.parametrize(
    ("package", "text", "found"),
    [
        ("store", "from gantrymq.kernel.network.sweep import Sweep", ["network.sweep.Sweep"]),
        ("store", "def late():\n    import gantrymq.kernel.broker", ["broker"]),
        ("store", "from gantrymq.kernel import config", ["config"]),
        ("fast", "from gantrymq.kernel.store.store import Store", ["store.store.Store"]),
        ("fast", "from gantrymq.kernel.network.connection import Connection", ["network.connection.Connection"]),
        ("env", "from gantrymq.kernel.store.log.record import Record", ["store.log.record.Record"]),
        ("fast", "from gantrymq.kernel.store.log.record import Record", []),
        ("store", "from gantrymq.kernel.env import Env\nfrom gantrymq.remoting.codes import RequestCode", []),
    ],
)
def test_a_forbidden_import_is_found(package: str, text: str, found: list[str]) -> None:
    assert forbidden(package, text) == found
    if "def" not in text:
        assert forbidden(package, text, compiled=True) == found


def test_imports_for_annotations_only_are_distinguished() -> None:
    text = "if TYPE_CHECKING:\n    from gantrymq.kernel.network.connection import Connection"
    assert forbidden("fast", text) == []
    assert forbidden("store", text) == ["network.connection.Connection"]

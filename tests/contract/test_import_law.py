"""Who may import whom, held on the source itself; the kernel stays free of features."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(
    path for folder in ("kernel", "plugins", "gantrymq") for path in (ROOT / folder).rglob("*.py")
    if not any(part.is_symlink() for part in path.parents)
)  # fmt: skip


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[0] != "gantrymq":
        parts = ("gantrymq", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            if node.module == "gantrymq":
                yield from ((f"gantrymq.{alias.name}", node.lineno) for alias in node.names)
            else:
                yield str(node.module), node.lineno


def allowed(importer: str) -> tuple[str, ...] | None:
    """The prefixes of ours that ``importer`` may import; None: all."""
    parts = importer.split(".")
    area = parts[1] if len(parts) > 1 else ""
    if area == "remoting":
        return ("gantrymq.remoting",)
    if area == "kernel":
        return ("gantrymq.kernel", "gantrymq.remoting", "gantrymq._version")
    if area == "plugins":
        own = parts[2] if len(parts) > 2 else ""
        # `interfaces` has the protocols by which plugins know each other.
        ours = (f"gantrymq.plugins.{own}", f"gantrymq.{own}", "gantrymq.plugins.interfaces")
        return (*ours, "gantrymq.kernel", "gantrymq.remoting")
    if area in ("client", "nameserver"):
        return (f"gantrymq.{area}", "gantrymq.remoting", "gantrymq.message", "gantrymq.errors", "gantrymq._version")
    if area in ("message", "sync"):
        return ("gantrymq.message", "gantrymq.client", "gantrymq.remoting")
    if area == "failover":
        return ("gantrymq.failover", "gantrymq.client", "gantrymq.remoting")
    if area == "operations":
        return ("gantrymq.operations", "gantrymq.client", "gantrymq.message", "gantrymq.remoting")
    if area == "spark":
        return ("gantrymq.spark", "gantrymq.client", "gantrymq.remoting", "gantrymq.message")
    return None


PLUGINS = [
    *(path for path in SOURCES if module_of(path).startswith("gantrymq.plugins.")),
    *sorted((ROOT / "examples" / "plugins").rglob("*.py")),
]


@pytest.mark.parametrize("path", PLUGINS, ids=lambda path: path.stem if "examples" in path.parts else module_of(path))
def test_plugins_use_only_documented_names_of_the_broker(path: Path) -> None:
    """``gantrymq.kernel.api`` has them; mypy refuses any other name of that type."""
    for name, line in imports_of(path):
        assert name != "gantrymq.kernel.broker", f"{path}:{line}: import Broker from gantrymq.kernel.api"


COMPILED = sorted(path for path in (ROOT / "plugins").rglob("_*.p[yx]*") if path.suffix in (".pyx", ".pxi"))


@pytest.mark.parametrize("path", COMPILED, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_compiled_code_of_plugins_does_not_access_the_broker(path: Path) -> None:
    """They are given what they need, so that there is nothing for mypy to miss."""
    assert not re.search(r"\bbroker\.\w", path.read_text(), re.IGNORECASE)


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_a_module_imports_only_what_its_layer_may(path: Path) -> None:
    prefixes = allowed(module_of(path))
    for name, line in imports_of(path):
        assert name.partition(".")[0] not in ("support", "tests"), f"{path}:{line}: {name} is not in the wheel"
        is_test = module_of(path).startswith("gantrymq.testing")
        assert is_test or not name.startswith("gantrymq.testing"), f"{path}:{line}: {name} is for tests"
        assert name.partition(".")[0] not in ("kernel", "plugins"), f"{path}:{line}: say gantrymq.{name}"
        if prefixes is not None and name.partition(".")[0] == "gantrymq":
            assert any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes), f"{path}:{line}: {name}"


SYSTEM_MODULES = {"os", "time", "random", "io", "pathlib", "shutil", "tempfile", "subprocess", "mmap", "fcntl"}
SYSTEM_CALLS = {"open", "eval", "exec", "input", "print", "__import__"}


@pytest.mark.parametrize(
    "path",
    [path for path in SOURCES if module_of(path).startswith(("gantrymq.kernel", "gantrymq.plugins"))],
    ids=module_of,
)
def test_only_the_environment_module_accesses_the_operating_system(path: Path) -> None:
    if module_of(path) in ("gantrymq.kernel.env", "gantrymq.kernel.env.system"):
        return
    for name, line in imports_of(path):
        assert name.partition(".")[0] not in SYSTEM_MODULES, f"{path}:{line}: {name}; ask kernel/env/"
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in SYSTEM_CALLS, f"{path}:{node.lineno}: {node.func.id}(); ask kernel/env/"


FEATURES = ("delay", "slave", "half", "retry", "transaction")


def test_the_kernel_imports_no_plugin() -> None:
    """Flag constants and prose may name one; identifiers and code may not."""
    for path in SOURCES:
        if not module_of(path).startswith("gantrymq.kernel"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                name = node.name
            lowered = name.lower()
            assert name.isupper() or not any(feature in lowered for feature in FEATURES), (
                f"{path}:{node.lineno}: {name}"
            )


FACADES = ("gantrymq.kernel", "gantrymq.kernel.fast")
"""Packages that offer names of their modules: the hook markers, and whichever twin runs."""


def defined_names(path: Path) -> set[str]:
    """What a module defines itself: classes, functions, assigned names; not what it imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def test_a_name_is_imported_from_the_module_that_defines_it() -> None:
    """No name has a second address, so that it is found, moved and replaced in one place."""
    paths = {module_of(path): path for path in SOURCES if module_of(path).startswith("gantrymq.kernel")}
    own = {module: defined_names(path) for module, path in paths.items() if module not in FACADES}
    tests = [path for folder in ("tests", "benchmarks", "examples") for path in (ROOT / folder).rglob("*.py")]
    for path in (*SOURCES, *tests):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module in own:
                for alias in node.names:
                    is_module = f"{node.module}.{alias.name}" in paths
                    assert is_module or alias.name in own[node.module], (
                        f"{path}:{node.lineno}: {node.module} only imports {alias.name}; import it from its own module"
                    )

"""The permitted imports between layers, checked in the source; the kernel is free of features."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import attrs

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


@attrs.frozen
class Facts:
    """The facts that the rules need of a module, each with its line; a syntax tree would take a megabyte."""

    imports: list[tuple[str, int]] = attrs.Factory(list)
    """Imported modules."""
    names: list[tuple[str, str, int]] = attrs.Factory(list)
    """Names imported from a module: module, name."""
    calls: list[tuple[str, int]] = attrs.Factory(list)
    """Functions called by their bare name."""
    identifiers: list[tuple[str, int]] = attrs.Factory(list)
    """Names that are read, written, or defined as a class or a function."""
    defined: set[str] = attrs.Factory(set)
    """Classes, functions and assigned names; not what is imported."""


@cache
def facts_of(path: Path) -> Facts:
    facts = Facts()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import():
                facts.imports.extend((alias.name, node.lineno) for alias in node.names)
            case ast.ImportFrom():
                assert node.level == 0, f"{path}:{node.lineno}: relative import"
                facts.names.extend((str(node.module), alias.name, node.lineno) for alias in node.names)
                if node.module == "gantrymq":
                    facts.imports.extend((f"gantrymq.{alias.name}", node.lineno) for alias in node.names)
                else:
                    facts.imports.append((str(node.module), node.lineno))
            case ast.Name():
                facts.identifiers.append((node.id, node.lineno))
                if isinstance(node.ctx, ast.Store):
                    facts.defined.add(node.id)
            case ast.Attribute():
                facts.identifiers.append((node.attr, node.lineno))
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                facts.identifiers.append((node.name, node.lineno))
                facts.defined.add(node.name)
            case ast.Call(func=ast.Name(id=name)):
                facts.calls.append((name, node.lineno))
    return facts


def imports_of(path: Path) -> list[tuple[str, int]]:
    return facts_of(path).imports


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
        # The broker does not import the module with a plugin's commands.
        for_commands = ("gantrymq.cli.connecting",) if parts[3:] == ["command"] else ()
        return (*ours, *for_commands, "gantrymq.kernel", "gantrymq.remoting")
    if area in ("client", "nameserver"):
        return (f"gantrymq.{area}", "gantrymq.remoting", "gantrymq.message", "gantrymq.errors", "gantrymq._version")
    if area in ("message", "sync"):
        return ("gantrymq.message", "gantrymq.client", "gantrymq.remoting")
    if area == "failover":
        return ("gantrymq.failover", "gantrymq.client", "gantrymq.remoting")
    if area == "operations":
        return ("gantrymq.operations", "gantrymq.client", "gantrymq.message", "gantrymq.remoting")
    if area == "maintenance":
        return ("gantrymq.maintenance", "gantrymq.kernel", "gantrymq.plugins", "gantrymq.remoting")
    if area == "spark":
        return ("gantrymq.spark", "gantrymq.client", "gantrymq.remoting", "gantrymq.message")
    return None


PLUGINS = [
    *(path for path in SOURCES if module_of(path).startswith("gantrymq.plugins.")),
    *sorted((ROOT / "examples" / "plugins").rglob("*.py")),
]


def test_plugins_use_only_documented_names_of_the_broker() -> None:
    """``gantrymq.kernel.api`` has them; mypy refuses any other name of that type."""
    assert len(PLUGINS) > 100
    offenders = [
        f"{path}:{line}: import Broker from gantrymq.kernel.api"
        for path in PLUGINS
        for name, line in imports_of(path)
        if name == "gantrymq.kernel.broker"
    ]
    assert offenders == []


def test_compiled_code_of_plugins_does_not_access_the_broker() -> None:
    """They get their dependencies as arguments, so that mypy checks all of them."""
    compiled = [path for path in (ROOT / "plugins").rglob("_*.p[yx]*") if path.suffix in (".pyx", ".pxi")]
    assert compiled
    assert [path for path in compiled if re.search(r"\bbroker\.\w", path.read_text(), re.IGNORECASE)] == []


def offenses_of(path: Path) -> Iterator[str]:
    """The imports of a module that its layer may not have."""
    prefixes = allowed(module_of(path))
    is_test = module_of(path).startswith("gantrymq.testing")
    for name, line in imports_of(path):
        top = name.partition(".")[0]
        if top in ("support", "tests"):
            yield f"{path}:{line}: {name} is not in the wheel"
        if not is_test and name.startswith("gantrymq.testing"):
            yield f"{path}:{line}: {name} is for tests"
        if top in ("kernel", "plugins"):
            yield f"{path}:{line}: say gantrymq.{name}"
        is_allowed = prefixes is None or any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)
        if top == "gantrymq" and not is_allowed:
            yield f"{path}:{line}: {name}"


def test_a_module_imports_only_what_its_layer_may() -> None:
    assert len(SOURCES) > 400
    assert [offense for path in SOURCES for offense in offenses_of(path)] == []


SYSTEM_MODULES = {"os", "time", "random", "io", "pathlib", "shutil", "tempfile", "subprocess", "mmap", "fcntl"}
SYSTEM_CALLS = {"open", "eval", "exec", "input", "print", "__import__"}


def test_only_the_environment_module_accesses_the_operating_system() -> None:
    offenders = [
        f"{path}:{line}: {name}; ask kernel/env/"
        for path in SOURCES
        if module_of(path).startswith(("gantrymq.kernel", "gantrymq.plugins"))
        and module_of(path) not in ("gantrymq.kernel.env", "gantrymq.kernel.env.memory", "gantrymq.kernel.env.system")
        for name, line in (
            *((name, line) for name, line in imports_of(path) if name.partition(".")[0] in SYSTEM_MODULES),
            *((f"{name}()", line) for name, line in facts_of(path).calls if name in SYSTEM_CALLS),
        )
    ]
    assert offenders == []


FEATURES = ("delay", "slave", "half", "retry", "transaction")


def test_the_kernel_imports_no_plugin() -> None:
    """Flag constants and prose may name one; identifiers and code may not."""
    offenders = [
        f"{path}:{line}: {name}"
        for path in SOURCES
        if module_of(path).startswith("gantrymq.kernel")
        for name, line in facts_of(path).identifiers
        if not name.isupper() and any(feature in name.lower() for feature in FEATURES)
    ]
    assert offenders == []


FACADES = ("gantrymq.kernel", "gantrymq.kernel.fast")
"""Packages that offer names of their modules: the hook markers, and whichever twin runs."""


def test_a_name_is_imported_from_the_module_that_defines_it() -> None:
    """Each name has one import path, so that it is found, moved and replaced in one place."""
    paths = {module_of(path): path for path in SOURCES if module_of(path).startswith("gantrymq.kernel")}
    own = {module: facts_of(path).defined for module, path in paths.items() if module not in FACADES}
    tests = [
        path
        for folder in ("tests", "benchmarks", "examples")
        for path in (ROOT / folder).rglob("*.py")
        if "gantrymq.kernel" in path.read_text()
    ]
    offenders = [
        f"{path}:{line}: {module} only imports {name}; import it from its own module"
        for path in (*SOURCES, *tests)
        for module, name, line in facts_of(path).names
        if module in own and f"{module}.{name}" not in paths and name not in own[module]
    ]
    assert offenders == []

"""The reference of batches lists every column and method of each batch, and every import of the example plugins."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from gantrymq.kernel import hookspecs
from gantrymq.kernel.acks import AckedBatch
from gantrymq.kernel.batch import AppendBatch, DispatchBatch, Pull, PullBatch
from gantrymq.kernel.changes import DeadLettersBatch, GroupsBatch, OffsetsBatch, TopicsBatch
from gantrymq.kernel.delivery import DeliverBatch
from gantrymq.kernel.network.connection import ConnectionsBatch
from gantrymq.kernel.plugin_state import SavedState
from gantrymq.kernel.processors import Request, RequestBatch
from gantrymq.kernel.stopped_store import StoppedStore

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "batches.md"
CLASSES = (
    AppendBatch,
    DispatchBatch,
    DeliverBatch,
    RequestBatch,
    AckedBatch,
    ConnectionsBatch,
    TopicsBatch,
    GroupsBatch,
    OffsetsBatch,
    DeadLettersBatch,
    PullBatch,
    Request,
    Pull,
    SavedState,
    StoppedStore,
)
WRITTEN_BY_AUTHORS = (
    *sorted((ROOT / "examples" / "plugins").glob("*/gantrymq_*.py")),
    *sorted((ROOT / "gantrymq" / "cli" / "plugin_template").glob("*.py.tmpl")),
)


def section_of(name: str) -> str:
    return re.split(r"^#+ ", PAGE.read_text().partition(f"## `{name}`")[2], maxsplit=1, flags=re.MULTILINE)[0]


def public_names(kind: type) -> set[str]:
    fields = {field.name for field in attrs.fields(kind)} if attrs.has(kind) else set(getattr(kind, "__slots__", ()))
    own = {name for name, value in vars(kind).items() if inspect.isfunction(value) or isinstance(value, property)}
    return {name for name in fields | own if not name.startswith("_")}


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_each_public_name_of_a_batch_is_listed(kind: type) -> None:
    first_cells = re.findall(r"^\| (`.*?`) \|", section_of(kind.__name__), re.MULTILINE)
    listed = {name for cell in first_cells for name in re.findall(r"`(\w+)", cell)}
    assert listed == public_names(kind)


def test_each_class_of_a_batch_that_a_hook_gets_has_a_section() -> None:
    annotations = {
        parameter.annotation
        for spec in vars(hookspecs).values()
        if hasattr(spec, f"{hookspecs.PROJECT}_spec")
        for parameter in inspect.signature(spec).parameters.values()
        if parameter.name in {"batch", "state", "store"}
    }
    assert {kind for kind in annotations if not section_of(kind)} == set()


def imports_of(path: Path) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(re.sub(r"\$\{?\w+\}?|\{\{.*?\}\}", "X", path.read_text()))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gantrymq."):
            for name in node.names:
                yield str(node.module), name.name


@pytest.mark.parametrize("path", WRITTEN_BY_AUTHORS, ids=lambda path: path.name)
def test_each_import_of_an_example_plugin_is_listed(path: Path) -> None:
    table = PAGE.read_text().partition("# Helper functions")[2]
    rows = re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)
    listed: set[str] = set()
    for row in rows:
        first, *others = re.findall(r"`([\w.]+)`", row)
        module = first.rpartition(".")[0]
        listed |= {first, *(each if "." in each else f"{module}.{each}" for each in others)}
    missing = [f"{module}.{name}" for module, name in imports_of(path) if not {module, f"{module}.{name}"} & listed]
    assert missing == []

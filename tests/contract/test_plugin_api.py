"""The plugin API of this version keeps all its names: ``plugin_api_1.txt`` lists them.

A name that is missing breaks plugins: bring it back, or mark it as deprecated for two minor releases, raise
``GANTRYMQ_API`` and begin a new list (``docs/reference/plugin-api.md``, Versions). A new name goes into the list.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs

from gantrymq.cli import connecting
from gantrymq.kernel import api, hookspecs
from gantrymq.kernel.acks import AckedBatch
from gantrymq.kernel.batch import AppendBatch, DispatchBatch, Pull, PullBatch, Source, Trait
from gantrymq.kernel.changes import DeadLettersBatch, GroupsBatch, OffsetsBatch, TopicsBatch
from gantrymq.kernel.config import fields
from gantrymq.kernel.delivery import DeliverBatch
from gantrymq.kernel.metrics import Metrics
from gantrymq.kernel.network.connection import ConnectionsBatch
from gantrymq.kernel.plugin_state import SavedState
from gantrymq.kernel.processors import Heavy, Request, RequestBatch
from gantrymq.kernel.stopped_store import StoppedStore
from gantrymq.kernel.store import reading
from gantrymq.kernel.store.log.record import Record
from gantrymq.kernel.tasks import BackgroundTask
from gantrymq.plugins import interfaces
from gantrymq.remoting import properties

LIST = Path(__file__).with_name(f"plugin_api_{hookspecs.GANTRYMQ_API}.txt")
CLASSES = (
    AppendBatch, DispatchBatch, DeliverBatch, RequestBatch, AckedBatch, ConnectionsBatch, TopicsBatch, GroupsBatch,
    OffsetsBatch, DeadLettersBatch, PullBatch, Request, Pull, SavedState, Record, Metrics, BackgroundTask, Heavy,
    Source, Trait, StoppedStore,
)  # fmt: skip
FUNCTIONS: dict[ModuleType, tuple[str, ...]] = {
    reading: ("read_messages", "message_stored_at"),
    properties: ("decode_properties", "encode_properties", "find_property", "replace_properties"),
    connecting: (
        "nameserver_option",
        "optional_nameserver_option",
        "context_option",
        "with_client",
        "connect_settings",
        "plain_settings",
    ),
    fields: ("address", "duration", "filled", "forget_secrets", "number", "plain", "secret", "size"),
}


def call_of(name: str, function: Any) -> str:
    """The name with those of its arguments, by which a plugin may pass them."""
    arguments = [each for each in inspect.signature(function).parameters if each != "self"]
    return f"{name}({', '.join(arguments)})"


def names_of(kind: type) -> Iterator[str]:
    """The public attributes and methods of a class."""
    attributes = (
        {field.name for field in attrs.fields(kind)} if attrs.has(kind) else set(getattr(kind, "__slots__", ()))
    )
    attributes |= {name for name in getattr(kind, "__annotations__", {}) if not name.startswith("_")}
    for name, value in vars(kind).items():
        if name.startswith("_"):
            continue
        if inspect.isfunction(value):
            attributes.discard(name)
            yield call_of(f"{kind.__name__}.{name}", value)
        else:
            attributes.add(name)
    yield from (f"{kind.__name__}.{name}" for name in attributes if not name.startswith("_"))


def protocols_of(module: ModuleType) -> Iterator[str]:
    for kind in vars(module).values():
        if inspect.isclass(kind) and kind.__module__ == module.__name__:
            yield from names_of(kind)


def names() -> list[str]:
    found = {
        f"hook {call_of(name, spec)}"
        for name, spec in vars(hookspecs).items()
        if hasattr(spec, f"{hookspecs.PROJECT}_spec")
    }
    found.update(protocols_of(api), protocols_of(interfaces), *map(names_of, CLASSES))
    for module, functions in FUNCTIONS.items():
        found |= {call_of(f"{module.__name__}.{name}", getattr(module, name)) for name in functions}
    return sorted(found)


def arguments_by_name(lines: list[str]) -> dict[str, set[str]]:
    parts = [line.partition("(") for line in lines]
    return {name: set(rest.rstrip(")").split(", ")) - {""} for name, _, rest in parts}


def removed_from(listed: list[str], present: list[str]) -> list[str]:
    """The listed names that are not present with all their arguments; more arguments are no harm."""
    found = arguments_by_name(present)
    known = arguments_by_name(listed)
    return [name for name, arguments in known.items() if name not in found or not arguments <= found[name]]


def test_the_plugin_api_keeps_all_names_of_its_version() -> None:
    removed = removed_from(LIST.read_text().splitlines(), names())
    assert removed == [], f"removed from version {hookspecs.GANTRYMQ_API}: {__doc__}"


def test_a_removed_name_and_a_removed_argument_are_found() -> None:
    present = ["A.b", "A.call(one, two, three)", "hook x(batch)"]
    assert removed_from(["A.b", "A.call(one, two)", "hook x(batch)"], present) == []
    assert removed_from(["A.c", "A.call(one, four)", "hook y(batch)"], present) == ["A.c", "A.call", "hook y"]


def test_new_names_of_the_plugin_api_are_listed() -> None:
    assert sorted(set(names()) - set(LIST.read_text().splitlines())) == [], f"add these lines to {LIST.name}"

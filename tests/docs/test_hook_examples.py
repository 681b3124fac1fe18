"""Each example on the page of the hooks runs in a broker, which calls its hooks."""

from __future__ import annotations

import functools
import inspect
import re
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import click
import pytest
import structlog

from gantrymq import Message
from gantrymq.kernel import hookimpl, hookspecs
from gantrymq.kernel.env.system import SystemEnv
from gantrymq.kernel.metrics import Metrics
from gantrymq.kernel.stopped_store import StoppedStore
from gantrymq.testing import filterkit
from gantrymq.testing.plugin_broker import PluginBroker

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "hooks.md"
MARKER = f"{hookspecs.PROJECT}_impl"
SECTION = re.compile(r"^## `(\w+)\(.*?(?=^#+ |\Z)", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^<!-- plugin -->\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ON_DEMAND = {
    "add_commands": lambda: {"cli": click.Group()},
    "collect_metrics": lambda: {"metrics": Metrics(100)},
    "runtime_info": dict,
    "retention_floor": dict,
}
"""Hooks that the broker calls at a request of an administrator, a scrape or a check of the disk: their arguments."""


class Example(NamedTuple):
    hook: str
    number: int
    source: str


def examples() -> list[Example]:
    return [
        Example(section[1], number, block)
        for section in SECTION.finditer(PAGE.read_text())
        for number, block in enumerate(BLOCK.findall(section[0]))
    ]


def recorded(function: Callable[..., Any], called: set[str]) -> Callable[..., Any]:
    @functools.wraps(function)
    def record(*arguments: Any, **others: Any) -> Any:
        called.add(function.__name__)
        return function(*arguments, **others)

    return record


def plugin_of(source: str, called: set[str]) -> type[Any]:
    """The class of the example, or one whose methods are the functions of the example; its hooks are recorded."""
    place: dict[str, Any] = {"attrs": attrs, "hookimpl": hookimpl, "log": structlog.get_logger("gantrymq.example")}
    exec(compile(textwrap.dedent(source), "<page>", "exec", dont_inherit=True), place)
    hooks = {name: value for name, value in place.items() if inspect.isfunction(value) and hasattr(value, MARKER)}
    if hooks:
        kind = type("Audit", (), {"name": "audit", **hooks})
    else:
        (kind,) = (
            value
            for value in place.values()
            if inspect.isclass(value) and any(hasattr(each, MARKER) for each in vars(value).values())
        )
    for name, value in list(vars(kind).items()):
        if hasattr(value, MARKER):
            setattr(kind, name, recorded(value, called))
    return kind


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)


def check_files(plugin: Any, folder: Path) -> None:
    """Call the hook on a store whose file is ahead of the log; it proposes a repair."""
    (folder / "config").mkdir()
    (folder / "config" / "audit.json").write_text('{"upTo": 500}')
    store = StoppedStore(SystemEnv(), str(folder), is_clean=True, is_foreign=False, log_end=400)
    plugin.check_files(store, None)
    (found,) = store.findings
    assert found.change is not None
    assert found.change.contents == {"config/audit.json": b'{"upTo": 400}'}


@pytest.mark.parametrize("example", examples(), ids=lambda each: f"{each.hook}-{each.number}")
@pytest.mark.slow
def test_an_example_of_a_hook_runs_in_a_broker(example: Example, tmp_path: Path) -> None:
    called: set[str] = set()
    kind = plugin_of(example.source, called)
    hooks = {name for name, value in vars(kind).items() if hasattr(value, MARKER)}
    assert example.hook in hooks
    disable = [slot] if (slot := getattr(kind, "slot", None)) else []
    running = PluginBroker(tmp_path, [kind], disable=disable)
    try:
        with running.client.producer() as producer:
            for number in range(3):
                producer.send(Message("orders", b"three apples", keys=(f"order-{number % 2}",)))
        with running.client.consumer("orders", group="billing", start="first") as consumer:
            first, *_ = consumer.next_batch(timeout=30)
            if "dead_lettered" in hooks:
                first.retry(-1)
            if "hold_pulls" in hooks:
                wait_for(lambda: "hold_pulls" in called)
        running.restart()
        manager = running.cluster.broker.manager
        for hook in hooks & ON_DEMAND.keys():
            arguments = {"broker": running.cluster.broker, **ON_DEMAND[hook]()}
            for info, call in manager.calls(hook, **arguments):
                if isinstance(info.plugin, kind):
                    call()
    finally:
        running.stop()
    if "check_files" in hooks:
        check_files(kind(), tmp_path)
    assert called == hooks


def test_the_example_of_a_filter_lets_entries_with_an_unknown_tag_pass() -> None:
    (example,) = (each for each in examples() if each.hook == "register_filters")
    compilers = plugin_of(example.source, set())().register_filters(None)
    for compiler in compilers.values():
        case = filterkit.Filter(compiler, examples=[("*", {}, True)])
        filterkit.an_entry_with_an_unknown_tag_passes(case)
        filterkit.properties_of_any_bytes_are_decided(case)


def test_each_hook_has_an_example() -> None:
    specified = {name for name, value in vars(hookspecs).items() if hasattr(value, f"{hookspecs.PROJECT}_spec")}
    assert {each.hook for each in examples()} == specified

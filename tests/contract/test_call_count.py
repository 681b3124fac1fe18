"""A turn calls each hook once: 512 messages cost as many calls as one, and a plugin costs one call."""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from gantrymq.kernel import hookimpl
from gantrymq.kernel.batch import AppendBatch, Source, Trait
from gantrymq.kernel.broker import Broker
from gantrymq.kernel.loading import load_plugins
from gantrymq.plugins import DEFAULT_PLUGINS
from gantrymq.testing.harness import make_broker, run_broker


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each default plugin's implementation of each hook was entered."""
    counted: Counter[str] = Counter()

    def counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*arguments: Any) -> Any:
            counted[name] += 1
            return function(*arguments)

        return call

    for info in load_plugins(DEFAULT_PLUGINS).plugins:
        for hook in info.hooks:
            kind = type(info.plugin)
            monkeypatch.setattr(kind, hook, counting(f"{info.name}.{hook}", getattr(kind, hook)))
    return counted


async def calls_of_a_turn(broker: Broker, rows: int, calls: Counter[str]) -> Counter[str]:
    """Which hooks one batch of ``rows`` messages enters, from the send to the wake-up of the readers."""
    calls.clear()
    done: list[AppendBatch] = []
    batch = AppendBatch(done=done.append)
    for number in range(rows):
        batch.add("T", number % 4, b"body", b"TAGS\x01a")
    broker.append(batch)
    broker.log.flush()
    broker.progress()
    assert done == [batch]
    assert not any(batch.statuses)
    return calls.copy()


@pytest.mark.trio
async def test_a_turn_calls_the_same_hooks_for_1_and_512_messages(tmp_path: Path, calls: Counter[str]) -> None:
    async with run_broker(make_broker(tmp_path / "store")) as broker:
        one = await calls_of_a_turn(broker, 1, calls)
        many = await calls_of_a_turn(broker, 512, calls)
        assert one == many
        assert one["produce.before_append"] == 1
        assert one["longpoll.dispatch"] == 1


class Looking:
    """Looks at what a batch is about, and leaves it alone."""

    name = "looking"

    @hookimpl
    def before_append(self, batch: AppendBatch) -> None:
        if batch.traits & Trait.DELAY:
            raise AssertionError("there is no delayed message")


def looking(count: int) -> list[Any]:
    return [type("Looking", (Looking,), {"name": f"looking{number}"}) for number in range(count)]


def functions_called(broker: Broker, rows: int) -> Counter[str]:
    """The Python functions that one batch enters, by their files and names."""
    found: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            found[f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_qualname}"] += 1

    batch = AppendBatch(source=Source.CLIENT)
    for number in range(rows):
        batch.add("T", number % 4, b"body", b"TAGS\x01a")
    sys.setprofile(note)
    try:
        broker.append(batch)
    finally:
        sys.setprofile(None)
    broker.log.flush()
    broker.progress()
    return found


@pytest.mark.trio
@pytest.mark.parametrize("rows", [1, 512])
async def test_ten_observing_plugins_cost_ten_calls_of_their_own_and_nothing_else(tmp_path: Path, rows: int) -> None:
    found = []
    for count in (0, 1, 10):
        async with run_broker(make_broker(tmp_path / f"store-{count}", enable=looking(count))) as broker:
            functions_called(broker, rows)  # creates the queues and the files
            found.append(functions_called(broker, rows))
    own = "test_call_count.py:Looking.before_append"
    assert [each.pop(own, 0) for each in found] == [0, 1, 10]
    assert found[0] == found[1] == found[2]


@pytest.mark.trio
async def test_observing_hooks_cost_nothing_where_no_plugin_has_them(tmp_path: Path) -> None:
    def observed(calls: Counter[str]) -> list[str]:
        return [name for name in calls if "Observers" in name or "acked" in name.lower()]

    for disable, expected in ((["stats"], 0), ([], 1)):
        async with run_broker(make_broker(tmp_path / f"store-{expected}", disable=disable)) as broker:
            batch = AppendBatch()
            batch.add("T", 0, b"body", b"", wait=False)  # is answered at once
            found: Counter[str] = Counter()

            def note(frame: FrameType, event: str, _argument: object, found: Counter[str] = found) -> None:
                found[frame.f_code.co_qualname] += event == "call"

            sys.setprofile(note)
            try:
                broker.append(batch)
                broker.progress()
            finally:
                sys.setprofile(None)
            assert bool(observed(found)) == bool(expected), observed(found)

"""The cost of a hook is paid once a sweep: 512 messages call as many hooks as one does."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gantrymq.kernel.batch import AppendBatch
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


async def calls_of_a_sweep(broker: Broker, rows: int, calls: Counter[str]) -> Counter[str]:
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
async def test_one_message_and_512_call_the_same_hooks(tmp_path: Path, calls: Counter[str]) -> None:
    async with run_broker(make_broker(tmp_path / "store")) as broker:
        one = await calls_of_a_sweep(broker, 1, calls)
        many = await calls_of_a_sweep(broker, 512, calls)
        assert one == many
        assert one["produce.before_append"] == 1
        assert one["longpoll.dispatch"] == 1

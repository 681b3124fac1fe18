"""The cost of a hook is paid once a sweep: 512 messages call as many hooks as one does."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gantrymq.kernel.batch import AppendBatch
from gantrymq.kernel.broker import Broker
from gantrymq.testing.harness import make_broker, run_broker


async def calls_of_a_sweep(broker: Broker, rows: int) -> Counter[str]:
    """Which hooks one batch of ``rows`` messages enters, from the send to the wake-up of the readers."""
    calls: Counter[str] = Counter()

    def before(name: str, implementations: Any, arguments: Any) -> None:
        calls[name] += 1

    undo = broker.manager._manager.add_hookcall_monitoring(before, lambda *arguments: None)
    done: list[AppendBatch] = []
    batch = AppendBatch(done=done.append)
    for number in range(rows):
        batch.add("T", number % 4, b"body", b"TAGS\x01a")
    broker.append(batch)
    broker.log.flush()
    broker.progress()
    undo()
    assert done == [batch]
    assert not any(batch.statuses)
    return calls


@pytest.mark.trio
async def test_one_message_and_512_call_the_same_hooks(tmp_path: Path) -> None:
    async with run_broker(make_broker(tmp_path / "store")) as broker:
        one = await calls_of_a_sweep(broker, 1)
        many = await calls_of_a_sweep(broker, 512)
        assert one == many
        assert one["before_append"] == 1
        assert one["dispatch"] == 1

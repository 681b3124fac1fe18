"""The count of messages lost by a forced deletion, with many queues and groups."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from gantrymq.kernel.env.system import SystemEnv
from gantrymq.plugins.offsets.table import Offsets
from gantrymq.plugins.retention.loss import Begins, Loss, loss_since

pytestmark = [pytest.mark.trio, pytest.mark.once]

TOPICS, QUEUES, GROUPS = 300, 8, 3


class CountingOffsets(Offsets):
    """Counts the walks over the whole table."""

    def __init__(self, path: Path) -> None:
        super().__init__(SystemEnv(), str(path), 10**6, lambda topic, queue_id: 10**6)
        self.walks: Counter[str] = Counter()

    def pairs(self) -> list[tuple[str, str]]:
        self.walks["pairs"] += 1
        return super().pairs()

    def groups_of(self, topic: str) -> list[str]:
        self.walks["groups_of"] += 1
        return super().groups_of(topic)


@pytest.fixture
def offsets(tmp_path: Path) -> CountingOffsets:
    """Each group has read 5 messages of one queue of each topic; the group ``done`` has read all of them."""
    table = CountingOffsets(tmp_path / "consumerOffset.json")
    for topic in range(TOPICS):
        for group in range(GROUPS):
            table.commit(f"g{group}", f"t{topic}", topic % QUEUES, 5)
        table.commit("done", f"t{topic}", 0, 100)
    return table


def after(offsets: Offsets | None) -> tuple[Any, Begins]:
    """A broker whose queues have lost their first 10 messages, and where they began before."""
    queues = [
        SimpleNamespace(topic=f"t{topic}", queue_id=queue_id, min_offset=10)
        for topic in range(TOPICS)
        for queue_id in range(QUEUES)
    ]
    broker = SimpleNamespace(queues=queues, registry=SimpleNamespace(find=lambda interface: offsets))
    return broker, {(queue.topic, queue.queue_id): 0 for queue in queues}


async def test_the_table_of_offsets_is_walked_once_however_many_queues_lost_messages(offsets: CountingOffsets) -> None:
    broker, before = after(offsets)
    assert await loss_since(broker, before) == Loss(TOPICS * QUEUES * 10, ["g0", "g1", "g2"])
    assert offsets.walks == {"pairs": 1}


async def test_other_tasks_run_while_the_loss_is_counted(offsets: CountingOffsets) -> None:
    broker, before = after(offsets)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        await trio.lowlevel.checkpoint()
        before_turns = turns
        await loss_since(broker, before)
        assert turns - before_turns >= TOPICS * QUEUES // 1000
        nursery.cancel_scope.cancel()


async def test_without_a_table_of_offsets_only_the_messages_are_counted() -> None:
    broker, before = after(None)
    assert await loss_since(broker, before) == Loss(TOPICS * QUEUES * 10, [])

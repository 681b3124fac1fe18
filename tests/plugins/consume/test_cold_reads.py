"""A pull that waits for the disk does not block other clients and always makes progress."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gantrymq.kernel.filters import MessageFilter
from gantrymq.kernel.store.log.windows import LogWindows, NotCached
from gantrymq.kernel.store.queues.consume_queue import ConsumeQueue
from gantrymq.kernel.store.store import Store
from gantrymq.plugins.consume.plain import PullLimits
from gantrymq.plugins.consume.read import PullResult, PullStatus, read_queue
from gantrymq.plugins.filter.sql92 import compile_sql92
from gantrymq.plugins.filter.tags import compile_tags
from gantrymq.remoting.records import decode_records
from gantrymq.testing.tinystore import batch_of, commit, open_store
from support.colddisk import Disk

MESSAGES = 60
LIMITS = PullLimits(32, 1 << 20, 32, 1 << 20, 0)
FILTERS = {
    "all": (compile_tags("*"), MESSAGES),
    "tag": (compile_tags("a"), MESSAGES // 2),
    "sql92": (compile_sql92("TAGS = 'a'"), MESSAGES // 2),
    "no match": (compile_sql92("b = 1"), 0),
}


def filled(disk: Disk, between: int) -> tuple[Store, ConsumeQueue]:
    """A store with messages of T, tagged a and b in turn, and as many bytes of another topic between each two."""
    store, _, _ = open_store(disk)
    for number in range(MESSAGES):
        store.append(batch_of([b"%d" % number], properties=b"TAGS\x01" + (b"b" if number % 2 else b"a")))
        if between:
            store.append(batch_of([b"y" * (between // 2)] * 2, topic="U"))
    commit(store)
    store.flush_queues()
    queue = store.queues.get("T", 0)
    assert queue is not None
    disk.cool()
    return store, queue


def pulls(disk: Disk, windows: LogWindows, queue: ConsumeQueue, wanted: MessageFilter) -> Iterator[PullResult]:
    """Pull as a consumer does, up to the end; after each fetch nothing may be read from the disk."""
    offset = 0
    while offset < queue.max_offset:
        try:
            result = read_queue(windows, queue, offset, LIMITS, 512, wanted, wait=False)
        except NotCached as absent:
            absent.fetch()
            disk.reads.clear()
            result = read_queue(windows, queue, offset, LIMITS, 512, wanted, wait=True)
            assert disk.reads == [], "other clients waited"
        assert result.next_offset > offset, "no progress"
        offset = result.next_offset
        yield result


@pytest.mark.parametrize(("wanted", "count"), FILTERS.values(), ids=FILTERS)
def test_scattered_messages_that_are_only_on_the_disk_arrive_once_and_delay_no_other_client(
    wanted: MessageFilter, count: int
) -> None:
    disk = Disk()
    store, queue = filled(disk, between=3400)
    results = list(pulls(disk, LogWindows(disk, store.log), queue, wanted))
    step = MESSAGES // count if count else 1
    bodies = [record.body for result in results for record in decode_records(result.body)]
    assert bodies == [b"%d" % number for number in range(0, step * count, step)]
    assert len(results) <= MESSAGES


@pytest.mark.parametrize("wanted", [compile_tags("*"), compile_sql92("TAGS IS NOT NULL")], ids=["all", "sql92"])
def test_messages_that_lie_together_fill_a_response_after_one_fetch(wanted: MessageFilter) -> None:
    disk = Disk()
    store, queue = filled(disk, between=0)
    first = next(pulls(disk, LogWindows(disk, store.log), queue, wanted))
    assert (first.status, first.messages) == (PullStatus.FOUND, 32)


@pytest.mark.parametrize("wanted", [compile_tags("*"), compile_sql92("TAGS IS NOT NULL")], ids=["all", "sql92"])
def test_a_read_that_may_wait_waits_for_its_first_message_only(wanted: MessageFilter) -> None:
    disk = Disk()
    store, queue = filled(disk, between=3400)
    queue.entries(0, MESSAGES)
    disk.reads.clear()
    result = read_queue(LogWindows(disk, store.log), queue, 5, LIMITS, 512, wanted, wait=True)
    assert (result.status, result.messages, result.next_offset) == (PullStatus.FOUND, 1, 6)
    assert len(disk.reads) == 1

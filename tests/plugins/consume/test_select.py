"""Selecting records by their properties: limits, the next offset, unreadable records."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gantrymq.kernel.filters import RecordFilter
from gantrymq.kernel.layouts import ENTRY
from gantrymq.kernel.store.log.record import Record, encode
from gantrymq.kernel.store.queues.consume_queue import FILLER_SIZE
from gantrymq.plugins.consume import select
from gantrymq.plugins.consume.plain import PullLimits, QueuePart
from gantrymq.plugins.consume.select import select_records


class Marked(RecordFilter):
    """Selects messages with the property ``m=1``, of entries whose tag code is not 9."""

    def __init__(self) -> None:
        self.asked = 0

    def matches(self, tag_code: int) -> bool:
        return tag_code != 9

    def select(self, properties: Sequence[bytes]) -> list[bool]:
        self.asked += len(properties)
        return [raw == b"m\x011" for raw in properties]


class Log:
    """Records one after the other; ``lost`` are the offsets that cannot be read."""

    def __init__(self, marks: Sequence[bool], body: int = 10, codes: dict[int, int] | None = None) -> None:
        self.data = b""
        self.entries = b""
        self.lost: set[int] = set()
        self.bad: list[int] = []
        self.read = 0
        self.offsets: list[int] = []
        for number, mark in enumerate(marks):
            offset = len(self.data)
            raw = encode(Record("t", 0, b"x" * body, b"m\x011" if mark else b"m\x010", offset=offset))
            self.data += raw
            self.offsets.append(offset)
            self.entries += ENTRY.pack(offset, len(raw), (codes or {}).get(number, 0))

    def window(self, number: int, at: int, size: int) -> memoryview | None:
        self.read += size
        return None if at in self.lost else memoryview(self.data)[at:]

    def select(
        self,
        limit: int = 32,
        max_bytes: int = 1 << 20,
        oldest: int = 0,
        wanted: Marked | None = None,
        part: QueuePart | None = None,
    ) -> tuple[list[int], int, bool]:
        found, scanned, removed = select_records(
            self.entries, PullLimits(limit, max_bytes, limit, max_bytes, 0), oldest, wanted or Marked(), self.window,
            self.bad.append, part,
        )  # fmt: skip
        starts = [int.from_bytes(data[28:36], "big") for data in found]
        return [self.offsets.index(start) for start in starts], scanned, removed


def test_the_wanted_records_are_found_in_order_and_all_entries_are_looked_at() -> None:
    log = Log([number % 3 == 0 for number in range(100)])
    assert log.select(limit=100) == ([*range(0, 100, 3)], 100, False)


def test_the_next_pull_goes_on_behind_the_last_record_that_fitted() -> None:
    log = Log([True, False] * 50)
    assert log.select(limit=3) == ([0, 2, 4], 5, False)
    size = log.offsets[1]
    found, scanned, _ = log.select(max_bytes=2 * size)
    assert (found, scanned) == ([0, 2], 3), "what follows did not fit, wanted or not: the next pull begins with it"
    assert log.select(max_bytes=1)[0] == [0], "one is always given"


def test_unreadable_and_damaged_records_are_skipped() -> None:
    log = Log([True] * 5)
    log.lost.add(log.offsets[1])
    place = log.offsets[3] + 90
    log.data = log.data[:place] + b"!" + log.data[place + 1 :]
    assert log.select() == ([0, 2, 4], 5, False)
    assert log.bad == [3]


def test_an_entry_that_leads_to_another_queue_s_record_is_wrong() -> None:
    log = Log([True] * 3)
    for part in (QueuePart(b"t", 1, 0, False), QueuePart(b"tt", 0, 0, False), QueuePart(b"t", 0, 7, False)):
        log.bad.clear()
        assert log.select(part=part)[0] == []
        assert log.bad == [0, 1, 2]
    log.bad.clear()
    assert log.select(part=QueuePart(b"t", 0, 0, True)) == ([0], 3, False), "all say that they are the first"
    assert log.bad == [1, 2]
    log.bad.clear()
    log.select(oldest=1, part=QueuePart(b"t", 0, 0, True))
    assert log.bad == [0, 1, 2], "no entry of a queue lies before the log's begin"


def test_entries_before_the_logs_start_are_reported_and_entries_with_another_tag_are_not_read() -> None:
    log = Log([True] * 4, codes={3: 9})
    wanted = Marked()
    assert log.select(oldest=log.offsets[2], wanted=wanted) == ([2], 4, True)
    assert wanted.asked == 1


@pytest.mark.parametrize("body", [100, 1000, 30_000, 69_000])
def test_a_pull_reads_records_up_to_its_limit_in_bytes(monkeypatch: pytest.MonkeyPatch, body: int) -> None:
    log = Log([False] * (70 * 1000 // body + 2), body=body)
    monkeypatch.setattr(select, "SCAN_BYTES", 70 * 1000)
    found, scanned, _ = log.select()
    size = log.offsets[1]
    assert not found
    assert scanned == 70 * 1000 // size, "the next pull goes on behind what was looked at"
    assert log.read == scanned * size


def test_a_pull_reads_one_record_that_is_larger_than_its_limit_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log([False, True], body=1000)
    monkeypatch.setattr(select, "SCAN_BYTES", 100)
    assert log.select() == ([], 1, False)


@pytest.mark.parametrize(("body", "returned"), [(1000, 36), (10_000, 3), (100_000, 1)])
def test_a_pull_reads_little_more_than_it_returns(body: int, returned: int) -> None:
    log = Log([True] * 70, body=body)
    assert log.select(limit=100, max_bytes=40_000) == ([*range(returned)], returned, False)
    assert log.read == returned * log.offsets[1]


def test_large_records_that_do_not_match_are_examined_in_one_pull() -> None:
    log = Log([False] * 10, body=100_000)
    assert log.select(max_bytes=40_000) == ([], 10, False)


def test_fillers_count_no_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log([False, True], body=1000)
    monkeypatch.setattr(select, "SCAN_BYTES", 3000)
    log.entries = ENTRY.pack(0, FILLER_SIZE, 0) * 100 + log.entries
    assert log.select() == ([1], 102, False)

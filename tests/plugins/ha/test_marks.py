"""The marks by which a broker sets its progress back when its log was cut."""

from __future__ import annotations

from typing import Any

import pytest

from gantrymq.plugins.delay.levels.positions import Positions, encode_positions
from gantrymq.plugins.ha.marks import MARKS_FILE, MARKS_MAX, ProgressMarks, decode_marks
from gantrymq.remoting.names import TRANS_GROUP, TRANS_HALF_TOPIC
from gantrymq.testing.memory_env import MemoryEnv


class Progress:
    """A broker's delay levels, transactions and marks, over restarts."""

    def __init__(self) -> None:
        self.env = MemoryEnv()
        self.positions = Positions(self.env, "store/config/delayOffset.json")
        self.halves = 0
        self.marks = ProgressMarks(self.env, "store")

    @property
    def levels(self) -> Any:
        return self

    def report(self) -> bytes:
        return encode_positions({level: position for level in (1, 2) if (position := self.positions.get(level))})

    def set_back(self, table: Any) -> None:
        self.positions.set_back(table)

    def topics_of(self, group: str) -> list[str]:
        return [TRANS_HALF_TOPIC] if group == TRANS_GROUP and self.halves else []

    def queues_of(self, group: str, topic: str) -> dict[int, int]:
        return {0: self.halves}

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        assert (group, topic, queue_id) == (TRANS_GROUP, TRANS_HALF_TOPIC, 0)
        self.halves = offset

    def reach(self, log_end: int, halves: int = 0, **levels: int) -> None:
        """Progress up to ``log_end`` that is stored."""
        self.positions.adopt(encode_positions({int(name[1:]): position for name, position in levels.items()}))
        self.halves = halves
        self.marks.add(log_end, self.levels, self.levels)
        for path, data in (self.marks.changes() or {}).items():
            self.env.replace(path, data)

    def restart(self, log_end: int, *, is_cut: bool = False) -> tuple[int, int, int]:
        """The positions of the levels 1 and 2, and the progress of transactions, after a start."""
        self.marks = ProgressMarks(self.env, "store")
        self.marks.set_back(log_end, self.levels, self.levels, is_cut=is_cut)
        for path, data in (self.marks.changes() or {}).items():
            self.env.replace(path, data)
        return self.positions.get(1), self.positions.get(2), self.halves


@pytest.fixture
def progress() -> Progress:
    progress = Progress()
    progress.env.mkdirs("store/config")
    progress.reach(100, l1=1, halves=3)
    progress.reach(200, l1=2, halves=5)
    progress.reach(300, l1=3, l2=1, halves=7)
    return progress


@pytest.mark.parametrize(
    ("cut", "left"), [(300, (3, 1, 7)), (299, (2, 0, 5)), (200, (2, 0, 5)), (100, (1, 0, 3)), (99, (0, 0, 0))]
)
def test_a_cut_sets_the_progress_back_to_the_newest_mark_before_it(
    progress: Progress, cut: int, left: tuple[int, int, int]
) -> None:
    assert progress.restart(cut, is_cut=True) == left
    assert progress.restart(900) == left, "marks behind the cut are gone: other records may be there since"


def test_progress_that_no_mark_has_is_set_back_by_a_cut(progress: Progress) -> None:
    """The file of the positions was written after that of the marks."""
    progress.positions.adopt(encode_positions({1: 9}))
    assert progress.restart(900) == (9, 1, 7)
    assert progress.restart(900, is_cut=True) == (3, 1, 7)


def test_a_start_after_an_interrupted_one_sets_the_progress_back(progress: Progress) -> None:
    """The cut was made, and the file that asks for it is gone."""
    assert progress.restart(150) == (1, 0, 3)


def test_a_mark_that_says_the_same_later_is_not_added(progress: Progress) -> None:
    progress.reach(400, l1=3, l2=1, halves=7)
    assert progress.restart(300, is_cut=True) == (3, 1, 7)


def test_the_number_of_marks_is_limited_and_the_oldest_and_the_newest_stay(progress: Progress) -> None:
    for number in range(4, 1000):
        progress.reach(100 * number, l1=number)
        ends = [mark.log_end for mark in decode_marks(progress.env.read_bytes(f"store/{MARKS_FILE}"))]
        assert len(ends) <= MARKS_MAX
        assert (ends[0], ends[-1]) == (100, 100 * number)


def test_a_broker_without_delayed_messages_and_transactions_has_no_file() -> None:
    progress = Progress()
    progress.reach(100)
    assert not progress.env.exists(f"store/{MARKS_FILE}")
    assert progress.restart(50, is_cut=True) == (0, 0, 0)


@pytest.mark.parametrize("data", [b"", b"[]", b'{"marks":7}', b'{"marks":[{"logEnd":"x"}]}', b'{"marks":[[]]}'])
def test_an_invalid_file_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of json or of this module
        decode_marks(data)

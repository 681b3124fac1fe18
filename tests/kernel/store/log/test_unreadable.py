"""Unreadable ranges of the log are remembered for a while."""

from __future__ import annotations

import errno

import pytest

from gantrymq.kernel.errors import UnreadableRange
from gantrymq.kernel.store.log.segments import Segments
from gantrymq.kernel.store.log.unreadable import UnreadablePlaces
from gantrymq.testing.memory_env import MemoryEnv


class Emptied(dict[tuple[int, int], tuple[float, str, int]]):
    """Places that another thread clears as soon as one of them was looked up."""

    def __contains__(self, place: object) -> bool:
        is_known = super().__contains__(place)
        self.clear()
        return is_known


def test_unreadable_places_may_be_cleared_while_another_thread_looks_one_up(monkeypatch: pytest.MonkeyPatch) -> None:
    env = MemoryEnv()
    env.mkdirs("log")
    env.mkdirs("staging")
    segments = Segments(env, "log", 4096, "staging")
    places = UnreadablePlaces(segments, env.monotonic)
    places._failed = Emptied()

    def fail(offset: int, size: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(segments, "pread", fail)
    for _ in range(2):
        with pytest.raises(UnreadableRange):
            places.read(100, 10)

"""What is looked at in the log: many records at once, wherever they lie."""

from __future__ import annotations

import random

import pytest

from gantrymq.kernel.commitlog import CommitLog
from gantrymq.kernel.reading import NEAR_BYTES, USUAL_BYTES, look_at
from gantrymq.testing.envs import MemoryEnv
from gantrymq.testing.tinystore import batch_of


def filled(bodies: list[bytes], file_bytes: int) -> tuple[CommitLog, list[int]]:
    env = MemoryEnv()
    env.mkdirs("log")
    env.mkdirs("staging")
    log = CommitLog(
        env, "log", "staging", file_bytes=file_bytes, next_offsets={}, store_host=b"\x7f\0\0\x01\0\0\x2a\x9f",
        max_body_bytes=1 << 20,
    )  # fmt: skip
    log.open()
    batch = batch_of(bodies)
    log.append(batch)
    return log, batch.offsets


@pytest.mark.parametrize("file_bytes", [4000, 1 << 24])
@pytest.mark.parametrize("largest", [10, 3 * USUAL_BYTES, NEAR_BYTES])
def test_each_record_is_found_wherever_the_others_lie(file_bytes: int, largest: int) -> None:
    chance = random.Random(largest)
    largest = min(largest, file_bytes // 2)
    bodies = [bytes([number]) * chance.randrange(largest) for number in range(60)]
    log, offsets = filled(bodies, file_bytes)
    for _ in range(50):
        some = chance.choices(range(60), k=chance.choice([1, 2, 9]))
        found = look_at(log, [offsets[number] for number in some])
        assert [record and (record.body, record.offset) for record in found] == [
            (bodies[number], offsets[number]) for number in some
        ]


def test_where_no_record_is_there_is_none_and_the_others_are_found() -> None:
    log, offsets = filled([b"a" * 50, b"b" * 50, b"c" * 50], 1 << 20)
    asked = [-5, offsets[1], offsets[1] + 1, log.end - 2, log.end, 2**62, offsets[2]]
    found = look_at(log, asked)
    assert [record and record.body[:1] for record in found] == [None, b"b", None, None, None, None, b"c"]


def test_what_is_known_to_be_damaged_is_not_looked_at() -> None:
    log, offsets = filled([b"a" * 50, b"b" * 50, b"c" * 50], 1 << 20)
    log.mistrust(offsets[1], offsets[2])
    assert [record and record.body[:1] for record in look_at(log, offsets)] == [b"a", None, b"c"]

"""Index files with arbitrary bytes: searches end without wrong results, and the broker starts."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from gantrymq.plugins.index.layout import HEADER_BYTES, Shape
from gantrymq.testing.memory_env import MemoryEnv

SHAPE = Shape(slots=3, entries=30)


@pytest.fixture
def settled(open_indexed: Callable) -> MemoryEnv:
    """A store that was left in order: twenty messages with three keys each, in three index files."""
    env = MemoryEnv()
    indexed = open_indexed(env, SHAPE)
    for number in range(20):
        indexed.send([f"k{number}", f"m{number % 3}", "all"])
    indexed.save(settle=True)
    indexed.store.close()
    assert len(env.listdir("store/index")) == 3
    return env


@pytest.mark.parametrize("seed", range(60))
def test_a_search_in_a_damaged_index_file_finds_no_wrong_message(
    open_indexed: Callable, settled: MemoryEnv, seed: int
) -> None:
    chance = random.Random(seed)
    for _ in range(chance.randrange(1, 20)):
        file = settled.open(f"store/index/{chance.choice(settled.listdir('store/index'))}")
        at = chance.randrange(SHAPE.file_bytes)
        if chance.random() < 0.5:
            file.pwrite(bytes([file.pread(1, at)[0] ^ 1 << chance.randrange(8)]), at)
        else:
            file.pwrite(chance.randbytes(min(chance.choice([4, 20, 64]), SHAPE.file_bytes - at)), at)
    indexed = open_indexed(settled, SHAPE)
    indexed.level()
    for key, wanted in [("all", set(range(20))), ("m1", set(range(1, 20, 3))), ("k7", {7})]:
        found = []
        for offset in indexed.index.find("T", key, 0, 2**62):
            try:
                record = indexed.record(offset)
            except Exception:
                continue
            if key in record.body.decode().split():
                found.append(record.queue_offset)
        assert set(found) <= wanted
    indexed.send(["new", "all"])
    assert indexed.find("new") == [20]
    indexed.save(settle=True)
    indexed.store.close()
    again = open_indexed(settled, SHAPE)
    again.level()
    assert again.find("new") == [20]


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize(
    "garbage", [b"\xff" * HEADER_BYTES, bytes(HEADER_BYTES), b"\x7f" * HEADER_BYTES, b"\0" * 36 + b"\0\0\0\x0c"]
)
def test_a_file_with_a_forged_header_is_rebuilt(
    open_indexed: Callable, settled: MemoryEnv, which: int, garbage: bytes
) -> None:
    name = settled.listdir("store/index")[which]
    settled.open(f"store/index/{name}").pwrite(garbage, 0)
    indexed = open_indexed(settled, SHAPE)
    indexed.level()
    assert indexed.check_whole() == 20


def test_a_file_that_was_cut_is_built_again(open_indexed: Callable, settled: MemoryEnv) -> None:
    name = settled.listdir("store/index")[1]
    settled.open(f"store/index/{name}").truncate(100)
    indexed = open_indexed(settled, SHAPE)
    indexed.level()
    assert indexed.check_whole() == 20

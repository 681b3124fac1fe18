"""How many blocks of the log stay in memory."""

from __future__ import annotations

import pytest

from gantrymq.kernel.store.log.block_cache import (
    BLOCK_BYTES,
    GROWN_BLOCKS_MAX,
    KEPT_BLOCKS,
    UNUSED_ROUNDS,
    Block,
    BlockCache,
    most_blocks,
)

GIB = 1 << 30


def read(cache: BlockCache, *blocks: int) -> int:
    """Read these blocks; return how many of them were not in memory."""
    misses = 0
    for number in blocks:
        start = number * BLOCK_BYTES
        if cache.get(start) is None:
            cache.add(start, Block(1))
            misses += 1
    return misses


def read_apart(cache: BlockCache, distance: int, blocks: range) -> int:
    """Two consumers read these blocks, the second one ``distance`` blocks behind; return the misses of the second."""
    return sum(read(cache, block + distance) * 0 + read(cache, block) for block in blocks)


@pytest.mark.parametrize(
    ("memory", "blocks"),
    [(GIB // 4, KEPT_BLOCKS), (GIB, KEPT_BLOCKS), (4 * GIB, 1024), (8 * GIB, 2048), (1024 * GIB, GROWN_BLOCKS_MAX)],
)
def test_a_64th_of_the_memory_holds_blocks_within_the_limits(memory: int, blocks: int) -> None:
    assert most_blocks(memory) == blocks


def test_consumers_close_to_each_other_share_blocks_without_more_memory() -> None:
    cache = BlockCache(2048)
    read(cache, *range(200))
    assert read_apart(cache, 200, range(10_000)) == 0
    assert len(cache) == KEPT_BLOCKS


def test_consumers_that_drifted_apart_share_blocks_after_the_cache_has_grown() -> None:
    cache = BlockCache(2048)
    read(cache, *range(1000))
    assert read_apart(cache, 1000, range(1000)) > 0
    assert read_apart(cache, 1000, range(1000, 3000)) < 1000
    assert read_apart(cache, 1000, range(3000, 5000)) == 0
    assert KEPT_BLOCKS < len(cache) < 2048


def test_the_cache_keeps_no_more_blocks_than_the_memory_allows() -> None:
    cache = BlockCache(300)
    read(cache, *range(270))
    read_apart(cache, 270, range(10_000))
    assert len(cache) == 300


def test_a_distance_beyond_the_limit_does_not_let_the_cache_grow() -> None:
    cache = BlockCache(300)
    read(cache, *range(1000))
    read_apart(cache, 1000, range(3000))
    assert len(cache) == KEPT_BLOCKS


def test_the_cache_shrinks_again_without_second_reads() -> None:
    cache = BlockCache(2048)
    read(cache, *range(1000))
    read_apart(cache, 1000, range(4000))
    assert len(cache) > KEPT_BLOCKS
    read(cache, *range(10_000, 10_000 + 4 * UNUSED_ROUNDS * 2048))
    assert len(cache) == KEPT_BLOCKS

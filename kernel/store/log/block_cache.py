"""Blocks of the log that stay in the broker's memory, more of them while evicted ones are read again."""

from __future__ import annotations

from typing import Final

from gantrymq.kernel.fast import empty_buffer

BLOCK_BYTES: Final = 64 * 1024
KEPT_BLOCKS: Final = 256
"""Blocks that are kept in any case: 16 MiB."""
GROWN_BLOCKS_MAX: Final = 2048
"""The most blocks that are kept: 128 MiB."""
MEMORY_PARTS: Final = 64
"""The kept blocks take one of so many parts of the memory at most, but never less than :data:`KEPT_BLOCKS`."""
UNUSED_ROUNDS: Final = 16
"""The cache halves after it has replaced its blocks so often without reading one again."""


def most_blocks(memory_bytes: int) -> int:
    """Return how many blocks a cache may keep on a machine with this memory."""
    return max(KEPT_BLOCKS, min(GROWN_BLOCKS_MAX, memory_bytes // MEMORY_PARTS // BLOCK_BYTES))


class Block:
    """The first ``filled`` bytes of a block of the log. They never change; more can follow."""

    __slots__ = ("filled", "memory")

    def __init__(self, size: int) -> None:
        self.memory = memoryview(empty_buffer(size))
        self.filled = 0

    @property
    def content(self) -> memoryview:
        memory = self.memory
        return memory if self.filled == len(memory) else memory[: self.filled]


class BlockCache:
    """Blocks by the offset of their first byte; the block that was added first is evicted first.

    Consumers at about the same place of the log share what one of them has read, so :data:`KEPT_BLOCKS` are enough. If
    they have drifted apart, the ones behind read evicted blocks again. Each such read lets the cache keep one block
    more, until it has room for the distance between the consumers, or ``most`` blocks.
    """

    def __init__(self, most: int) -> None:
        self.capacity = KEPT_BLOCKS
        self._most = most
        self._blocks: dict[int, Block] = {}
        self._evicted: dict[int, None] = {}
        self._added = 0
        self.get = self._blocks.get

    def __contains__(self, start: int) -> bool:
        return start in self._blocks

    def __len__(self) -> int:
        return len(self._blocks)

    def add(self, start: int, block: Block) -> None:
        """Keep ``block``, which is not in the cache, and evict the oldest ones beyond the capacity."""
        self._added += 1
        if start in self._evicted:
            del self._evicted[start]
            self._added = 0
            self.capacity = min(self.capacity + 1, self._most)
        elif self._added >= UNUSED_ROUNDS * self.capacity:
            self._added = 0
            self.capacity = max(KEPT_BLOCKS, self.capacity // 2)
        while len(self._blocks) >= self.capacity:
            oldest = next(iter(self._blocks))
            del self._blocks[oldest]
            self._evicted[oldest] = None
        while len(self._evicted) > self._most:
            del self._evicted[next(iter(self._evicted))]
        self._blocks[start] = block

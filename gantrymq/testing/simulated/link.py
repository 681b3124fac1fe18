"""One direction between two machines, and how bad it is."""

from __future__ import annotations

import math
import random
from typing import Final

import trio

ALL_PORTS: Final = frozenset[int]()
"""A link that is bad for every port."""


class Link:
    """Data from one machine to another. What is set here holds for all connections, from now on.

    ``delay_s``: a piece takes so long, from and to, another time for each; the order within a connection stays.
    ``bytes_per_s``: how much one connection carries. ``cut``: the chance that a piece is the last one of its
    connection; some of it still comes through, then both ends are reset. ``flip``: the chance that one byte of a piece
    is another when it arrives, on connections to ``flip_ports`` (empty: to all).
    """

    def __init__(self, source: str, target: str, seed: str) -> None:
        self.source = source
        self.target = target
        self._chance = random.Random(seed)  # noqa: S311 - chance that can be repeated is the point
        self._clear = trio.Event()
        self.clear()
        self.mend()

    def mend(self) -> None:
        """As good as new, but for a clog."""
        self.delay_s = (0.0, 0.0)
        self.bytes_per_s = math.inf
        self.cut = 0.0
        self.flip = 0.0
        self.flip_ports = ALL_PORTS

    @property
    def clogged(self) -> bool:
        """Whether nothing comes through."""
        return not self._clear.is_set()

    def clog(self) -> None:
        """Let nothing through until :meth:`clear`. Connections stay open, and what was sent waits, as with TCP."""
        if not self.clogged:
            self._clear = trio.Event()

    def clear(self) -> None:
        """Let everything through, also what has waited."""
        self._clear.set()

    async def passable(self) -> None:
        """Returns when something comes through."""
        while self.clogged:
            await self._clear.wait()

    def takes(self, size: int) -> float:
        """How long ``size`` bytes are on their way, in seconds."""
        return self._chance.uniform(*self.delay_s) + size / self.bytes_per_s

    def spoil(self, data: bytes, port: int) -> tuple[bytes, bool]:
        """What arrives of a piece on a connection to ``port``, and whether that was the connection's last."""
        if self.flip and (not self.flip_ports or port in self.flip_ports) and self._chance.random() < self.flip:
            place = self._chance.randrange(len(data))
            data = data[:place] + bytes([data[place] ^ self._chance.randrange(1, 256)]) + data[place + 1 :]
        if self.cut and self._chance.random() < self.cut:
            return data[: self._chance.randrange(len(data) + 1)], True
        return data, False

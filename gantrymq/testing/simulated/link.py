"""One direction of a link between two machines, with its faults."""

from __future__ import annotations

import math
import random
from typing import Final

import trio

ALL_PORTS: Final = frozenset[int]()
"""Flips bytes on connections to all ports."""


class Link:
    """The link from one machine to another. Changes apply to all connections at once.

    ``delay_s``: the shortest and longest delay of a piece of data; pieces of a connection keep their order.
    ``bytes_per_s``: the bandwidth of one connection. ``cut``: the probability that the connection breaks within a
    piece; a part of it still arrives, then both ends are reset. ``flip``: the probability that one byte of a piece
    changes, on connections to ``flip_ports`` (empty: to all).
    """

    def __init__(self, source: str, target: str, seed: str) -> None:
        self.source = source
        self.target = target
        self._chance = random.Random(seed)  # noqa: S311 - chance that can be repeated is the point
        self._clear = trio.Event()
        self.clear()
        self.heal()

    def heal(self) -> None:
        """Remove all faults except a clog."""
        self.delay_s = (0.0, 0.0)
        self.bytes_per_s = math.inf
        self.cut = 0.0
        self.flip = 0.0
        self.flip_ports = ALL_PORTS

    @property
    def clogged(self) -> bool:
        """Whether the link is clogged: no data arrives."""
        return not self._clear.is_set()

    def clog(self) -> None:
        """Stop all data until :meth:`clear`. Connections stay open, and sent data waits, as with TCP."""
        if not self.clogged:
            self._clear = trio.Event()

    def clear(self) -> None:
        """Remove a clog; waiting data arrives."""
        self._clear.set()

    async def passable(self) -> None:
        """Return when the link is not clogged."""
        while self.clogged:
            await self._clear.wait()

    def takes(self, size: int) -> float:
        """Return the transit time of ``size`` bytes, in seconds."""
        return self._chance.uniform(*self.delay_s) + size / self.bytes_per_s

    def spoil(self, data: bytes, port: int) -> tuple[bytes, bool]:
        """Return the part of a piece that arrives on a connection to ``port``, and whether the connection breaks after
        it."""
        if self.flip and (not self.flip_ports or port in self.flip_ports) and self._chance.random() < self.flip:
            place = self._chance.randrange(len(data))
            data = data[:place] + bytes([data[place] ^ self._chance.randrange(1, 256)]) + data[place + 1 :]
        if self.cut and self._chance.random() < self.cut:
            return data[: self._chance.randrange(len(data) + 1)], True
        return data, False

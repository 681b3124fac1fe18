"""Random network faults: links become slow, lose connections or clog, and machines are cut off."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

import trio

from gantrymq.testing.simulated.link import Link
from gantrymq.testing.simulated.network import Network

CALM_S: Final = (0.02, 0.8)
"""The shortest and longest time between two changes, in seconds."""
_CLOGGED_S: Final = (0.05, 8.0)
_DELAY_MAX_S: Final = 0.2
_CUT_MAX: Final = 0.05
_SLOW_BYTES_PER_S: Final = (20_000, 2_000_000)


class NetworkFaults:
    """Causes faults on the links among ``hosts`` while :meth:`run` runs. ``count``: the number of faults so far."""

    def __init__(self, network: Network, hosts: Sequence[str]) -> None:
        self._network = network
        self._hosts = list(hosts)
        self._links = network.between(hosts)
        # a run of a seed stays the same over versions, so this text does not change
        self._chance = random.Random(f"{network.seed} weather")  # noqa: S311 - repeatable on purpose
        self.count = 0

    async def run(self) -> None:
        """Cause faults until cancelled; then remove all faults of all links. It flips no bytes."""
        events = (self._delay, self._cut, self._slow, self._heal, self._clog, self._clog, self._reset, self._isolate)
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    await trio.sleep(self._chance.uniform(*CALM_S))
                    self._chance.choice(events)(nursery)
                    self.count += 1
        finally:
            self._network.heal()

    def _delay(self, _nursery: trio.Nursery) -> None:
        low, high = sorted(self._chance.uniform(0, _DELAY_MAX_S) for _ in range(2))
        self._chance.choice(self._links).delay_s = low, high

    def _cut(self, _nursery: trio.Nursery) -> None:
        self._chance.choice(self._links).cut = self._chance.uniform(0, _CUT_MAX)

    def _slow(self, _nursery: trio.Nursery) -> None:
        self._chance.choice(self._links).bytes_per_s = self._chance.randint(*_SLOW_BYTES_PER_S)

    def _heal(self, _nursery: trio.Nursery) -> None:
        self._chance.choice(self._links).heal()

    def _clog(self, nursery: trio.Nursery) -> None:
        link = self._chance.choice(self._links)
        nursery.start_soon(self._for_a_while, [link])

    def _reset(self, _nursery: trio.Nursery) -> None:
        self._network.cut(*self._chance.sample(self._hosts, 2))

    def _isolate(self, nursery: trio.Nursery) -> None:
        host = self._chance.choice(self._hosts)
        nursery.start_soon(self._for_a_while, [each for each in self._links if host in (each.source, each.target)])

    async def _for_a_while(self, links: Sequence[Link]) -> None:
        for link in links:
            link.clog()
        await trio.sleep(self._chance.uniform(*_CLOGGED_S))
        for link in links:
            link.clear()

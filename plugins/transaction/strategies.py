"""The strategies by their names in the configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from gantrymq.plugins.transaction.half.load import count_open_halves
from gantrymq.plugins.transaction.half.strategy import HalfStrategy
from gantrymq.plugins.transaction.state_table.open_transactions import count_open_rows
from gantrymq.plugins.transaction.state_table.strategy import StateTableStrategy
from gantrymq.plugins.transaction.strategy import Strategy, StrategyContext


@attrs.frozen
class StrategyKind:
    """How to make a strategy, and how to find out whether a store has open transactions of it.

    ``count_open`` is called after recovery if another strategy is configured; it changes nothing.
    """

    make: Callable[[StrategyContext], Strategy]
    count_open: Callable[[StrategyContext], int]


STRATEGIES: Mapping[str, StrategyKind] = {
    "half": StrategyKind(HalfStrategy, count_open_halves),
    "state_table": StrategyKind(StateTableStrategy, count_open_rows),
}

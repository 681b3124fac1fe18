"""The seeds of a scenario: a default number, a requested number, or a single one to repeat a failure."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

COUNT_VARIABLE: Final = "GANTRYMQ_SIMULATION_SEEDS"
"""The environment variable with the number of seeds for each scenario."""
ONE_VARIABLE: Final = "GANTRYMQ_SIMULATION_SEED"
"""The environment variable with the only seed to use."""


def seeds(usual: int) -> Sequence[int]:
    """For ``pytest.mark.parametrize("seed", seeds(20))``: 0 to 19, unless the environment variables set others."""
    one = os.environ.get(ONE_VARIABLE)
    return [int(one)] if one else range(int(os.environ.get(COUNT_VARIABLE, usual)))

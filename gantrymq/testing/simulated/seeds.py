"""With which seeds a scenario is run: some, or as many as are asked for, or the one that failed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

COUNT_VARIABLE: Final = "GANTRYMQ_SIMULATION_SEEDS"
"""How many seeds each scenario is run with."""
ONE_VARIABLE: Final = "GANTRYMQ_SIMULATION_SEED"
"""The only seed that scenarios are run with."""


def seeds(usual: int) -> Sequence[int]:
    """For ``pytest.mark.parametrize("seed", seeds(20))``: 0 to 19, unless the environment wants others."""
    one = os.environ.get(ONE_VARIABLE)
    return [int(one)] if one else range(int(os.environ.get(COUNT_VARIABLE, usual)))

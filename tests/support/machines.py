"""How many examples the state machines of hypothesis get: each run has new ones, and a rare fault needs thousands."""

from __future__ import annotations

import os
from typing import Final

from hypothesis import HealthCheck, settings

EXAMPLES_VARIABLE: Final = "GANTRYMQ_MACHINE_EXAMPLES"
"""``make machines`` sets it to the number of examples for each state machine."""


def machine_settings(steps: int, examples: int = 60, *, are_checked: bool = False) -> settings:
    """Settings of a state machine that makes up to so many ``steps`` in an example.

    ``examples``: how many there are unless the environment says so. ``are_checked``: whether hypothesis reports
    examples that take long or are too large.
    """
    return settings(
        max_examples=int(os.environ.get(EXAMPLES_VARIABLE) or examples),
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=() if are_checked else list(HealthCheck),
    )

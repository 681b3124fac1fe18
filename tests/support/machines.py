"""How many examples the state machines of hypothesis get: each run has new ones, and a rare fault needs thousands."""

from __future__ import annotations

import os
from typing import Final

from hypothesis import HealthCheck, settings

EXAMPLES: Final = int(os.environ.get("GANTRYMQ_MACHINE_EXAMPLES") or "60")
"""``make machines`` has 2,000, or as many as it is told to."""


def machine_settings(steps: int) -> settings:
    """Settings of a state machine that makes up to so many ``steps`` in an example."""
    return settings(
        max_examples=EXAMPLES, stateful_step_count=steps, deadline=None, suppress_health_check=list(HealthCheck)
    )

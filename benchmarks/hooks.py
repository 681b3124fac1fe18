"""The group ``hooks``: what plugins cost that look at each batch and leave it alone.

The same load for a broker with none, 1, 5 and 10 of them, twice, the second time the other way round. The processor
time of a message depends less on other load of the machine than the rate does.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from figures import Figures
from looking_plugins import MOST
from measuring import checked, load_of, warm_up
from scenarios import Scenario
from systems import Setup, processor_seconds, start

from gantrymq.bench.plan import Plan
from gantrymq.bench.running import run

if TYPE_CHECKING:
    from living import Sizes
    from measuring import Timing

Tell = Callable[[str], None]
COUNTS = (0, 1, 5, MOST)
BUSY = Scenario("send 8x16", "async", 8, 16)
GOAL_PERCENT = 5.0
"""Ten plugins that look at the traits may cost this much more processor time."""
PLUGINS = Path(__file__).with_name("looking_plugins.py")


def look_on(system: str, timing: Timing, sizes: Sizes, figures: Figures, tell: Tell) -> None:
    """Rate, and processor time of the broker for a message, by the number of plugins. Of GantryMQ alone."""
    del sizes
    if system != "gantrymq":
        return
    rates: dict[int, list[float]] = {count: [] for count in COUNTS}
    times: dict[int, list[float]] = {count: [] for count in COUNTS}
    for count in (*COUNTS, *reversed(COUNTS)):
        plugins = tuple(f"{PLUGINS}:Looking{number}" for number in range(1, count + 1))
        with start(system, Setup(plugins=plugins)) as running:
            warm_up(running, timing.warm)
            plan = Plan(loads=[load_of(running, BUSY)], seconds=timing.seconds)
            before = processor_seconds(running.pid)
            outcome = checked(system, f"{count} plugins", run(plan))
            used = (processor_seconds(running.pid) - before) / outcome.messages * 1e6
        rates[count].append(outcome.rate)
        times[count].append(used)
        tell(f"{system:9} {count:2} plugins: {outcome.rate:,.0f}/s, {used:.2f} us of the processor for a message")
    for count in COUNTS:
        for rate, used in zip(rates[count], times[count], strict=True):
            figures.add("hooks", f"send 8x16 with {count} plugins", "/s", system, rate, more_is_better=True)
            figures.add("hooks", f"processor time for a message, {count} plugins", "us", system, used)
    rate, used = (statistics.median(of[MOST]) / statistics.median(of[0]) for of in (rates, times))
    figures.add("hooks", f"rate with {MOST} plugins, to that with none", "times", system, rate)
    percent = 100 * (used - 1)
    figures.add("hooks", f"more processor time with {MOST} plugins", "%", system, percent, goal=GOAL_PERCENT)

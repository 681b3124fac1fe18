"""The group ``hooks``: what plugins cost that look at each batch and leave it alone.

The same load for a broker with none, 1, 5 and 10 of them, twice, the second time the other way round. The processor
time of a message depends less on other load of the machine than the rate does, and still differs by more between two
brokers than ten plugins cost. So the target is compared with a share within one run: the broker times each hook, and
the time of the plugins' hooks is divided by the broker's processor time. Timing a hook takes longer than most of these
hooks do, so the share is an upper bound.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio
from figures import Figures
from measuring import checked, load_of, warm_up
from observing_plugins import MOST
from scenarios import Scenario
from systems import Setup, processor_seconds, start

from gantrymq.bench.plan import Plan
from gantrymq.bench.running import run
from gantrymq.cli.plugin_activity import ask_broker

if TYPE_CHECKING:
    from measuring import Timing
    from special_groups import Sizes
    from systems import Running

Progress = Callable[[str], None]
COUNTS = (0, 1, 5, MOST)
BUSY = Scenario("send 8x16", "async", 8, 16)
GOAL_PERCENT = 5.0
"""Ten plugins that read traits only may take this share of the broker's processor time."""
ANSWER_S = 10
"""The broker measures its hooks for this many seconds more than the load takes."""
PLUGINS = Path(__file__).with_name("observing_plugins.py")


def measure_hooks(system: str, timing: Timing, sizes: Sizes, figures: Figures, progress: Progress) -> None:
    """The rate, and the broker's processor time for a message, by the number of plugins; of GantryMQ only."""
    del sizes
    if system != "gantrymq":
        return
    rates: dict[int, list[float]] = {count: [] for count in COUNTS}
    times: dict[int, list[float]] = {count: [] for count in COUNTS}
    shares: list[float] = []
    for count in (*COUNTS, *reversed(COUNTS)):
        plugins = tuple(f"{PLUGINS}:Looking{number}" for number in range(1, count + 1))
        with start(system, Setup(plugins=plugins)) as running:
            warm_up(running, timing.warm)
            plan = Plan(loads=[load_of(running, BUSY)], seconds=timing.seconds)
            before = processor_seconds(running.pid)
            outcome = checked(system, f"{count} plugins", run(plan))
            used = (processor_seconds(running.pid) - before) / outcome.messages * 1e6
            if count == MOST:
                shares.append(_share(running, plan))
        rates[count].append(outcome.rate)
        times[count].append(used)
        progress(f"{system:9} {count:2} plugins: {outcome.rate:,.0f}/s, {used:.2f} us of the processor for a message")
    for count in COUNTS:
        for rate, used in zip(rates[count], times[count], strict=True):
            figures.add("hooks", f"send 8x16 with {count} plugins", "/s", system, rate, more_is_better=True)
            figures.add("hooks", f"processor time for a message, {count} plugins", "us", system, used)
    rate, used = (statistics.median(of[MOST]) / statistics.median(of[0]) for of in (rates, times))
    figures.add("hooks", f"rate with {MOST} plugins, to that with none", "times", system, rate)
    percent = 100 * (used - 1)
    figures.add("hooks", f"more processor time with {MOST} plugins", "%", system, percent)
    for share in shares:
        what = f"share of the processor time in the hooks of {MOST} plugins"
        figures.add("hooks", what, "%", system, share, goal=GOAL_PERCENT)
    progress(f"{system:9} hooks of {MOST} plugins: {statistics.median(shares):.2f} % of the processor time")


def _share(running: Running, plan: Plan) -> float:
    """The share of the plugins' hooks in the broker's processor time during the load, in percent."""
    measured = math.ceil(plan.seconds) + ANSWER_S
    hooks_before = _hook_seconds(running.address, measured)
    before = processor_seconds(running.pid)
    checked("gantrymq", "timed", run(plan))
    used = processor_seconds(running.pid) - before
    return 100 * (_hook_seconds(running.address, measured) - hooks_before) / used


def _hook_seconds(address: str, measure_seconds: int) -> float:
    """The seconds that the broker has measured in the plugins' hooks; it measures them for ``measure_seconds`` more."""
    answer = trio.run(partial(ask_broker, address, measure_seconds=measure_seconds))
    looking = (plugin["hooks"] for plugin in answer["plugins"] if plugin["name"].startswith("looking"))
    return float(sum(hook["seconds"] for hooks in looking for hook in hooks.values()))

"""The group ``processes``: one broker beside a unit of two (``--processes 2``), with as much load for each broker.

The generator takes processor time that two brokers would use. So the compared rate is that of brokers whose generator
is on another machine: messages for each second of the brokers' processor time, times the processors that they can use,
which are one for each broker. It assumes that no broker waits for the other. The measured rates are beside it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs
from figures import Figures
from measuring import checked, load_of, warm_up
from scenarios import Scenario
from systems import Setup, start

from gantrymq.bench.plan import Plan
from gantrymq.bench.running import run

if TYPE_CHECKING:
    from measuring import Timing
    from special_groups import Sizes

Progress = Callable[[str], None]
COUNTS = (1, 2)
LOADS = (Scenario("send 8x16", "async", 8, 16), Scenario("batch 32, 4x4", "async", 4, 4, batch=32))
"""Connections for one broker; two get twice as many, as if each had its own client machine."""
GOAL = 1.8
"""The multiple of one process's rate that two processes must reach."""


def scale(system: str, timing: Timing, sizes: Sizes, figures: Figures, progress: Progress) -> None:
    """Rates and processor time for a message with one and with two processes, twice, the second time in reverse order;
    of GantryMQ only."""
    del sizes
    if system != "gantrymq":
        return
    freed: dict[tuple[str, int], list[float]] = {}
    for count in (*COUNTS, *reversed(COUNTS)):
        with start(system, Setup(processes=count)) as running:
            warm_up(running, timing.warm)
            for load in LOADS:
                wanted = attrs.evolve(load, connections=load.connections * count)
                plan = Plan(loads=[load_of(running, wanted)], seconds=timing.seconds)
                used = -running.processor_seconds
                outcome = checked(system, f"{load.name}, {count} processes", run(plan))
                used += running.processor_seconds
                cost = used / outcome.messages * 1e6
                name = f"{load.name} a broker, {count} process{'es' if count > 1 else ''}"
                figures.add("processes", f"{name}, with the generator on this machine", "/s", system, outcome.rate,
                            more_is_better=True)  # fmt: skip
                figures.add("processes", f"{name}: processor time for a message", "us", system, cost)
                freed.setdefault((load.name, count), []).append(count / cost * 1e6)
                progress(f"{system:9} {name}: {outcome.rate:,.0f}/s, {cost:.2f} us of the processor for a message")
    for load in LOADS:
        one, two = (statistics.median(freed[load.name, count]) for count in COUNTS)
        figures.add("processes", f"{load.name} a broker: two to one, without the generator", "times", system,
                    two / one, more_is_better=True, goal=GOAL)  # fmt: skip

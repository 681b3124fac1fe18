"""Plots of the results: throughput and times by scenario, ours beside those of others, and how growth changes them."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reporting import Report
from scenarios import Scenario

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOOKS = {
    "gantrymq": ("#0b6e4f", "o", "GantryMQ"),
    "java": ("#c8553d", "s", "RocketMQ 4.9.7"),
    "redis": ("#7a7a7a", "^", "Redis Streams"),
    "kafka": ("#4a6fa5", "D", "Kafka"),
    "nats": ("#5a8f5a", "v", "NATS JetStream"),
}
STYLE = {
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": "#888888",
    "axes.grid": True, "grid.color": "#e4e4e4", "axes.axisbelow": True, "svg.fonttype": "none",
    "svg.hashsalt": "gantrymq", "font.family": "sans-serif", "figure.facecolor": "white",
}  # fmt: skip
_at = re.compile(r"^send 8x16 at ([\d.]+) GiB stored$").match


def draw(report: Report, folder: Path) -> list[str]:
    """Write the plots that have data as SVG, and return their names. ImportError without matplotlib."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as pyplot

    made = []
    with matplotlib.rc_context(STYLE):
        for name, make in (("throughput", _throughput), ("latency", _latency), ("growth", _growth)):
            figure = make(report, pyplot)
            if figure is None:
                continue
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{name}.svg"
            figure.savefig(path, format="svg", bbox_inches="tight", metadata={"Date": None})
            path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")
            pyplot.close(figure)
            made.append(name)
    return made


def _throughput(report: Report, pyplot: Any) -> Any:
    scenarios = [each for each in report.scenarios if report.rates("gantrymq", each.name)]
    if not scenarios:
        return None
    figure, axes = _canvas(pyplot, scenarios)
    for place, scenario in enumerate(scenarios):
        values = {system: _middle(report.rates(system, scenario.name)) for system in ("gantrymq", "java")}
        values |= {name: _middle(found.get(scenario.name, [])) for name, found in report.others.items()}
        both = [value for system in ("gantrymq", "java") if (value := values[system])]
        axes.plot(both, [place] * len(both), color="#bbbbbb", linewidth=2, zorder=1)
        for system, value in values.items():
            if value:
                _point(axes, system, value, place)
        if len(both) == 2:
            axes.text(1.01, place, f"{both[0] / both[1]:.2f}", transform=axes.get_yaxis_transform(), va="center")
    axes.text(1.01, -0.9, "ours / Java's", transform=axes.get_yaxis_transform(), va="center", fontsize=8)
    axes.set_xlabel("messages a second (logarithmic)")
    _finish(axes)
    return figure


def _latency(report: Report, pyplot: Any) -> Any:
    scenarios = [each for each in report.scenarios if report.times("gantrymq", each.name, "p99")]
    if not scenarios:
        return None
    figure, axes = _canvas(pyplot, scenarios)
    for place, scenario in enumerate(scenarios):
        for system, shift in (("gantrymq", 0.16), ("java", -0.16)):
            pair = [_middle(report.times(system, scenario.name, which)) for which in ("p50", "p99")]
            if all(pair):
                axes.plot(pair, [place - shift] * 2, color=LOOKS[system][0], linewidth=1.5, zorder=1)
                _point(axes, system, pair[0], place - shift)
                axes.plot([pair[1]], [place - shift], "|", color=LOOKS[system][0], markersize=9, markeredgewidth=2)
    axes.set_xlabel("microseconds from a request to its answer (logarithmic); the point is p50, the bar's end p99")
    _finish(axes)
    return figure


def _growth(report: Report, pyplot: Any) -> Any:
    marks = [(float(found[1]), each) for each in report.figures.of("growth") if (found := _at(each.what))]
    if len(marks) < 2:
        return None
    figure, axes = pyplot.subplots(figsize=(6.5, 3))
    for system in ("gantrymq", "java"):
        points = [(mark, value) for mark, each in marks if (value := each.median(system))]
        if points:
            color, marker, label = LOOKS[system]
            axes.plot(*zip(*points, strict=True), color=color, marker=marker, label=label)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("GiB stored")
    axes.set_ylabel("messages a second, send 8x16")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.legend(frameon=False)
    return figure


def _canvas(pyplot: Any, scenarios: Sequence[Scenario]) -> tuple[Any, Axes]:
    figure, axes = pyplot.subplots(figsize=(8.5, 1.0 + 0.27 * len(scenarios)))
    axes.set_xscale("log")
    axes.set_yticks(range(len(scenarios)), [scenario.name for scenario in scenarios])
    axes.set_ylim(len(scenarios) - 0.4, -0.6)
    return figure, axes


def _point(axes: Axes, system: str, value: float, place: float) -> None:
    color, marker, label = LOOKS[system]
    known = axes.get_legend_handles_labels()[1]
    axes.plot(
        [value], [place], marker, color=color, markersize=6, linestyle="none", zorder=2,
        label="_" + label if label in known else label,
    )  # fmt: skip


def _finish(axes: Axes) -> None:
    from matplotlib.ticker import FuncFormatter

    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4)


def _middle(found: Sequence[float]) -> float:
    return statistics.median(found) if found else 0.0

"""The page RESULTS.md."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from reporting import Report, Table
from scenarios import GROUPS
from systems import JAVA_VERSION, java_memory, memory_bytes

from gantrymq._version import __version__
from gantrymq.cli.checkup import fdatasync
from gantrymq.kernel.fast import KIND

ROOT = Path(__file__).resolve().parents[1]
HOW_TO = ROOT / "docs" / "howto" / "bench.md"
ALTS = {
    "throughput": "messages a second by scenario, ours beside theirs",
    "latency": "p50 and p99 by scenario, ours beside theirs",
    "growth": "messages a second as the store grows, ours beside theirs",
}


def write_page(report: Report, path: Path, pictures: Sequence[str] = (), ended: str = "") -> None:
    """Write all sections to ``path``; the pictures are in ``plots/`` beside it. ``ended`` says why the page is
    incomplete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(report, os.path.relpath(HOW_TO, path.resolve().parent), pictures, ended))


def page(report: Report, how_to: str, pictures: Sequence[str] = (), ended: str = "") -> str:
    """Return the text of the page."""
    parts = ["# Results", f"Written by `make bench`; do not edit. How to read and repeat it: [the how-to]({how_to})."]
    if ended:
        parts.append(f"**This is a part: it ended early. {ended}**")
    parts.append("\n".join(f"- {line}" for line in [*circumstances(report), *report.notes]))
    if (goals := report.goal_table())[1]:
        parts += ["## Goals", "Medians; how many times better than the system beside it.", markdown(goals)]
    parts += [f"![{ALTS[name]}](plots/{name}.svg)" for name in pictures if name != "growth"]
    for group, title in GROUPS.items():
        parts += _section(report, group, title)
        if group == "growth" and group in pictures:
            parts.append(f"![{ALTS[group]}](plots/{group}.svg)")
    if report.rounds:
        parts += ["## Memory and start", markdown(report.memory_and_start())]
    verdicts = report.verdicts(report.scenarios)
    parts += ["## Won and lost", _list(verdicts) or "There was no Java broker to compare with."]
    spread = report.spread()
    if spread[1]:
        parts += ["## Every round", markdown(spread)]
    return "\n\n".join(parts) + "\n"


def circumstances(report: Report) -> list[str]:
    """Date, machine, versions, settings."""
    timing = report.timing
    lines = [
        time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        f"{_processor()}, {os.cpu_count()} cores, {memory_bytes() / 2**30:.0f} GiB, Linux {platform.release()}",
        f"fdatasync of a page in {report.folder}: {fdatasync(report.folder).found}",
        f"load of the machine before: {report.load_before:.2f}",
        f"GantryMQ {__version__}{_revision()}, hot path {KIND}, Python {platform.python_version()}",
        f"Apache RocketMQ {JAVA_VERSION}, {_java()}, {' '.join(java_memory())}",
        f"{_rounds(report.count(report.scenarios))} of the budget, one of the other sections; {timing.seconds:g} s "
        f"each scenario after a warm-up of {timing.warm:g} s and {timing.settle:g} s for each; "
        f"{report.took / 60:.0f} minutes in all",
    ]
    return [*lines, *report.versions.values()]


def markdown(table: Table) -> str:
    """Return a table in Markdown."""
    columns, rows = table
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _section(report: Report, group: str, title: str) -> list[str]:
    scenarios = report.of_group(group)
    figures = report.figure_table(group)
    if not scenarios and not figures[1]:
        return []
    parts = [f"## {title}"]
    if scenarios:
        rounds = _rounds(report.count(scenarios))
        parts.append(f"Medians of {rounds}. Times are ours / Java's, from a request to its answer.")
        parts.append(markdown(report.table(scenarios)))
        if (costs := report.cost_table(scenarios))[1]:
            parts.append("Processor time of the server for each message, user and system time of all threads:")
            parts.append(markdown(costs))
    if limited := report.limited(scenarios):
        parts.append(
            f"The generator's ceiling is less than twice what was measured, and may limit it: {', '.join(limited)}."
        )
    if figures[1]:
        parts.append(markdown(figures))
    return parts


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _rounds(count: int) -> str:
    return "1 round" if count == 1 else f"{count} alternating rounds"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _revision() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return f" ({done.stdout.strip()})" if done.returncode == 0 else ""


def _java() -> str:
    try:
        done = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False)
    except OSError:
        return "no Java"
    return done.stderr.partition("\n")[0]

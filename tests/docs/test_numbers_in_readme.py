"""Each figure of a measurement in the README is in the committed results."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\|(?P<what>[^|]+)\|(?P<rest>.+)\|$", re.MULTILINE)
FIGURE = re.compile(r"\d[\d,]*(?:\.\d+)?")


def section(title: str) -> str:
    """The text of a section of the README."""
    (text,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    return str(text)


def figures() -> list[tuple[str, str]]:
    """Each figure with the row that has it: the third column of what works, the measured rows of the comparison."""
    found = []
    for what, rest in ROW.findall(section("What works")):
        measured = rest.split("|")[-1]
        if re.search(r" / [\d,.]+ ", measured):
            found += [(what.strip(), figure) for figure in FIGURE.findall(measured)]
    for what, rest in ROW.findall(section("Compared with other brokers")):
        cells = [cell.strip(" *") for cell in rest.split("|")]
        if all(re.fullmatch(r"[\d,]*", cell) for cell in cells):
            found += [(what.strip(), cell) for cell in cells if cell]
    return [(what, figure) for what, figure in found if figure not in {"50", "99"}]  # p50 and p99


def test_figures_in_the_readme_equal_the_results() -> None:
    results = set(FIGURE.findall((ROOT / "benchmarks" / "RESULTS.md").read_text()))
    assert len(figures()) > 30
    assert [(what, figure) for what, figure in figures() if figure not in results] == []


def test_the_comparison_equals_the_rows_of_the_results() -> None:
    """GantryMQ's, RocketMQ's, Kafka's and Redis' figures are of one scenario, in the columns that name them."""
    scenarios = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in (ROOT / "benchmarks" / "RESULTS.md").read_text().splitlines()
        if line.startswith(("| pull ", "| send "))
    ]
    rows = {(row[1], row[2], row[6], row[5]) for row in scenarios if len(row) == 11}
    compared = 0
    for _, rest in ROW.findall(section("Compared with other brokers")):
        cells = [cell.strip(" *") for cell in rest.split("|")]
        if all(re.fullmatch(r"[\d,]*", cell) for cell in cells):
            gantrymq, rocketmq, kafka, _, redis = cells
            assert (gantrymq, rocketmq, kafka or "-", redis or "-") in rows
            compared += 1
    assert compared == 4

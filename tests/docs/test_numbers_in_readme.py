"""Each figure of a measurement in the README is in the committed results."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\|(?P<what>[^|]+)\|(?P<rest>.+)\|$", re.MULTILINE)
SYSTEMS = ("gantrymq", "java", "kafka", "nats", "redis")
NUMBER = re.compile(r"[\d,.]*")
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
        if all(NUMBER.fullmatch(cell) for cell in cells):
            found += [(what.strip(), cell) for cell in cells if cell]
    return [(what, figure) for what, figure in found if figure not in {"50", "99"}]  # p50 and p99


def test_figures_in_the_readme_equal_the_results() -> None:
    results = set(FIGURE.findall((ROOT / "benchmarks" / "RESULTS.md").read_text()))
    assert len(figures()) > 30
    assert [(what, figure) for what, figure in figures() if figure not in results] == []


def test_the_comparison_equals_the_rows_of_the_results() -> None:
    """The figures of a row are of one scenario, in the columns of the systems that the table names."""
    rows: set[tuple[str, ...]] = set()
    columns: list[str] = []
    for line in (ROOT / "benchmarks" / "RESULTS.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if line.startswith("| scenario |"):
            columns = [re.sub(r"/s$| us$", "", cell) for cell in cells]
        elif line.startswith(("| pull ", "| send ")) and len(cells) == len(columns):
            figures_of = dict(zip(columns, cells, strict=True))
            rows.add(tuple(figures_of.get(system, "-") for system in SYSTEMS))
    compared = 0
    for _, rest in ROW.findall(section("Compared with other brokers")):
        shown = [cell.strip(" *") for cell in rest.split("|")]
        if all(NUMBER.fullmatch(cell) for cell in shown):
            assert tuple(cell or "-" for cell in shown) in rows
            compared += 1
    assert compared == 7

"""The table of commands in the manual agrees with the comparison with RocketMQ."""

from __future__ import annotations

import re
from pathlib import Path

from support.mqadmin_cases import CASES, GAPS

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "mqadmin.md"
ROW = re.compile(r"^\| (\w+) \| (same|differs) \| (.*?) ?\|$", re.M)


def test_each_command_has_its_row_with_its_state() -> None:
    rows = {name: state for name, state, _ in ROW.findall(PAGE.read_text())}
    different = {case.command for case in CASES if case.name in GAPS}
    expected = {case.command: "differs" if case.command in different else "same" for case in CASES}
    assert rows == expected


def test_every_difference_has_a_reason() -> None:
    assert all(note for _, state, note in ROW.findall(PAGE.read_text()) if state != "same")


def test_every_gap_has_a_test_case() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    assert set(GAPS) <= set(names)

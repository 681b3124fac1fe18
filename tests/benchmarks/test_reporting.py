"""Tables, verdicts and the page: a loss is reported as plainly as a win."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


def test_wins_and_losses_are_reported_the_same_way(report: Any) -> None:
    assert report.verdicts(report.scenarios) == [
        "send 8x16 async: faster than the Java broker, 3.10 times; the goal is 3: reached",
        "send 1x1 async: SLOWER than the Java broker, 0.90 times; the goal is 2: MISSED; its p99 is HIGHER than Java's",
    ]


def test_the_page_has_circumstances_medians_and_every_round(load: Any, report: Any) -> None:
    page = load("page").page(report, "how.md")
    assert "load of the machine before: 0.10" in page
    assert "hot path compiled" in page
    assert "3 alternating rounds" in page
    assert "| send 8x16 async | 310 | 100 | 3.10 | >= 3 | 1 / 1 | 300 / 200 | - / - | - / - | - | 0.50 / 0.50 |" in page
    assert "| send 8x16 async | 310  310  310 | 100  100  100 |" in page
    assert "| resident memory, idle | 64 MiB, 32 of it no file | 64 MiB, 32 of it no file |" in page
    assert page.count("## Connections") == 1
    assert "## Growth" not in page


def test_results_without_java_have_no_ratio_and_no_verdict(load: Any, report: Any) -> None:
    report.rounds = [each for each in report.rounds if each.system == "gantrymq"]
    assert report.verdicts(report.scenarios) == []
    assert "There was no Java broker to compare with." in load("page").page(report, "how.md")


def test_a_partial_page_is_marked_as_partial(load: Any, report: Any, tmp_path: Path) -> None:
    load("page").write_page(report, tmp_path / "RESULTS-partial.md", ended="java, growth: it died")
    assert "**This is a part: it ended early. java, growth: it died**" in (tmp_path / "RESULTS-partial.md").read_text()


def test_a_ceiling_below_twice_the_rate_is_reported(load: Any, report: Any) -> None:
    report.ceilings = {"send 8x16 async": 619.0, "send 1x1 async": 20.0}
    assert report.limited(report.scenarios) == ["send 8x16 async"]
    page = load("page").page(report, "how.md")
    assert "| 619 LIMITS |" in page
    assert "may limit it: send 8x16 async." in page


def test_other_systems_have_columns_if_they_were_measured(report: Any) -> None:
    report.others = {"redis": {"send 8x16 async": [200.0]}, "kafka": {"batch 8, 4x4": [7.0]}}
    columns, rows = report.table(report.scenarios)
    assert "redis/s" in columns
    assert "kafka/s" not in columns
    assert [row[columns.index("redis/s")] for row in rows] == ["200", "-"]


def test_each_goal_has_a_row_with_its_result(load: Any, report: Any) -> None:
    report.others = {"redis": {"send 8x16 async": [400.0]}}
    for system, seconds in (("gantrymq", 0.4), ("java", 0.3)):
        report.figures.add("queues", "first message to each", "s", system, seconds, ratio_goal=1.0)
    assert report.goal_table()[1] == [
        ("send 8x16 async", "310/s", "java", "100/s", ">= 3", "3.10", "reached"),
        ("send 8x16 async", "310/s", "redis", "400/s", ">= 1", "0.78", "MISSED"),
        ("send 1x1 async", "9/s", "java", "10/s", ">= 2", "0.90", "MISSED"),
        ("first message to each", "0.40 s", "java", "0.30 s", ">= 1", "0.75", "MISSED"),
    ]
    assert "| send 8x16 async | 310/s | redis | 400/s | >= 1 | 0.78 | MISSED |" in load("page").page(report, "how.md")
    report.others = {}
    assert report.goal_table()[1][1][3:] == ("-/s", ">= 1", "-", "not measured")


def test_processor_time_for_a_message_has_a_table_with_its_goal(load: Any, report: Any) -> None:
    for each in report.rounds:
        each.costs["send 8x16 async"] = 2.0 if each.system == "gantrymq" else 12.0
    report.rounds[0].costs["send 1x1 async"] = 30.0
    report.costs_of_others = {"redis": {"send 8x16 async": [1.5]}, "nats": {"batch 8, 4x4": [7.0]}}
    columns, rows = report.cost_table(report.scenarios)
    assert columns == ("scenario", "gantrymq us", "java us", "of java's", "goal", "redis us")
    assert rows == [
        ("send 8x16 async", "2.00", "12.00", "0.17", "<= 0.2: reached", "1.50"),
        ("send 1x1 async", "30.00", "-", "-", "-", "-"),
    ]
    assert "| send 8x16 async | 2.00 | 12.00 | 0.17 |" in load("page").page(report, "how.md")
    assert report.as_json()["scenarios"][0]["rounds"][1]["broker_us_per_message"] == 12.0


def test_the_tails_are_in_each_row(load: Any, report: Any) -> None:
    for each in report.rounds:
        each.outcomes["send 8x16 async"].latencies.update({"p99.9": 700, "max": 9000})
    columns, rows = report.table(report.scenarios)
    assert [rows[0][columns.index(f"{which} us")] for which in ("p99.9", "max")] == ["700 / 700", "9,000 / 9,000"]


def test_a_goal_of_a_figure_where_more_is_better_is_a_lower_limit(load: Any) -> None:
    figures = load("figures").Figures()
    for what, value in (("low", 1.7), ("high", 1.8)):
        figures.add("processes", what, "times", "gantrymq", value, more_is_better=True, goal=1.8)
    assert [each.verdict for each in figures.of("processes")] == [
        "goal >= 1.8 times: MISSED", "goal >= 1.8 times: reached",
    ]  # fmt: skip


def test_single_figures_have_medians_goals_and_verdicts(load: Any, report: Any) -> None:
    figures = report.figures
    for value in (1.0, 9.0, 2.0):
        figures.add("recovery", "per GiB", "s", "gantrymq", value, goal=1.5)
    figures.add("recovery", "per GiB", "s", "java", 1.0)
    figures.add("growth", "send", "/s", "gantrymq", 30_000.0, more_is_better=True)
    figures.add("growth", "send", "/s", "java", 10_000.0, more_is_better=True)
    assert report.figure_table("recovery")[1] == [("per GiB", "2 s", "1 s", "WORSE; goal <= 1.5 s: MISSED")]
    assert report.figure_table("growth")[1] == [("send", "30,000 /s", "10,000 /s", "better")]
    lines = load("reporting").figure_lines(["recovery", "growth"], figures)
    assert lines[0] == "Recovery after kill -9: per GiB: 2 s, Java 1 s: WORSE; goal <= 1.5 s: MISSED"
    assert "## Growth" in load("page").page(report, "how.md")


def test_circumstances_get_no_verdict_and_ties_are_ties(load: Any) -> None:
    figures = load("figures").Figures()
    for what, unit in (("bare fdatasync of the same bytes, p50", "us"), ("idle connections held", ""), ("same", "s")):
        for system in ("gantrymq", "java"):
            figures.add("idle", what, unit, system, 5.0)
    assert [each.verdict for each in figures.of("idle")] == ["", "", "equal"]


def test_memory_rows_use_the_memory_budget_run(report: Any) -> None:
    report.rounds[0].budget = report.rounds[1].budget = False
    report.rounds[0].loaded = (2**40, 2**40)
    _, rows = report.memory_and_start()
    assert rows[1][1] == "128 MiB, 64 of it no file"


def test_the_values_are_json_with_every_round(report: Any) -> None:
    values = json.loads(json.dumps(report.as_json()))
    assert [each["name"] for each in values["scenarios"]] == ["send 8x16 async", "send 1x1 async"]
    assert [each["messages_per_second"] for each in values["scenarios"][0]["rounds"]] == [310, 100] * 3
    assert len(values["starts"]) == 6


def test_plots_show_both_systems(load: Any, report: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report.others = {"redis": {"send 8x16 async": [200.0]}}
    for mark in (1, 10):
        for system in ("gantrymq", "java"):
            report.figures.add("growth", f"send 8x16 at {mark} GiB stored", "/s", system, 5.0, more_is_better=True)
    assert load("plots").draw(report, tmp_path) == ["throughput", "latency", "growth"]
    throughput = (tmp_path / "throughput.svg").read_text()
    for text in ("GantryMQ", "RocketMQ 4.9.7", "Redis Streams", "send 8x16 async", "3.10"):
        assert text in throughput
    again = tmp_path / "again"
    load("plots").draw(report, again)
    assert (again / "throughput.svg").read_text() == throughput


def test_no_results_make_no_plot(load: Any, report: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report.rounds = []
    assert load("plots").draw(report, tmp_path) == []

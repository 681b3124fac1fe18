"""``make bench``: what it runs, and that it tells a loss as plainly as a win. No number of a run is asserted."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from gantrymq.bench.running import Outcome

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> object:
    """Import a module of the folder, which is no package."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))

    def call(name: str) -> ModuleType:
        return importlib.import_module(name)

    return call


def outcome(rate: float, p99: int) -> Outcome:
    return Outcome(
        kind="send", messages=int(rate), requests=int(rate), bytes=0, seconds=1.0, latencies={"p50": 1, "p99": p99},
        failures={}, cpu=0.5, cpu_most=0.5, processes=1,
    )  # fmt: skip


@pytest.fixture
def report(load, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    reporting, measuring, scenarios = load("reporting"), load("measuring"), load("scenarios")
    monkeypatch.setattr(reporting, "KIND", "compiled")
    made = reporting.Report(scenarios.chosen("send 8x16 async,send 1x1 async"), 5.0, 20.0, 0.1, str(tmp_path))
    for system, many, alone, p99 in [("gantrymq", 310.0, 9.0, 300), ("java", 100.0, 10.0, 200)] * 3:
        outcomes = {"send 8x16 async": outcome(many, p99), "send 1x1 async": outcome(alone, p99)}
        made.rounds.append(measuring.Round(system, "async", outcomes, 0.4, (2**26, 2**25), (2**27, 2**26)))
    return made


def test_a_win_and_a_loss_are_told_alike(report) -> None:
    assert report.verdicts() == [
        "send 8x16 async: faster than the Java broker, 3.10 times; the goal is 3: reached",
        "send 1x1 async: SLOWER than the Java broker, 0.90 times; "
        "the goal is 1.6: MISSED; its p99 is HIGHER than Java's",
    ]


def test_the_page_has_circumstances_medians_and_every_round(report) -> None:
    page = report.page()
    assert "load of the machine before: 0.10" in page
    assert "hot path compiled" in page
    assert "3 alternating rounds" in page
    assert "| send 8x16 async | 310 | 100 | 3.10 | >= 3 | 1 / 1 | 300 / 200 | - | 0.50 / 0.50 |" in page
    assert "| send 8x16 async | 310  310  310 | 100  100  100 |" in page
    assert "| resident memory, idle | 64 MiB, 32 of it no file | 64 MiB, 32 of it no file |" in page


def test_without_java_there_is_no_ratio_and_no_verdict(report) -> None:
    report.rounds = [each for each in report.rounds if each.system == "gantrymq"]
    assert report.verdicts() == []
    assert "There was no Java broker to compare with." in report.page()


def test_scenarios_are_chosen_by_parts_of_their_names(load) -> None:
    chosen = load("scenarios").chosen
    assert [each.name for each in chosen("1x1, pull")] == [
        "pull 8 queues, 32 a pull", "send 1x1 async", "send 1x1 sync"
    ]  # fmt: skip
    assert len(chosen("")) == 11
    assert chosen("nothing") == []


def test_the_java_brokers_heap_fits_the_machine(load, monkeypatch: pytest.MonkeyPatch) -> None:
    systems = load("systems")
    for memory, heap, direct in [(2, 1, 1), (24, 6, 11), (256, 8, 15)]:
        monkeypatch.setattr(systems, "memory_bytes", lambda memory=memory: memory * 2**30)
        assert f"-Xmx{heap}g" in systems.java_memory()
        assert f"-XX:MaxDirectMemorySize={direct}g" in systems.java_memory()


def test_what_redis_benchmark_says_is_read(load) -> None:
    text = '"test","rps","avg_latency_ms"\n"XADD s * body xxx","123456.78","0.1"\n'
    assert load("streams").parse_rate(text) == 123456.78


def test_no_scenario_of_that_name_is_wrong_usage(tmp_path: Path) -> None:
    done = run(tmp_path, "--only", "nonsense")
    assert done.returncode == 2
    assert "no scenario has 'nonsense' in its name" in done.stderr


@pytest.mark.slow
def test_a_short_run_of_ours_alone_writes_its_page(tmp_path: Path) -> None:
    only = "send 8x16,batch,pull"
    done = run(tmp_path, "--no-java", "--rounds", "1", "--seconds", "0.3", "--warm", "0.4", "--only", only)
    assert done.returncode == 0, done.stderr
    assert "start to first acknowledged message" in done.stdout
    page = (tmp_path / "RESULTS.md").read_text()
    for name in ("pull 8 queues", "send 8x16 async", "send 8x16 sync", "batch 32"):
        assert f"| {name}" in page


def run(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS), "--results", str(tmp_path / "RESULTS.md"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

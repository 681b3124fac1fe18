"""A run of the benchmarks keeps its measurements and reports the failure when a system fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gantrymq.remoting.errors import GantryError


@pytest.fixture
def run(load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A run of two scenarios, whose systems start without any process."""
    bench_run, scenarios = load("bench_run"), load("scenarios")

    @contextmanager
    def start(system: str, setup: object) -> Iterator[Any]:
        yield SimpleNamespace(first_message=0.3, pid=1)

    monkeypatch.setattr(bench_run, "start", start)
    monkeypatch.setattr(bench_run, "ceiling", lambda *given: 100.0 * given[2])
    monkeypatch.setattr(bench_run, "start_seconds", lambda system: 1.5)
    arguments = ["--groups", "budget", "--no-redis", "--rounds", "2", "--results", str(tmp_path / "RESULTS.md")]
    made = bench_run.Run(load("arguments").read(arguments), scenarios.chosen("send 8x16 async,send 64x16"), [])
    made.systems = ["gantrymq", "java"]
    return made


def measured(outcome: Callable[..., Any], fails: Callable[[str, str], bool], lines: list[str]) -> Callable[..., None]:
    def measure(result: Any, running: object, wanted: Any, *rest: object) -> None:
        for scenario in wanted:
            if fails(result.system, scenario.name):
                raise GantryError("it died")
            lines.append(f"{result.system} {scenario.name}")
            result.outcomes[scenario.name] = outcome(50.0)

    return measure


def test_systems_alternate_in_changing_order(
    load: Any, run: Any, outcome: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(load("bench_run"), "measure", measured(outcome, lambda *_: False, lines))
    run.measure()
    systems = [line.split()[0] for line in lines if "8x16 async" in line]
    assert systems == ["gantrymq", "java", "java", "gantrymq"]
    assert run.report.rounds[1].first_message == 1.5


def test_processes_are_added_while_they_increase_the_rate(
    load: Any, run: Any, outcome: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load("bench_run"), "measure", measured(outcome, lambda *_: False, []))
    monkeypatch.setattr(load("bench_run"), "default_processes", lambda: 1)
    run.measure()
    assert set(run.processes.values()) == {2}
    assert set(run.report.ceilings.values()) == {200.0}


def test_results_from_before_a_failure_are_kept(
    load: Any, run: Any, outcome: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fails(system: str, name: str) -> bool:
        return (system, name) == ("java", "send 64x16 async")

    monkeypatch.setattr(load("bench_run"), "measure", measured(outcome, fails, []))
    with pytest.raises(load("measuring").Failed, match="round 1, async flush, java: it died") as caught:
        run.measure()
    run.failures.append(str(caught.value))
    run.publish()
    page = (tmp_path / "RESULTS-partial.md").read_text()
    assert "round 1, async flush, java: it died" in page
    assert "| send 8x16 async | 50 | 50 |" in page
    assert "| send 64x16 async | 50 | - |" in page


def test_a_group_that_fails_for_one_system_runs_for_the_next(
    load: Any, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def growth(system: str, timing: object, sizes: object, figures: Any, progress: Callable[[str], None]) -> None:
        if system == "gantrymq":
            raise RuntimeError("no disk")
        figures.add("growth", "send", "/s", system, 4.0)
        progress("left out: 20 GiB would need more disk")

    monkeypatch.setitem(load("bench_run").SPECIAL, "growth", (growth,))
    run.report.scenarios, run.special = [], ["growth"]
    run.measure()
    assert run.failures == ["growth, gantrymq: no disk"]
    assert run.report.figures.of("growth")[0].values == {"java": [4.0]}
    assert run.report.notes == ["left out: 20 GiB would need more disk"]


def test_no_results_write_no_page(run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run.failures.append("the broker is not there")
    run.publish()
    assert list(tmp_path.iterdir()) == []
    assert "ended early, this is what was measured so far: the broker is not there" in capsys.readouterr().err


def test_other_systems_run_what_they_support_and_their_failures_are_notes(
    load: Any, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench_run = load("bench_run")
    calls: list[str] = []

    def other(name: str, *, asked: bool = True, fails: bool = False) -> Any:
        @contextmanager
        def start(flush: str) -> Iterator[Any]:
            def rate(scenario: Any, seconds: float) -> tuple[float, float]:
                if fails:
                    raise bench_run.ToolMissing("java is needed")
                calls.append(f"{name} {scenario.name}")
                return 70.0, 2.5

            yield SimpleNamespace(rate=rate)

        return bench_run.Other(name, lambda _: asked, lambda: f"{name} 1", lambda each: "8x16" in each.name, start)

    others = (other("Redis", asked=False), other("Kafka", fails=True), other("NATS"))
    monkeypatch.setattr(bench_run, "OTHERS", others)
    run.systems = []
    run.measure()
    assert calls == ["NATS send 8x16 async"]
    assert run.report.others == {"nats": {"send 8x16 async": [70.0]}}
    assert run.report.costs_of_others == {"nats": {"send 8x16 async": [2.5]}}
    assert run.report.notes == ["Kafka, async flush, failed: java is needed"]
    assert {name: run.report.versions[name] for name in ("kafka", "nats")} == {"kafka": "Kafka 1", "nats": "NATS 1"}


def test_another_system_in_the_rounds_follows_the_brokers_in_each(
    load: Any, run: Any, outcome: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench_run = load("bench_run")
    lines: list[str] = []

    @contextmanager
    def start(flush: str) -> Iterator[Any]:
        def rate(scenario: Any, seconds: float) -> tuple[float, float]:
            lines.append(f"redis {scenario.name}")
            return 10.0 * len([line for line in lines if line.startswith("redis")]), 2.5

        yield SimpleNamespace(rate=rate)

    redis = bench_run.Other("Redis", lambda _: True, lambda: "1", lambda each: "8x16" in each.name, start, True)
    monkeypatch.setattr(bench_run, "OTHERS", (redis,))
    monkeypatch.setattr(bench_run, "measure", measured(outcome, lambda *_: False, lines))
    run.measure()
    systems = [line.split()[0] for line in lines if "8x16 async" in line]
    assert systems == ["gantrymq", "java", "redis", "java", "gantrymq", "redis"]
    assert run.report.others == {"redis": {"send 8x16 async": [10.0, 20.0]}}

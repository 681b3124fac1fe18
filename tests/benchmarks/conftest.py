"""Fixtures: the modules of ``benchmarks/``, which is a folder of programs and no package, and a report."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gantrymq.bench.running import Outcome

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

Load = Callable[[str], ModuleType]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    """Import a module of the folder."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


@pytest.fixture
def outcome() -> Callable[..., Outcome]:
    """An outcome of this rate and p99."""

    def make(rate: float, p99: int = 9) -> Outcome:
        return Outcome(
            kind="send", messages=int(rate), requests=int(rate), bytes=0, seconds=1.0,
            latencies={"p50": 1, "p99": p99}, failures={}, cpu=0.5, cpu_most=0.5, processes=1,
        )  # fmt: skip

    return make


@pytest.fixture
def report(load: Load, outcome: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Three rounds of two scenarios: one won, one lost."""
    reporting, measuring, scenarios = load("reporting"), load("measuring"), load("scenarios")
    monkeypatch.setattr(reporting, "KIND", "compiled")
    monkeypatch.setattr(load("page"), "KIND", "compiled")
    chosen = scenarios.chosen("send 8x16 async,send 1x1 async")
    made = reporting.Report(chosen, measuring.Timing(), 0.1, str(tmp_path))
    for system, many, alone, p99 in [("gantrymq", 310.0, 9.0, 300), ("java", 100.0, 10.0, 200)] * 3:
        outcomes = {"send 8x16 async": outcome(many, p99), "send 1x1 async": outcome(alone, p99)}
        made.rounds.append(measuring.Round(system, "async", True, outcomes, 0.4, (2**26, 2**25), (2**27, 2**26)))
    return made


@pytest.fixture
def make_bench(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run ``make bench``'s program; its page goes to the test's folder."""

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(BENCHMARKS), "--results", str(tmp_path / "RESULTS.md"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)

    return call

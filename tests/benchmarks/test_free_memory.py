"""The free memory is used once before a run, and given back."""

from __future__ import annotations

import os
from typing import Any

import pytest

MIB = 2**20


def test_free_memory_is_written_to_and_released(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = load("free_memory")
    monkeypatch.setattr(memory, "free_bytes", lambda: memory.LEFT_BYTES + 150 * MIB)
    before, _ = load("systems").resident_bytes(os.getpid())
    assert memory.touch_free_memory() == 128 * MIB
    assert load("systems").resident_bytes(os.getpid())[0] - before < 64 * MIB


def test_a_gibibyte_stays_free(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = load("free_memory")
    monkeypatch.setattr(memory, "free_bytes", lambda: memory.LEFT_BYTES - 1)
    assert memory.touch_free_memory() == 0


def test_only_a_whole_run_uses_the_memory_without_being_asked(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bench_run, arguments = load("bench_run"), load("arguments")
    asked: list[object] = []
    monkeypatch.setattr(bench_run, "touch_free_memory", lambda: asked.append(None) or 2**30)
    for words, expected in ((["--only", "none of them"], 0), (["--only", "none of them", "--touch"], 1)):
        run = bench_run.Run(arguments.read(words), [], [])
        run.measure()
        assert len(asked) == expected
        assert [line for line in run.report.notes if "free memory" in line][:1] == (
            ["free memory that was used once before: 1.0 GiB, in 0.0 s"] if expected else []
        )

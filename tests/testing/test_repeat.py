"""``make repeat``, which finds flaky tests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

REPEAT = Path(__file__).parents[1] / "support/repeat.py"
FLAKY = """
import os, pathlib, pytest

@pytest.mark.parametrize("row", ["a - b"])
def test_fails_in_the_second_run(row):
    with open("runs", "a") as file:
        file.write(os.environ["GANTRYMQ_SLICE"] + " ")
    assert len(pathlib.Path("runs").read_text().split()) != 2

def test_passes():
    pass
"""

STALLED = """
import time

def test_measures_its_longest_pause():
    longest, last = 0.0, time.monotonic()
    for _ in range(400):
        time.sleep(0.005)
        longest, last = max(longest, time.monotonic() - last), time.monotonic()
    with open("pauses", "a") as file:
        file.write(f"{longest} ")
"""
LATE = """
import os, time, trio
from support.late_threads import delay_threads

delay_threads(float(os.environ["GANTRYMQ_LATE_THREADS"]))

def test_measures_its_latest_thread():
    async def calls():
        times = []
        for _ in range(60):
            times.append(await trio.to_thread.run_sync(lambda *words: (words, time.monotonic())[1], "a", "b"))
        return times
    times = trio.run(calls)
    with open("pauses", "a") as file:
        file.write(f"{max(after - before for before, after in zip(times, times[1:]))} ")
"""


def repeat(folder: Path, *arguments: str, options: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, REPEAT, "--runs", "3", "--log", "logs", *options, "--", *arguments],
        cwd=folder, capture_output=True, text=True, check=False,
        env={"GANTRYMQ_SLICE": "20", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(REPEAT.parents[1])},
    )  # fmt: skip


@pytest.mark.slow
def test_a_test_that_fails_in_one_run_is_named(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(FLAKY)
    done = repeat(tmp_path, "test_it.py")
    name = "test_it.py::test_fails_in_the_second_run[a - b]"
    first, second, third, last = done.stdout.splitlines()
    assert first.startswith("run 1 of 3: 2 passed in ")
    assert second.startswith("run 2 of 3: 1 failed, 1 passed in ")
    assert second.endswith(f"(slice 21) {name}")
    assert third.startswith("run 3 of 3: 2 passed in ")
    assert last == f"failed in 1 of 3 runs: {name}"
    assert done.returncode == 1
    assert (tmp_path / "runs").read_text() == "20 21 22 "
    assert "assert" in (tmp_path / "logs/run-2.log").read_text()


@pytest.mark.slow
def test_a_run_without_tests_ends_the_series(tmp_path: Path) -> None:
    done = repeat(tmp_path, "missing.py")
    assert done.stdout.startswith("run 1 of 3: no test ran in ")
    assert done.stderr == "pytest ended with exit code 4: see logs/run-1.log\n"
    assert done.returncode == 4


@pytest.mark.slow
@pytest.mark.parametrize(("option", "test"), [("--stall", STALLED), ("--late-threads", LATE)], ids=["stall", "late"])
def test_processes_are_paused_and_threads_begin_late_if_wanted(tmp_path: Path, option: str, test: str) -> None:
    (tmp_path / "test_it.py").write_text(test)
    done = repeat(tmp_path, "test_it.py", options=[option, "0.3", "--busy", "0"])
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(float, (tmp_path / "pauses").read_text().split())) > 0.1

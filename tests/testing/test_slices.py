"""The variants of repetitive tests in a run (``support.slices``)."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from support.slices import NUMBER_VARIABLE, WHOLE_VARIABLE, choose, slice_number

TESTS = Path(__file__).parents[1]
FILE = """
import pytest

@pytest.mark.soak(2)
@pytest.mark.parametrize("seed", range(5))
def test_seeds(seed): pass

@pytest.mark.soak(1, of="seed")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("lost", ["master", "slave"])
def test_each(lost, seed): pass

@pytest.mark.soak(1, among="others")
@pytest.mark.parametrize("number", range(2))
def test_one(number): pass

@pytest.mark.soak(1, among="others")
def test_other(): pass

@pytest.mark.soak(0)
def test_costly(): pass

def test_always(): pass
"""


def collected(folder: Path, *arguments: str, **variables: str) -> list[str]:
    """The names of the tests that a run with these variables has."""
    (folder / "test_file.py").write_text(FILE)
    (folder / "conftest.py").write_text((TESTS / "conftest.py").read_text())
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n  soak: x\n  once: x\n")
    environ = {name: value for name, value in os.environ.items() if name not in (WHOLE_VARIABLE, NUMBER_VARIABLE)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=folder, env={**environ, "PYTHONPATH": str(TESTS), **variables}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return [line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 9])
def test_slices_differ_until_every_variant_was_selected(count: int) -> None:
    variants = list(range(7))
    slices = [choose(variants, count, number, "test") for number in range(20_000, 20_000 + -(-7 // count))]
    assert all(len(each) == min(count, 7) and each == sorted(each) for each in slices)
    assert {variant for each in slices for variant in each} == set(variants)


def test_a_slice_has_variants_from_distant_positions() -> None:
    chosen = choose(range(9), 3, 0, "test")
    assert [after - before for before, after in pairwise(chosen)] == [3, 3]


def test_two_tests_start_with_different_variants() -> None:
    assert len({choose(range(20), 1, 0, name)[0] for name in ("a", "b", "c", "d")}) > 1


def test_a_slice_without_a_variant_is_rejected() -> None:
    with pytest.raises(ValueError, match="one variant at least, not 0"):
        choose([1], 0, 0)


def test_the_number_is_the_days_unless_the_environment_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NUMBER_VARIABLE, raising=False)
    assert slice_number() > 20_000
    monkeypatch.setenv(NUMBER_VARIABLE, "17")
    assert slice_number() == 17
    monkeypatch.setenv(NUMBER_VARIABLE, "today")
    with pytest.raises(ValueError, match="GANTRYMQ_SLICE is the number of a slice, not 'today'"):
        slice_number()


@pytest.mark.slow
def test_a_run_has_its_slice_and_a_soak_or_a_named_test_has_all(tmp_path: Path) -> None:
    runs = [collected(tmp_path, GANTRYMQ_SLICE=str(number)) for number in range(3)]
    for run in runs:
        tests = [name.partition("[")[0] for name in run]
        assert tests[:4] == ["test_seeds", "test_seeds", "test_each", "test_each"]
        assert tests[4] in ("test_one", "test_other")
        assert tests[5:] == ["test_always"]
        assert {name.partition("[")[2].partition("-")[0] for name in run if "each" in name} == {"master", "slave"}
    everything = collected(tmp_path, GANTRYMQ_SOAK="true")
    assert len(everything) == 5 + 6 + 3 + 1 + 1
    assert {name for run in runs for name in run} == set(everything) - {"test_costly"}
    assert len(collected(tmp_path, "test_file.py::test_seeds")) == 5

"""The coverage-guided fuzzer finds a planted bug, and none in a few seconds of each important target."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("atheris", reason="atheris has no build for this interpreter")
pytestmark = [pytest.mark.slow, pytest.mark.once]

GUIDED = Path(__file__).with_name("guided.py")
SECONDS = 4
PLANTED = """
from types import SimpleNamespace

def parse(data):
    if data[:1] == b"L":
        if data[1:2] == b"O":
            if data[2:3] == b"G":
                if data[3:4] == b"7":
                    raise KeyError("planted")

TARGETS = {"planted": SimpleNamespace(parse=parse, corpus=(b"....",), errors=(ValueError,))}
"""


def fuzz(name: str, folder: Path, *options: str, targets: Path = GUIDED.parent) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", str(GUIDED), name, str(folder / "corpus"), "-seed=1", *options],
        cwd=folder, env={**os.environ, "PYTHONPATH": f"{targets}:{GUIDED.parents[1]}"},
        capture_output=True, text=True, timeout=280,
    )  # fmt: skip


def test_guided_fuzzing_finds_a_fault_behind_four_bytes(tmp_path: Path) -> None:
    (tmp_path / "fuzz_targets.py").write_text(PLANTED)
    # By chance one input in four thousand million reaches it.
    ended = fuzz("planted", tmp_path, "-runs=2000000", targets=tmp_path)
    assert ended.returncode != 0
    assert "KeyError: 'planted'" in ended.stdout + ended.stderr
    (crash,) = tmp_path.glob("crash-*")
    assert crash.read_bytes().startswith(b"LOG7")


@pytest.mark.soak(2)
@pytest.mark.parametrize(
    "name",
    ["frames and headers", "requests, plain", "a log, plain", "SQL92", "twins: damaged requests", "twins: pulls"],
)
def test_guided_fuzzing_finds_no_fault(name: str, tmp_path: Path) -> None:
    ended = fuzz(name, tmp_path, f"-max_total_time={SECONDS}")
    assert ended.returncode == 0, ended.stderr[-5000:]
    assert re.search(r"Done \d{2,} runs", ended.stderr)

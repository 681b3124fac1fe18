"""Which twin runs, and that one can ask for the plain one."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest


def kind(**environment: str) -> str:
    """What a process with these variables says."""
    code = "from gantrymq.kernel.fast import KIND; print(KIND)"
    inherited = {name: value for name, value in os.environ.items() if name != "GANTRYMQ_PURE"}
    return subprocess.run(
        [sys.executable, "-c", code], env={**inherited, **environment}, capture_output=True, text=True, check=True
    ).stdout.strip()


def test_the_plain_twin_runs_when_it_is_asked_for() -> None:
    assert kind(GANTRYMQ_PURE="1") == "plain"


def test_the_compiled_twin_runs_where_it_was_built() -> None:
    built = all(
        importlib.util.find_spec(f"gantrymq.kernel.fast.{name}") for name in ("_flusher", "_records", "_requests")
    )
    assert kind() == ("compiled" if built else "plain")


@pytest.mark.skipif(os.environ.get("CI") != "true", reason="elsewhere there may be no compiler")
def test_ci_tests_both_twins() -> None:
    assert importlib.util.find_spec("gantrymq.kernel.fast._requests") is not None

"""Shells complete commands and options of ``gantrymq``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

PROGRAM = [sys.executable, "-m", "gantrymq.cli"]


def completed(*words: str) -> list[str]:
    """What bash is offered for the last of ``words``."""
    environment = os.environ | {
        "_GANTRYMQ_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(("gantrymq", *words)),
        "COMP_CWORD": str(len(words)),
    }  # fmt: skip
    done = subprocess.run(PROGRAM, env=environment, capture_output=True, text=True, timeout=60)
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


def test_commands_and_options_are_completed() -> None:
    assert completed("top") == ["topic", "top"]
    assert completed("topic", "de") == ["delete", "describe"]
    assert "--dry-run" in completed("group", "reset-offsets", "--d")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_script_calls_the_program(cli: Callable[..., Any], shell: str) -> None:
    if shell == "bash" and shutil.which("bash") is None:
        pytest.skip("bash is not installed, which the script's version check runs")
    outcome = cli("completion", shell)
    assert outcome.code == 0
    assert "_GANTRYMQ_COMPLETE" in outcome.out
    if shutil.which(shell):
        parsed = subprocess.run([shell, "-n"], input=outcome.out, capture_output=True, text=True, timeout=60)
        assert parsed.returncode == 0, parsed.stderr


def test_an_unknown_shell_is_wrong_usage(cli: Callable[..., Any]) -> None:
    assert cli("completion", "tcsh").code == 2

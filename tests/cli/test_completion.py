"""Shells complete commands and options of ``gantrymq``."""

from __future__ import annotations

import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

PROGRAM = [sys.executable, "-m", "gantrymq.cli"]


def completed(*words: str) -> list[str]:
    """The completions for the last of ``words`` in bash."""
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


ALL_SET = "echo all-''set"
"""A line whose echo differs from what it prints."""
SHELLS = {
    "bash": (["--norc", "-i"], 'eval "$(gantrymq completion bash)"'),
    "zsh": (["-f", "-i"], 'autoload -U compinit; compinit -D; eval "$(gantrymq completion zsh)"'),
    "fish": (["--no-config"], "gantrymq completion fish | source"),
}


def of_session(session: int) -> list[int]:
    """The processes of one terminal session, its leader included."""
    found = [session]
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(ProcessLookupError):
            if int(entry.name) != session and os.getsid(int(entry.name)) == session:
                found.append(int(entry.name))
    return found


def typed(shell: str, line: str, wanted: str, home: Path) -> str:
    """What an interactive shell in a terminal shows for ``line`` and Tab, up to ``wanted``, or all of it in the end."""
    options, setup = SHELLS[shell]
    child, terminal = pty.fork()
    if child == 0:
        folder = os.path.dirname(sys.executable)
        given = {"TERM": "xterm", "HOME": str(home), "PATH": f"{folder}:{os.environ['PATH']}", "COLUMNS": "200"}
        os.execvpe(shell, [shell, *options], os.environ | given)
    shown = b""

    def read(until: bytes, seconds: float) -> None:
        nonlocal shown
        ends = time.monotonic() + seconds
        while until not in shown and time.monotonic() < ends:
            if select.select([terminal], [], [], 0.1)[0]:
                try:
                    shown += os.read(terminal, 65_536)
                except OSError:  # it has ended
                    return

    try:
        os.write(terminal, f"{setup}; {ALL_SET}\n".encode())
        read(b"all-set", 60)
        shown = b""
        os.write(terminal, f"{line}\t".encode())
        for _ in range(30):  # a Tab completes what is common to all, another one shows them
            read(wanted.encode(), 1)
            if wanted.encode() in shown:
                break
            os.write(terminal, b"\t")
        return shown.decode(errors="replace")
    finally:
        for process in of_session(child):  # zsh's completion is a process of its own, which outlives a killed shell
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(terminal)


@pytest.mark.once
@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_in_a_terminal_completes_commands(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None or not Path(sys.executable).with_name("gantrymq").exists():
        pytest.skip(f"{shell} or the program is not installed (Debian: apt install {shell})")
    assert "topic" in typed(shell, "gantrymq to", "topic", tmp_path)


@pytest.mark.once
@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed (Debian: apt install fish)")
def test_fish_shows_descriptions_beyond_a_comma(cli: Callable[..., Any], tmp_path: Path) -> None:
    (script := tmp_path / "gantrymq.fish").write_text(cli("completion", "fish").out)
    folder = os.path.dirname(sys.executable)
    lines = f'set PATH {folder} $PATH; source {script}; complete -C "gantrymq topi"'
    done = subprocess.run(["fish", "--no-config", "-c", lines], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("topic\tCreate, list"), done


def test_an_unknown_shell_is_wrong_usage(cli: Callable[..., Any]) -> None:
    assert cli("completion", "tcsh").code == 2

"""``deploy/logrotate/gantrymq`` with the real logrotate: after a rotation the server writes to a new file."""

from __future__ import annotations

import getpass
import grp
import os
import subprocess
from pathlib import Path

import pytest

from support.debian import find_unpacked
from support.foreign import ToolMissing, cache_folder
from support.processes import gantrymq_child, wait_for

ROOT = Path(__file__).resolve().parents[2]
SYSTEMCTL = """#!/bin/sh
echo "$*" >>"{log}"
case "$*" in
    *--kill-whom*) echo "systemctl: unrecognized option '--kill-whom=main'" >&2; exit 1 ;;
    "show --property MainPID --value gantrymq-nameserver.service") echo {pid} ;;
    "show --property MainPID --value "*) echo 0 ;;
    *) exit 1 ;;
esac
"""
"""systemctl before systemd 252, of a machine that has only the nameserver's unit."""


def test_a_forced_rotation_compresses_nothing_yet_and_the_server_opens_the_new_file(tmp_path: Path) -> None:
    try:
        logrotate = find_unpacked(cache_folder(ROOT / "tests/interop/.cache"), "logrotate", "logrotate")
    except ToolMissing as missing:
        pytest.skip(str(missing))
    logs, programs = tmp_path / "log", tmp_path / "bin"
    logs.mkdir(mode=0o750)
    programs.mkdir()
    own, rotated, config = logs / "nameserver.log", logs / "nameserver.log.1", tmp_path / "logrotate.conf"
    shipped = (ROOT / "deploy/logrotate/gantrymq").read_text()
    assert "/var/log/gantrymq/*.log {" in shipped
    mine = f"create 0640 {getpass.getuser()} {grp.getgrgid(os.getgid()).gr_name}"
    config.write_text(shipped.replace("/var/log/gantrymq", str(logs)).replace("create 0640 gantrymq gantrymq", mine))
    config.chmod(0o644)
    arguments = ["nameserver", "--listen", "127.0.0.1:0", "--log-file", str(own), "--log-level", "info"]
    with gantrymq_child(arguments, tmp_path / "stderr") as child:
        wait_for(lambda: own.exists() and own.read_text() != "", 10.0)
        calls = tmp_path / "calls"
        systemctl = programs / "systemctl"
        systemctl.write_text(SYSTEMCTL.format(log=calls, pid=child.process.pid))
        systemctl.chmod(0o755)
        environ = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
        command = [logrotate, "--state", str(tmp_path / "state"), str(config)]
        for option in ("--debug", "--force"):
            done = subprocess.run([*command, option], env=environ, capture_output=True, text=True, check=False)
            assert (done.returncode, "error" in done.stderr) == (0, False), done.stderr
            assert rotated.exists() == (option == "--force")
        wait_for(lambda: "log_file_reopened" in own.read_text(), 10.0)
        assert "log_file_reopened" not in rotated.read_text()
        assert own.stat().st_mode & 0o777 == 0o640
        assert [line.split()[-1] for line in calls.read_text().splitlines()] == [
            "gantrymq-broker.service", "gantrymq-nameserver.service",
        ]  # fmt: skip
        assert child.terminate() == 0

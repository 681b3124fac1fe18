"""The image and the systemd units run: built by buildah from the Dockerfile, booted by systemd-nspawn.

Only ``make soak`` has these tests, as root: they make a small Debian, which takes some minutes. No base image can be
fetched from a registry of images here, so that Debian stands in for it (with Debian's Python 3.11).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from support.images import DOCKERFILE, Image
from support.processes import wait_for

pytestmark = [pytest.mark.soak(0), pytest.mark.slow, pytest.mark.once, pytest.mark.timeout(3600)]

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """
[broker]
listen = "127.0.0.1:{broker}"
nameservers = ["127.0.0.1:9876"]
[store]
commit_log_file_bytes = "4 MiB"
[plugin.http]
listen = "127.0.0.1:{http}"
"""


@pytest.fixture
def container(image: Image) -> Iterator[str]:
    name = image.buildah("from", "--pull-never", image.name)
    yield name
    image.buildah("rm", name)


def test_the_image_serves_as_its_user_passes_its_health_check_and_stops_cleanly(
    image: Image, container: str, tmp_path: Path
) -> None:
    buildah = image.buildah
    version = json.loads(buildah("run", container, "--", "gantrymq", "version", "--json"))
    assert version["loops"] == "compiled"
    extras = re.search(r"\$1\[([a-z,]+)\]", DOCKERFILE.read_text())
    assert extras is not None
    assert set(extras[1].split(",")) - {"tls"} <= set(version["extras"])
    mounted = Path(buildah("mount", container))
    assert not list((mounted / "opt/gantrymq").rglob("tests/conftest.py"))
    store = tmp_path / "store"
    store.mkdir(mode=0o700)
    os.chown(store, 10001, 10001)
    ports = ["--listen", "127.0.0.1:0", "--nameserver-listen", "127.0.0.1:0"]
    command = buildah.command(
        "run", "--volume", f"{store}:/var/lib/gantrymq", container, "--", "gantrymq", "serve", *ports
    )
    environ = {**os.environ, "BUILDAH_ISOLATION": "chroot"}
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(command, env=environ, stdout=log, stderr=log) as child:
        try:
            wait_for(lambda: b"\nready " in (tmp_path / "log").read_bytes(), 60.0)
            health = re.search(r"HEALTHCHECK.*\\\n\s+CMD (\[.*\])", DOCKERFILE.read_text())
            assert health is not None
            buildah("run", container, "--", *json.loads(health[1]))
            # buildah kills its container at SIGTERM; Docker sends STOPSIGNAL to the server itself
            server = descendants(child.pid)[-1]
            assert b"gantrymq\0serve" in Path(f"/proc/{server}/cmdline").read_bytes()
            assert Path(f"/proc/{server}").stat().st_uid == 10001
            os.kill(server, signal.SIGTERM)
            assert child.wait(60) == 0
        finally:
            child.kill()
    assert not (store / "abort").exists(), "a clean stop"


def children(pid: int) -> list[int]:
    """The processes that any thread of ``pid`` has started."""
    texts = [task.read_text() for task in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(number) for text in texts for number in text.split()]


def descendants(pid: int) -> list[int]:
    """The processes below ``pid``, each with one child, in order."""
    found: list[int] = []
    while below := children(pid):
        pid = below[0]
        found.append(pid)
    return found


@pytest.fixture
def machine(image: Image, container: str, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Runs a command in a booted system, which has ``/opt/gantrymq`` of the image and this repository's ``deploy/``."""
    root = tmp_path / "machine"
    # not shutil.copytree, which would read devices to their end
    subprocess.run(["cp", "--archive", image.system, root], check=True)
    subprocess.run(
        ["cp", "--archive", Path(image.buildah("mount", container)) / "opt/gantrymq", root / "opt"], check=True
    )
    shutil.copytree(ROOT / "deploy", root / "root/deploy")
    (root / "root/broker.toml").write_text(CONFIG.format(broker=10911, http=8558))
    (root / "etc/machine-id").write_text("")
    options = ["--quiet", "--register=no", "--keep-unit", "--private-network", "--console=pipe", f"--directory={root}"]
    nspawn = subprocess.Popen(
        ["systemd-nspawn", *options, "--boot"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    try:
        wait_for(lambda: bool(children(nspawn.pid)), 30.0)
        init = str(children(nspawn.pid)[0])
        enter = ["nsenter", "--target", init, "--mount", "--uts", "--ipc", "--net", "--pid", "--wdns=/root", "--"]

        def call(*command: str, check: bool = True) -> str:
            environ = {"PATH": "/usr/bin:/usr/sbin:/bin:/sbin", "SYSTEMD_PAGER": ""}
            done = subprocess.run([*enter, *command], env=environ, capture_output=True, text=True, check=False)
            assert not check or done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
            return done.stdout

        wait_for(lambda: call("systemctl", "is-system-running", check=False).strip() == "running", 300.0)
        yield call
        with suppress(ProcessLookupError):
            os.kill(int(init), signal.SIGRTMIN + 4)  # power off
        nspawn.wait(90)
    finally:
        nspawn.kill()
        nspawn.wait()


def test_the_documented_installation_runs_under_systemd(machine: Callable[..., str]) -> None:
    page = (ROOT / "docs/howto/deploy.md").read_text().partition("## On a machine with systemd")[2]
    commands = page.partition("```sh\n")[2].partition("```")[0].splitlines()
    steps = [command for command in commands if not command.startswith(("python3 -m venv", "/opt/gantrymq/bin/pip"))]
    assert len(steps) == len(commands) - 2
    machine("mkdir", "-p", "/etc/systemd/system/gantrymq-broker.service.d")
    log_file = "[Service]\\nEnvironment=GANTRYMQ_LOG_FILE=/var/log/gantrymq/broker.log\\n"
    machine("sh", "-c", f"printf '{log_file}' >/etc/systemd/system/gantrymq-broker.service.d/log.conf")
    machine("sh", "-ec", "\n".join(steps))
    show = "systemctl show --property=ActiveState,StatusText,NRestarts --value"
    assert set(machine("sh", "-c", f"{show} gantrymq-broker").split()) == {"0", "active", "serving"}
    gantrymq = "/opt/gantrymq/bin/gantrymq"
    machine("sh", "-ec", f"{gantrymq} topic create orders && echo hello | {gantrymq} produce orders")
    machine("systemctl", "start", "gantrymq-backup")
    assert machine("ls", "/var/backups/gantrymq").strip()

    log = "/var/log/gantrymq/broker.log"
    machine("systemctl", "reload", "gantrymq-broker")
    machine("logrotate", "--force", "/etc/logrotate.d/gantrymq")
    deadline = time.monotonic() + 20
    while "log_file_reopened" not in machine("cat", log):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert "log_file_reopened" not in machine("cat", f"{log}.1")

    pid = machine("systemctl", "show", "--property=MainPID", "--value", "gantrymq-broker").strip()
    machine("sh", "-c", f"kill -STOP {pid}")
    deadline = time.monotonic() + 90
    while set(machine("sh", "-c", f"{show} gantrymq-broker").split()) != {"1", "active", "serving"}:
        assert time.monotonic() < deadline, "the watchdog restarts a server that hangs"
        time.sleep(1)
    found = machine(gantrymq, "topic", "peek", "orders", "--max", "1")
    assert "hello" in found
    machine("systemctl", "stop", "gantrymq-broker")
    assert machine("sh", "-c", "systemctl is-failed gantrymq-broker || true").strip() == "inactive"
    machine("test", "!", "-e", "/var/lib/gantrymq/abort")

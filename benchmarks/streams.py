"""Redis Streams beside the brokers, where it is installed: XADD, driven by Redis's own load generator."""

from __future__ import annotations

import csv
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
from scenarios import Scenario
from systems import processor_seconds

from support.processes import free_ports, wait_for

FSYNC = {"async": "everysec", "sync": "always"}
TRIAL_REQUESTS = 20_000
TRIAL_BYTES = 200 * 2**20
RUN_SECONDS_MAX = 600.0
SubprocessError = subprocess.SubprocessError


def is_installed() -> bool:
    """Return whether the server and its load generator are installed."""
    return all(shutil.which(name) for name in ("redis-server", "redis-benchmark", "redis-cli"))


def version_line() -> str:
    """The server's version, and how it is measured."""
    return f"Redis {_version()}, XADD by redis-benchmark, in the same rounds; appendfsync everysec and always"


def _version() -> str:
    said = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=True).stdout
    return next((word.removeprefix("v=") for word in said.split() if word.startswith("v=")), "?")


@attrs.frozen
class Redis:
    """A running server."""

    port: int
    pid: int

    def rate(self, scenario: Scenario, seconds: float) -> tuple[float, float]:
        """XADD a second, and microseconds of the server's processor time for each; a trial run determines how many make
        ``seconds``."""
        requests = TRIAL_REQUESTS // 10 if scenario.is_alone else min(TRIAL_REQUESTS, TRIAL_BYTES // scenario.size)
        count = max(1000, int(_run(self.port, scenario, requests) * seconds))
        used = -processor_seconds(self.pid)
        rate = _run(self.port, scenario, count)
        return rate, (used + processor_seconds(self.pid)) / count * 1e6


@contextmanager
def redis(flush: str) -> Iterator[Redis]:
    """A server with an append-only file in an empty folder."""
    (port,) = free_ports()
    with tempfile.TemporaryDirectory(prefix="gantrymq-bench-redis-") as folder:
        command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", ""]
        command += ["--appendonly", "yes", "--appendfsync", FSYNC[flush]]
        with Path(folder, "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
            try:
                wait_for(lambda: _answers(port))
                yield Redis(port, process.pid)
            finally:
                process.terminate()


def _run(port: int, scenario: Scenario, requests: int) -> float:
    command = ["redis-benchmark", "-p", str(port), "-c", str(scenario.connections), "-P", str(scenario.in_flight)]
    command += ["-n", str(requests), "--csv", "XADD", scenario.topic, "*", "body", "x" * scenario.size]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=RUN_SECONDS_MAX)
    return parse_rate(done.stdout)


def parse_rate(text: str) -> float:
    """Requests a second of the last row of ``redis-benchmark --csv``: test, rps, ..."""
    rows = [row for row in csv.reader(text.splitlines()) if len(row) > 1]
    return float(rows[-1][1])


def _answers(port: int) -> bool:
    command = ["redis-cli", "-p", str(port), "ping"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() == "PONG"

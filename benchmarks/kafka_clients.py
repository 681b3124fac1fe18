"""Kafka's Python clients beside ours, in the group ``client``: each with its own kind of broker on this machine. They
are no dependency of the project: pip installs them into an environment in the folder ``build``."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import kafka
from client import PROCESSOR, SEND_AND_WAIT, STORED_MESSAGES
from figures import Figures
from page import ROOT

from support.foreign import ToolMissing

Progress = Callable[[str], None]
PACKAGES = ("confluent-kafka==2.16.1", "aiokafka==0.14.0")
CLIENTS = ("confluent", "aiokafka")
RUN_SECONDS_MAX = 600.0
_LOAD = Path(__file__).with_name("kafka_clients_load.py")


def measure_kafka_clients(seconds: float, figures: Figures, progress: Progress) -> None:
    """Measure each client with a Kafka node and add its figures. Raises ToolMissing, RuntimeError."""
    python = find_python()
    with kafka.kafka("async") as node:
        command = [str(python), str(_LOAD), node.address, str(seconds), str(STORED_MESSAGES)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS_MAX, check=False)
    if done.returncode:
        raise RuntimeError(f"the load of Kafka's clients ended with {done.returncode}: {done.stderr[-1000:]}")
    for client, found in json.loads(done.stdout).items():
        add(client, found, figures, progress)


def add(client: str, found: dict[str, list[float]], figures: Figures, progress: Progress) -> None:
    """Add the figures of one client from the output of the load."""
    text = []
    for what, values in found.items():
        if what == SEND_AND_WAIT:
            figures.add("client", f"p50 of {what}", "us", client, values[0])
            text.append(f"{what} {values[0]:.0f} us")
            continue
        rate, processor = values
        figures.add("client", what, "/s", client, rate, more_is_better=True)
        figures.add("client", PROCESSOR.format(what), "us", client, processor)
        text.append(f"{what} {rate:,.0f}/s ({processor:.1f} us)")
    progress(f"{client:9} Python client: {', '.join(text)}")


def find_python() -> Path:
    """Return the interpreter of an environment with Kafka's clients, and create the environment if it is missing."""
    folder = ROOT / "build" / "kafka-clients"
    python = folder / "bin" / "python"
    done = folder / "complete"
    if not done.exists() or done.read_text() != _kind():
        for command in (
            [sys.executable, "-m", "venv", "--clear", str(folder)],
            [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *PACKAGES],
        ):
            made = subprocess.run(command, capture_output=True, text=True, check=False)
            if made.returncode:
                raise ToolMissing(f"pip could not install {' and '.join(PACKAGES)}: {made.stderr[-500:]}")
        done.write_text(_kind())
    return python


def _kind() -> str:
    return f"{sys.version} {' '.join(PACKAGES)}"

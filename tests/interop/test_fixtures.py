"""The pytest fixtures that users get run the same suite on RocketMQ's own broker."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.once]

SUITE = """
def test_round_trip(gantry_broker, gantry_client, gantry_topic):
    assert gantry_broker.address
    with gantry_client.producer() as producer:
        producer.send(gantry_topic, b"three apples", tags="new")
    with gantry_client.consumer(gantry_topic, "readers", start="first") as consumer:
        message = next(consumer)
        message.ack()
    assert (message.body, message.tags) == (b"three apples", "new")
"""


def test_a_test_suite_runs_on_rocketmq_unchanged(java_system: Any, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "-q", "--gantry-nameserver", java_system.nameserver, str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

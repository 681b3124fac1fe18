"""A command imports only the modules that it needs, and none of the broker."""

from __future__ import annotations

import subprocess
import sys

import pytest

SHOW = """
import sys
from gantrymq.cli.__main__ import run
code = run(sys.argv[1:])
print(code, *sorted(name for name in sys.modules if name.startswith(("gantrymq.kernel", "gantrymq.plugins"))))
"""


@pytest.mark.parametrize("command", ["produce", "consume", "worker", "query", "cluster"])
def test_a_command_of_clients_starts_without_the_modules_of_the_broker(command: str) -> None:
    done = subprocess.run([sys.executable, "-c", SHOW, command, "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0"

"""GantryMQ as it was at an earlier commit of this repository, as the version before an upgrade."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import attrs
import pytest

from support.processes import Child

ROOT: Final = Path(__file__).resolve().parents[2]
FIRST_DAY: Final = "9d6c045"
"""The broker of the project's first day: before timers, transactions and replication."""
WITH_REPLICATION: Final = "2c1fd94"
"""The next day: a pair with a synchronous master."""


@attrs.frozen
class OlderVersion:
    """The source of a commit, run in plain Python, so that nothing is compiled."""

    commit: str
    folder: Path

    def child(self, arguments: Sequence[str], log: Path) -> Child:
        """Its command line, as a process."""
        env = {**os.environ, "PYTHONPATH": str(self.folder), "GANTRYMQ_PURE": "1"}
        return Child([sys.executable, "-P", "-m", "gantrymq.cli", *arguments], log, env=env)


def get_older_version(commit: str, folder: Path) -> OlderVersion:
    """Extract ``commit`` into ``folder``; the test is expected to fail if this is no repository with that commit."""
    command = ["git", "-C", str(ROOT), "archive", commit, "gantrymq", "kernel", "plugins"]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode != 0:
        # Not a skip, which CI counts as a tool that is missing: a checkout without the history is no fault of it.
        pytest.xfail(f"no commit {commit} here: {done.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="tar")
    return OlderVersion(commit, folder)

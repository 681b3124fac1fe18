"""RocketMQ's programs start with an archive of their classes; without it each start takes much longer."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support.foreign import Java

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.once]


@pytest.mark.parametrize("version", ["java", "java5"])
def test_the_class_data_archive_matches_the_class_path(
    request: pytest.FixtureRequest, tmp_path: Path, version: str
) -> None:
    java: Java = request.getfixturevalue(version)
    # -Xshare:on ends the JVM where it cannot use the archive
    command = java.command(tmp_path, "gantrymq.interop.Main", "sql", options=("-Xshare:on", "-Xlog:class+load"))
    done = subprocess.run(command, input="", capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "gantrymq.interop.Main source: shared objects file" in done.stdout

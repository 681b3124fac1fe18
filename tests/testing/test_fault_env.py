"""The environment that fails on demand keeps the contract of environments where it does not fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from gantrymq.kernel.env.system import SystemEnv
from gantrymq.testing.fault_env import FaultEnv
from gantrymq.testing.memory_env import MemoryEnv

pytestmark = pytest.mark.once


def test_a_lying_sync_of_a_folder_reports_success_and_does_nothing() -> None:
    disk = MemoryEnv()
    disk.mkdirs("store")
    env = FaultEnv(disk, 1, lie=True, kinds=("sync_dir",))
    env.open("store/file", create=True)
    env.sync_dir("store")
    assert env.failed == 1
    assert not disk.power_cut().exists("store/file")


def test_a_replacement_of_a_file_fails_instead_of_lying() -> None:
    env = FaultEnv(MemoryEnv(), 1, lie=True, kinds=("replace",))
    with pytest.raises(OSError, match="injected failure of replace"):
        env.replace("file", b"x")


def test_a_shared_file_stays_open_when_the_first_handle_is_closed(tmp_path: Path) -> None:
    env = FaultEnv(SystemEnv(), 2, kinds=("datasync",))
    file = env.open(str(tmp_path / "file"), create=True)
    other = file.share()
    file.close()
    other.datasync()
    with pytest.raises(OSError, match="injected failure of datasync"):
        other.datasync()
    other.close()

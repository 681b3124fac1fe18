"""The audit file without a broker."""

from __future__ import annotations

import errno

import pytest

from gantrymq.plugins.audit.audit_file import AuditFile
from gantrymq.testing.fault_env import FaultEnv
from gantrymq.testing.memory_env import MemoryEnv


def test_a_write_that_fails_half_way_leaves_no_part_of_a_line() -> None:
    env = FaultEnv(MemoryEnv(1), fail_at=2, number=errno.ENOSPC, tear="short", kinds=("pwrite",))
    file = AuditFile(env, "audit.log")
    file.write(b"first\n")
    with pytest.raises(OSError, match="injected"):
        file.write(b"second\n")
    file.write(b"third\n")
    assert env.read_bytes("audit.log") == b"first\nthird\n"

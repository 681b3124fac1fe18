"""The limits of control groups, in both versions of their file system."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gantrymq.kernel.env import system
from gantrymq.kernel.env.memory import memory_limits
from gantrymq.kernel.env.system import SystemEnv


@pytest.mark.parametrize(
    ("group", "file", "text", "limits"),
    [
        ("0::/system.slice/broker.service", "system.slice/broker.service/memory.max", "268435456", [268435456]),
        ("0::/system.slice/broker.service", "system.slice/broker.service/memory.max", "max", []),
        ("0::/", "memory.max", "1048576", [1048576]),
        ("9:memory:/docker/1", "memory/docker/1/memory.limit_in_bytes", "268435456", [268435456]),
        ("9:memory:/docker/1", "memory/docker/1/memory.limit_in_bytes", "9223372036854771712", []),
        ("3:cpu,cpuacct:/", "cpu/memory.max", "5", []),
    ],
)
def test_limits_of_a_control_group_are_read_in_bytes(
    tmp_path: Path, group: str, file: str, text: str, limits: list[int]
) -> None:
    for name, content in (("proc/self/cgroup", group), (f"sys/fs/cgroup/{file}", text)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content + "\n")
    assert memory_limits(tmp_path) == limits


def test_a_machine_without_control_groups_has_no_limit(tmp_path: Path) -> None:
    assert memory_limits(tmp_path) == []


def test_the_lowest_limit_is_the_memory_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limits, memory in (([], machine), ([1 << 20, 1 << 19], 1 << 19), ([machine * 2], machine)):
        monkeypatch.setattr(system, "memory_limits", lambda limits=limits: limits)
        assert SystemEnv().memory_bytes() == memory

"""The doctor's checks of the machine, with files of Linux that a test writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gantrymq.cli import machine_checks
from gantrymq.cli.findings import OK, WARN, Finding

MOUNT = "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw"
GOOD = {
    "proc/sys/net/core/somaxconn": "4096",
    "proc/sys/vm/swappiness": "60",
    "proc/sys/vm/zone_reclaim_mode": "0",
    "proc/sys/vm/overcommit_memory": "0",
    "proc/meminfo": "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\nSwapTotal: 0 kB",
    "proc/self/mountinfo": MOUNT,
    "proc/self/cgroup": "0::/system.slice/gantrymq.service",
    "sys/fs/cgroup/system.slice/gantrymq.service/memory.max": "max",
    "sys/dev/block/254:0/queue/scheduler": "none [mq-deadline] bfq",
    "sys/dev/block/254:0/queue/rotational": "0",
}
FOLDER = Path("/var/lib/gantrymq")


@pytest.fixture
def check(tmp_path: Path) -> Callable[..., dict[str, Finding]]:
    """All findings on a machine that suits a broker, but for some files; None removes one."""

    def call(files: dict[str, str | None]) -> dict[str, Finding]:
        for name, text in {**GOOD, **files}.items():
            if text is not None:
                path = tmp_path / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text + "\n")
        found = (
            machine_checks.kernel_settings(tmp_path), machine_checks.memory(tmp_path),
            machine_checks.file_system(FOLDER, tmp_path), machine_checks.block_device(FOLDER, tmp_path),
        )  # fmt: skip
        return {each.check: each for each in found}

    return call


def test_a_machine_that_suits_a_broker_has_no_warning(check: Callable[..., dict[str, Finding]]) -> None:
    found = check({})
    assert {each.state for each in found.values()} == {OK}
    assert found["file system"].found == "ext4 at /"
    assert found["memory"].found == "8.0 GiB in this machine, 4.0 GiB available"
    assert found["block device"].found.endswith("solid state, scheduler mq-deadline")


def test_a_container_that_hides_these_files_has_no_warning(tmp_path: Path) -> None:
    for finding in (
        machine_checks.kernel_settings(tmp_path), machine_checks.memory(tmp_path),
        machine_checks.file_system(FOLDER, tmp_path), machine_checks.block_device(FOLDER, tmp_path),
    ):  # fmt: skip
        assert (finding.state, "not readable" in finding.found) == (OK, True)


@pytest.mark.parametrize(
    ("name", "files", "text"),
    [
        ("kernel settings", {"proc/sys/net/core/somaxconn": "128"}, "net.core.somaxconn=4096"),
        ("kernel settings", {"proc/meminfo": "MemTotal: 8388608 kB\nSwapTotal: 9 kB"}, "sysctl -w vm.swappiness=1,"),
        ("kernel settings", {"proc/sys/vm/zone_reclaim_mode": "1"}, "vm.zone_reclaim_mode=0"),
        ("kernel settings", {"proc/sys/vm/overcommit_memory": "2"}, "vm.overcommit_memory=0"),
        ("memory", {"proc/meminfo": "MemTotal: 500000 kB"}, "needs 1 GiB"),
        ("memory", {"sys/fs/cgroup/system.slice/gantrymq.service/memory.max": "268435456"}, "needs 1 GiB"),
        (
            "memory",
            {"proc/self/cgroup": "9:memory:/g", "sys/fs/cgroup/memory/g/memory.limit_in_bytes": "268435456"},
            "needs 1 GiB",
        ),
        ("file system", {"proc/self/mountinfo": "27 1 0:5 / / rw - tmpfs tmpfs rw"}, "lost at a restart"),
        ("file system", {"proc/self/mountinfo": "27 1 0:5 / / rw - overlay overlay rw"}, "mount a volume"),
        (
            "file system",
            {"proc/self/mountinfo": f"{MOUNT}\n28 27 0:6 / /var/lib rw shared:1 - nfs4 server:/x rw"},
            "a local disk",
        ),
        ("file system", {"proc/self/mountinfo": MOUNT + ",nobarrier"}, "power cut"),
        ("file system", {"proc/self/mountinfo": MOUNT.replace("relatime", "strictatime")}, "noatime"),
        ("block device", {"sys/dev/block/254:0/queue/scheduler": "none mq-deadline [bfq]"}, "echo mq-deadline"),
        ("block device", {"sys/dev/block/254:0/queue/rotational": "1"}, "solid state disk"),
    ],
)
def test_a_difference_is_a_warning_with_its_remedy(
    check: Callable[..., dict[str, Finding]], name: str, files: dict[str, str | None], text: str
) -> None:
    found = check(files)
    assert [each.check for each in found.values() if each.state == WARN] == [name]
    assert text in found[name].advice


def test_the_innermost_mount_counts_and_names_with_spaces_are_read(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    lines = f"{MOUNT}\n29 27 8:1 / /var/lib/my\\040store rw - xfs /dev/sda1 rw\n30 27 8:2 / /var/lib/my rw - ext4 x rw"
    (tmp_path / "proc/self/mountinfo").write_text(lines)
    found = machine_checks.mount_of(Path("/var/lib/my store/data"), tmp_path)
    assert found is not None
    assert (found.place, found.device, found.kind) == ("/var/lib/my store", "8:1", "xfs")

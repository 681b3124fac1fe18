"""The checks of ``gantrymq doctor`` that read what Linux says of the machine: kernel, memory, file system and disk.

``root`` is ``/``; tests have a folder with files of their own there. A file that is missing, as in some containers, is
no finding. ``docs/howto/tune.md`` has the reasons. Source of RocketMQ's values: 5.3.3 ``distribution/bin/os.sh``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import attrs

from gantrymq.cli.findings import OK, WARN, Finding
from gantrymq.kernel.env.memory import memory_limits

MACHINE: Final = Path("/")
BACKLOG: Final = 1024
"""The connections that may wait for the broker to accept them."""
SWAPPINESS_MAX: Final = 10
MEMORY_LOW: Final = 1 << 30
_VIRTUAL: Final = ("vd", "xvd", "nbd", "loop")
"""Disks of virtual machines say that they rotate, whatever is below them."""
_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs"})
_REMOTE: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "glusterfs", "fuse.sshfs", "fuse.s3fs"})
_LAYERS: Final = frozenset({"overlay", "aufs"})
_WITHOUT_FLUSH: Final = frozenset({"nobarrier", "barrier=0", "fsync=volatile"})


@attrs.frozen
class Mount:
    """A line of ``/proc/self/mountinfo``: the device as ``major:minor``, and the options of mount and file system."""

    place: str
    device: str
    kind: str
    options: frozenset[str]


def kernel_settings(root: Path = MACHINE) -> Finding:
    """Settings of sysctl that cost the broker connections or latency."""
    read = {name: _number(root / "proc/sys" / name.replace(".", "/")) for name in (
        "net.core.somaxconn", "vm.swappiness", "vm.zone_reclaim_mode", "vm.overcommit_memory",
    )}  # fmt: skip
    swap = _meminfo(root).get("SwapTotal", 0)
    wrong: list[tuple[str, int]] = []
    somaxconn, swappiness = read["net.core.somaxconn"], read["vm.swappiness"]
    if somaxconn is not None and somaxconn < BACKLOG:
        wrong.append(("net.core.somaxconn", 4096))
    if swap and swappiness is not None and swappiness > SWAPPINESS_MAX:
        wrong.append(("vm.swappiness", 1))
    if read["vm.zone_reclaim_mode"]:
        wrong.append(("vm.zone_reclaim_mode", 0))
    if read["vm.overcommit_memory"] == 2:
        wrong.append(("vm.overcommit_memory", 0))
    text = ", ".join(f"{name}={value}" for name, value in read.items() if value is not None) or "not readable"
    if not swap:
        text += ", no swap"
    if wrong:
        values = " ".join(f"{name}={value}" for name, value in wrong)
        return Finding("kernel settings", WARN, text, f"sysctl -w {values}, and in /etc/sysctl.d for the next start")
    return Finding("kernel settings", OK, text)


def memory(root: Path = MACHINE) -> Finding:
    """The memory that this process may use, and how much of it can cache the log."""
    info = _meminfo(root)
    total, available = info.get("MemTotal", 0), info.get("MemAvailable", 0)
    if not total:
        return Finding("memory", OK, "not readable")
    limit = min(memory_limits(root), default=total)
    text = f"{_gib(total)} in this machine, {_gib(available)} available"
    if limit < total:
        text += f"; this process is limited to {_gib(limit)}, the cached log included"
    if min(limit, total) < MEMORY_LOW:
        return Finding("memory", WARN, text, "a broker with some thousand connections and queues needs 1 GiB")
    return Finding("memory", OK, text)


def file_system(folder: Path, root: Path = MACHINE) -> Finding:
    """Whether a flush on the file system of ``folder`` reaches a disk of this machine."""
    check, mount = "file system", mount_of(folder, root)
    if mount is None:
        return Finding(check, OK, "not readable")
    text = f"{mount.kind} at {mount.place}"
    if mount.kind in _IN_MEMORY:
        return Finding(check, WARN, f"{text}: memory", "choose a folder on a disk: messages are lost at a restart")
    if mount.kind in _LAYERS:
        advice = "mount a volume for the store: this one ends with the container, and is slower"
        return Finding(check, WARN, f"{text}: layers of a container", advice)
    if mount.kind in _REMOTE:
        advice = "choose a local disk: each flush waits for the network, and locks of files may not hold"
        return Finding(check, WARN, f"{text}: a remote file system", advice)
    unsafe = sorted(mount.options & _WITHOUT_FLUSH)
    if unsafe:
        advice = "mount it without this option: a power cut can remove acknowledged messages"
        return Finding(check, WARN, f"{text} with {', '.join(unsafe)}", advice)
    if "strictatime" in mount.options:
        return Finding(check, WARN, f"{text} with strictatime", "mount it with noatime: each read writes to the disk")
    return Finding(check, OK, text)


def block_device(folder: Path, root: Path = MACHINE) -> Finding:
    """The scheduler and the kind of the disk of ``folder``."""
    check, mount = "block device", mount_of(folder, root)
    queue = None if mount is None else _queue(mount.device, root)
    if queue is None:
        return Finding(check, OK, "not readable")
    chosen = _text(queue / "scheduler").partition("[")[2].partition("]")[0]
    is_rotating = _text(queue / "rotational") == "1"
    name = queue.resolve().parent.name
    kind = "virtual" if name.startswith(_VIRTUAL) else "rotating" if is_rotating else "solid state"
    text = f"{name}: {kind}, scheduler {chosen or 'none'}"
    if chosen in ("bfq", "cfq"):
        advice = f"echo mq-deadline >/sys/block/{name}/queue/scheduler: {chosen} delays flushes to share the disk"
        return Finding(check, WARN, text, advice)
    if kind == "rotating":
        return Finding(check, WARN, text, "a flush takes a turn of the disk, 4 to 10 ms: choose a solid state disk")
    return Finding(check, OK, text)


def mount_of(folder: Path, root: Path = MACHINE) -> Mount | None:
    """The mount that has ``folder``; None if it cannot be found."""
    target = os.path.realpath(folder)
    found: Mount | None = None
    for line in _text(root / "proc/self/mountinfo").splitlines():
        left, separator, right = line.partition(" - ")
        fields, kinds = left.split(), right.split()
        if not separator or len(fields) < 6 or len(kinds) < 3:
            continue
        place = fields[4].encode().decode("unicode_escape")
        inside = target == place or target.startswith(place.rstrip("/") + "/")
        if inside and (found is None or len(place) >= len(found.place)):
            found = Mount(place, fields[2], kinds[0], frozenset((*fields[5].split(","), *kinds[2].split(","))))
    return found


def _queue(device: str, root: Path) -> Path | None:
    """The folder with the settings of a device, or of the disk that has the partition."""
    place = root / "sys/dev/block" / device
    return next((each for each in (place / "queue", place / "../queue") if each.is_dir()), None)


def _meminfo(root: Path) -> dict[str, int]:
    """Bytes by name."""
    rows = (line.split() for line in _text(root / "proc/meminfo").splitlines())
    return {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows if len(row) > 1 and row[1].isdigit()}


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.lstrip("-").isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _gib(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB"

"""The limits of memory of this process's control groups."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_UNLIMITED: Final = 1 << 60
"""Version 1 of the control groups has a number of about this size instead of no limit."""


def memory_limits(root: Path = Path("/")) -> list[int]:
    """Return the limits in bytes, in both versions of the control groups' file system. Empty without a limit."""
    found = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        place = root / "sys/fs/cgroup" / (f"memory{group}" if "memory" in controllers else group.lstrip("/"))
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = _text(place / name)
            if text.isdigit():
                found.append(int(text))
    return [each for each in found if each < _UNLIMITED]


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""

"""The changes of an export to the file system, each of them atomic or repeatable."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_CANNOT_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)


def write_durably(path: Path, data: bytes) -> None:
    """Create or replace ``path`` with ``data``: after a crash it has all of it, or is as it was."""
    temporary = _write_temporary(path, data)
    temporary.replace(path)
    sync_folder(path.parent)


def create_durably(path: Path, data: bytes) -> None:
    """Create ``path`` with ``data``, all of it or nothing. Raises FileExistsError if it is there already."""
    temporary = _write_temporary(path, data)
    try:
        os.link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def move(source: Path, target: Path) -> None:
    """Move a file or folder to where nothing, or the same file, is; done before, it changes nothing."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        source.rename(target)
    except FileNotFoundError:
        if not target.exists():
            raise


def exchange(fresh: Path, shown: Path) -> None:
    """Put the folder ``fresh`` in the place of the folder ``shown``, which is then beside or in the place of ``fresh``.

    Atomically, or by two renames where the system or the file system cannot: after a stop between them ``fresh`` is as
    it was and ``shown`` is missing.
    """
    if not _exchange_at_once(fresh, shown):
        move_away(shown, fresh)
        move(fresh, shown)


def move_away(path: Path, beside: Path) -> None:
    """Move a folder, if it is there, to a new name beside another path."""
    beside.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        path.rename(beside.with_name(f"{beside.name}.{uuid4()}"))


def _exchange_at_once(one: Path, other: Path) -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    rename = getattr(libc, "renameat2", None)
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code not in _CANNOT_EXCHANGE:
        raise OSError(code, os.strerror(code), str(one))
    return False


def remove(path: Path) -> None:
    """Remove a file or folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def remove_temporary(folder: Path) -> None:
    """Remove what a write into ``folder`` leaves that was stopped; no other write may be going on."""
    for path in folder.glob(".*.json.*"):
        path.unlink(missing_ok=True)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folders(root: Path, files: Iterable[Path]) -> None:
    """Make the names of ``files``, and of the folders between them and ``root``, durable."""
    folders = {root}
    for file in files:
        folders |= {parent for parent in file.parents if parent.is_relative_to(root)}
    for folder in sorted(folders, key=lambda path: len(path.parts), reverse=True):
        sync_folder(folder)


def _write_temporary(path: Path, data: bytes) -> Path:
    temporary = path.with_name(f".{path.name}.{uuid4()}")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return temporary

"""Places for backups: a folder, or any storage that fsspec knows (``s3://``, ``gs://``, ``abfs://``, ``sftp://``).

Names of objects are relative paths with slashes. An object is written once, as a whole.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

from gantrymq.kernel.errors import StartError


class Target(Protocol):
    """Where the objects of backups are."""

    def read(self, name: str, most: int) -> bytes:
        """The object's bytes, at most ``most + 1`` of them; :class:`OSError` (FileNotFoundError) without it."""

    def write(self, name: str, data: bytes) -> None:
        """Store an object; when it returns, the object is complete and durable."""

    def names(self, folder: str) -> list[str]:
        """The sorted names of the objects directly in ``folder``, without the folder; empty if there is none."""

    def delete(self, name: str) -> None:
        """Delete an object; a missing one is no error."""


def open_target(place: str) -> Target:
    """The target that a path or URL names. :class:`StartError` if it needs a package that is not installed."""
    if "://" not in place:
        return FolderTarget(Path(place))
    if place.startswith("file://"):
        return FolderTarget(Path(place.removeprefix("file://")))
    return ObjectTarget(place)


class FolderTarget:
    """A folder; an object is a file, which is flushed before it gets its name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, name: str, most: int) -> bytes:
        with (self._folder / name).open("rb") as file:
            return file.read(most + 1)

    def write(self, name: str, data: bytes) -> None:
        path = self._folder / name
        self._make_folder(path.parent)
        part = path.with_name(f".{path.name}.part")
        # messages and accounts are in it: only this user may read it, also in a folder that others can read
        part.unlink(missing_ok=True)
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        _sync_folder(path.parent)

    def _make_folder(self, folder: Path) -> None:
        if not folder.is_dir():
            self._make_folder(folder.parent)
            folder.mkdir(mode=0o700, exist_ok=True)
            _sync_folder(folder.parent)

    def names(self, folder: str) -> list[str]:
        place = self._folder / folder
        return sorted(path.name for path in place.iterdir() if path.name[0] != ".") if place.is_dir() else []

    def delete(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class ObjectTarget:
    """A folder of a storage that fsspec reaches; options come from fsspec's own configuration and environment."""

    def __init__(self, url: str) -> None:
        try:
            import fsspec
        except ImportError:
            raise StartError(f"{url}: backups to URLs need fsspec: pip install 'gantrymq[backup]'") from None
        try:
            files, self._root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise StartError(f"{url}: {error}") from None
        self._files: Any = files

    def read(self, name: str, most: int) -> bytes:
        path = f"{self._root}/{name}"
        # no range for a short object: storages refuse a range of an empty one
        is_long = int(self._files.size(path) or 0) > most
        return bytes(self._files.cat_file(path, end=most + 1) if is_long else self._files.cat_file(path))

    def write(self, name: str, data: bytes) -> None:
        self._files.makedirs(f"{self._root}/{name}".rpartition("/")[0], exist_ok=True)
        self._files.pipe_file(f"{self._root}/{name}", data)

    def names(self, folder: str) -> list[str]:
        self._files.invalidate_cache()
        try:
            found = self._files.ls(f"{self._root}/{folder}", detail=False)
        except FileNotFoundError:
            return []
        return sorted(str(name).rstrip("/").rpartition("/")[2] for name in found)

    def delete(self, name: str) -> None:
        try:
            self._files.rm_file(f"{self._root}/{name}")
        except FileNotFoundError:
            return

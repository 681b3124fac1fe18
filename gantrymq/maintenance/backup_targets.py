"""Places for backups: a folder, an object store by obstore (``s3://``, ``gs://``, ``az://``), or what fsspec knows.

Names of objects are relative paths with slashes. An object is written once, as a whole.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import quote

from gantrymq.kernel.errors import StartError

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_STORE_URL: Final = re.compile(r"(s3|s3a|gs|az|abfs|abfss)://([^/]+)(/.*)?", re.DOTALL)

_OBJECT_STORES: Final = frozenset(
    {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "oci", "cos", "obs", "tos", "memory"}
)
"""fsspec's protocols of storages in which an object exists only when all of it is written."""
_PART: Final = ".part"
"""The end of the name of a file that is being written; no object has it."""
_LOGIN: Final = re.compile(r"(?<=://)[^/\s]*:[^/\s]*@")
"""The name and password in a URL. A name alone stays: it may be the container of an ``abfs://`` URL."""


class Target(Protocol):
    """Where the objects of backups are."""

    def read(self, name: str, most: int) -> bytes:
        """The object's bytes, at most ``most + 1`` of them; :class:`OSError` (FileNotFoundError) without it."""

    def write(self, name: str, data: bytes) -> None:
        """Store an object; when it returns, the object is complete and durable."""

    def names(self, folder: str) -> list[str]:
        """The sorted names of the objects directly in ``folder``, without the folder; empty if there is none."""

    def parts(self, folder: str) -> list[str]:
        """The names of files directly in ``folder`` that are being written, or that a killed run has left."""

    def delete(self, name: str) -> None:
        """Delete an object or a part; a missing one is not an error."""


def open_target(place: str) -> Target:
    """The target that a path or URL names. :class:`StartError` if it needs a package that is not installed."""
    if "://" not in place:
        return FolderTarget(Path(place))
    if place.startswith("file://"):
        return FolderTarget(Path(place.removeprefix("file://")))
    if (found := _STORE_URL.fullmatch(place)) is not None:
        with suppress(ImportError):  # without obstore, fsspec's package for this storage may be there
            return StoreTarget(place, found[1], found[2], (found[3] or "").strip("/"))
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
        part = path.with_name(f".{path.name}{_PART}")
        # messages and accounts are in it: only this user may read it, also in a folder that others can read
        part.unlink(missing_ok=True)
        try:
            with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except BaseException:
            with suppress(OSError):  # the disk may be gone
                part.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)

    def _make_folder(self, folder: Path) -> None:
        if not folder.is_dir():
            self._make_folder(folder.parent)
            folder.mkdir(mode=0o700, exist_ok=True)
            _sync_folder(folder.parent)

    def names(self, folder: str) -> list[str]:
        place = self._folder / folder
        return sorted(path.name for path in place.iterdir() if path.name[0] != ".") if place.is_dir() else []

    def parts(self, folder: str) -> list[str]:
        return sorted(path.name for path in (self._folder / folder).glob(f".*{_PART}"))

    def delete(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class StorageFailed(StartError, OSError):
    """A request to an object store failed; the text names the object."""


class StoreTarget:
    """A folder of an object store, by obstore, which reads keys, region and endpoint from the environment."""

    def __init__(self, url: str, scheme: str, bucket: str, path: str) -> None:
        """``ImportError`` without obstore, :class:`StartError` for settings that it refuses. Sends no request."""
        from obstore.exceptions import BaseError
        from obstore.store import from_url

        self._url = _without_login(url)
        try:
            self._store: ObjectStore = from_url(f"{scheme}://{bucket}/{quote(path)}")
        except (BaseError, ValueError) as error:
            raise StartError(f"{self._url}: {_first_line(error)}") from None

    def read(self, name: str, most: int) -> bytes:
        with self._errors_of(name):
            found = self._store.get(name)
            if found.meta["size"] > most:
                return bytes(self._store.get_range(name, start=0, end=most + 1))
            return bytes(found.bytes())

    def write(self, name: str, data: bytes) -> None:
        with self._errors_of(name):
            self._store.put(name, data)

    def names(self, folder: str) -> list[str]:
        with self._errors_of(folder):
            found = self._store.list_with_delimiter(folder)
            return sorted(str(item["path"]).rpartition("/")[2] for item in found["objects"])

    def parts(self, folder: str) -> list[str]:
        return []

    def delete(self, name: str) -> None:
        with suppress(FileNotFoundError), self._errors_of(name):
            self._store.delete(name)

    @contextmanager
    def _errors_of(self, name: str) -> Iterator[None]:
        """Raise obstore's errors as :class:`StorageFailed`."""
        from obstore.exceptions import BaseError

        try:
            yield
        except FileNotFoundError:
            raise
        except BaseError as error:
            raise StorageFailed(f"{self._url}/{name}: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return _without_login((str(error).splitlines() or [type(error).__name__])[0])[:300]


def _without_login(text: str) -> str:
    """The text without the passwords of the URLs in it."""
    return _LOGIN.sub("", text)


class ObjectTarget:
    """A folder of a storage that fsspec reaches; options come from fsspec's own configuration and environment.

    In a storage of files, such as ``sftp://``, an object gets its name when it is complete.
    """

    def __init__(self, url: str) -> None:
        try:
            import fsspec
        except ImportError:
            raise StartError(
                f"{_without_login(url)}: backups to URLs need fsspec: pip install 'gantrymq[backup]'"
            ) from None
        try:
            files, self._root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise StartError(_without_login(f"{url}: {error}")) from None
        self._files: Any = files
        known = (files.protocol,) if isinstance(files.protocol, str) else files.protocol
        self._writes_whole = not _OBJECT_STORES.isdisjoint(known)

    def read(self, name: str, most: int) -> bytes:
        path = f"{self._root}/{name}"
        # no range for a short object: storages refuse a range of an empty one
        is_long = int(self._files.size(path) or 0) > most
        return bytes(self._files.cat_file(path, end=most + 1) if is_long else self._files.cat_file(path))

    def write(self, name: str, data: bytes) -> None:
        path = f"{self._root}/{name}"
        self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
        if self._writes_whole or self._files.exists(path):  # not all storages can rename over another file
            self._files.pipe_file(path, data)
            return
        try:
            self._files.pipe_file(path + _PART, data)
            self._files.mv(path + _PART, path)
        except BaseException:
            with suppress(Exception):  # the storage may be gone
                self._files.rm_file(path + _PART)
            raise

    def names(self, folder: str) -> list[str]:
        return [name for name in self._list(folder) if not name.endswith(_PART)]

    def parts(self, folder: str) -> list[str]:
        return [] if self._writes_whole else [name for name in self._list(folder) if name.endswith(_PART)]

    def _list(self, folder: str) -> list[str]:
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

"""The few requests of an export to an object store: S3 and what speaks its protocol, Google Cloud Storage, Azure.

The library obstore sends them. It reads credentials, region and endpoint from the environment, as deltalake does.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, BinaryIO, cast
from urllib.parse import quote

from gantrymq.spark.errors import SparkError, SparkMissing, WrongOption

if TYPE_CHECKING:
    from obstore.store import ObjectStore

SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/]+)(/.*)?", re.DOTALL)


def is_object_url(to: str) -> bool:
    """Whether ``to`` is the URL of an object store that exports may be in."""
    found = _URL.fullmatch(to)
    return found is not None and found[1].lower() in SCHEMES


def open_store(url: str) -> Objects:
    """The part of a store below ``url``, in which % escapes nothing. Sends no request.

    Raises :class:`SparkMissing` without obstore, :class:`WrongOption` for settings or a URL that it refuses.
    """
    try:
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ImportError:
        raise SparkMissing(f"{url} needs the package obstore: pip install 'gantrymq[objectstore]'") from None
    found = _URL.fullmatch(url)
    assert found is not None
    path = (found[3] or "").strip("/")
    try:
        store = from_url(f"{found[1].lower()}://{found[2]}/{quote(path)}")
    except (BaseError, ValueError) as error:
        raise WrongOption(f"cannot export to {url!r}: {_first_line(error)}") from None
    return Objects(store, url.rstrip("/"))


class Objects:
    """Objects below one URL; names are relative to it, with slashes. Every method raises :class:`SparkError`."""

    def __init__(self, store: ObjectStore, url: str) -> None:
        self.url = url
        self._store = store

    def create(self, name: str, data: bytes) -> None:
        """Create an object by a conditional write. Raises FileExistsError if another writer has created it.

        A request whose answer was lost is repeated, and then meets the object that it made: that is not an error.
        """
        from obstore.exceptions import AlreadyExistsError

        with self._clear_errors(name):
            try:
                self._store.put(name, data, mode="create")
            except AlreadyExistsError:
                if self.read(name) != data:
                    raise FileExistsError(name) from None

    def write(self, name: str, data: bytes) -> None:
        """Create or replace an object."""
        with self._clear_errors(name):
            self._store.put(name, data)

    def upload(self, name: str, file: BinaryIO) -> None:
        """Create an object from a file, in parts if it is large: it is there when all of them are."""
        with self._clear_errors(name):
            self._store.put(name, file)

    def read(self, name: str) -> bytes | None:
        """An object, or None if there is none."""
        with self._clear_errors(name):
            try:
                return bytes(self._store.get(name).bytes())
            except FileNotFoundError:
                return None

    def open(self, name: str) -> BinaryIO:
        """An object as a file that pyarrow reads by ranges; its methods raise OSError. Raises FileNotFoundError."""
        import obstore

        with self._clear_errors(name):
            return cast(BinaryIO, _Reader(obstore.open_reader(self._store, name)))

    def names(self, folder: str) -> list[str]:
        """The names directly below ``folder``, without it: of objects and of folders that have some.

        The empty object ``folder/`` is none of them: consoles and other tools make it to show an empty folder.
        """
        with self._clear_errors(folder):
            found = self._store.list_with_delimiter(folder or None)
            paths = [str(item["path"]) for item in found["objects"]] + list(map(str, found["common_prefixes"]))
            return sorted(path.rstrip("/").rpartition("/")[2] for path in paths if path.rstrip("/") != folder)

    def names_after(self, folder: str, name: str) -> list[str]:
        """The names directly below ``folder`` that come after ``name``. S3 lists no others."""
        with self._clear_errors(folder):
            pages = self._store.list(folder, offset=f"{folder}/{name}")
            paths = [str(item["path"]) for page in pages for item in cast("Sequence[dict[str, Any]]", page)]
            return sorted({path.removeprefix(f"{folder}/").partition("/")[0] for path in paths if path != folder})

    def walk(self, folder: str) -> Iterator[tuple[str, datetime]]:
        """The name and the time of every object below ``folder``, without the empty object ``folder/``."""
        with self._clear_errors(folder):
            for page in self._store.list(folder or None):
                for item in cast("Sequence[dict[str, Any]]", page):
                    if str(item["path"]) != folder:
                        yield str(item["path"]), item["last_modified"]

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects, those among them that exist."""
        with self._clear_errors(""):
            try:
                if names:
                    self._store.delete(list(names))
            except FileNotFoundError:  # not of S3, which ignores missing ones
                for name in names:
                    with suppress(FileNotFoundError):
                        self._store.delete(name)

    @contextmanager
    def _clear_errors(self, name: str) -> Iterator[None]:
        from obstore.exceptions import BaseError

        try:
            yield
        except BaseError as error:
            raise SparkError(f"{self.url}/{name}: {_first_line(error)}") from None


class _Reader(io.RawIOBase):
    """A file of obstore, as the standard library has files."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._call(self._file.read, len(buffer))
        buffer[: len(data)] = memoryview(data)
        return len(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._call(self._file.seek, offset, whence))

    def tell(self) -> int:
        return int(self._call(self._file.tell))

    def _call(self, work: Callable[..., Any], *arguments: int) -> Any:
        from obstore.exceptions import BaseError

        try:
            return work(*arguments)
        except BaseError as error:
            raise OSError(_first_line(error)) from None


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0].removesuffix(":")

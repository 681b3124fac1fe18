"""Entries by name with a data version, kept in one JSON file of RocketMQ's form.

The line of each entry, its name and text, is cached, so that writing a hundred thousand of them is a join. An entry is
replaced and never changed in place. Unknown keys of a file or a master are preserved for a newer broker that uses the
store later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import attrs
import msgspec
import structlog
import trio

from gantrymq.remoting.bodies.body import Body
from gantrymq.remoting.bodies.tables import DataVersion
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.fastjson import dumps, join_between, loads

if TYPE_CHECKING:
    from gantrymq.kernel.env import Env

B = TypeVar("B", bound=Body)

log = structlog.get_logger("gantrymq.topics")


@attrs.frozen
class Unknown:
    """Keys of a table's text that this version does not know: beside the table, and in each entry."""

    beside: Mapping[str, Any] = attrs.field(factory=dict)
    entries: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict)

    @classmethod
    def of(cls, data: bytes, key: str, kind: type[Body]) -> Unknown:
        """Return the unknown keys of the text ``data``, which has entries of ``kind`` under ``key``."""
        try:
            value = loads(data) if b'"$ref"' in data else msgspec.json.decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            try:
                value = loads(data)
            except ValueError:  # reading the entries reports the error
                return cls()
        if not isinstance(value, dict) or not isinstance(value.get(key), dict):
            return cls()
        beside = {name: item for name, item in value.items() if name not in (key, "dataVersion")}
        entries = {name: kind.unknown_keys(entry) for name, entry in value[key].items()}
        return cls(_writable(beside), {name: _writable(keys) for name, keys in entries.items() if keys})


class StateTable(Generic[B]):
    """``path`` holds ``{"dataVersion":…,"<key>":{name:entry}}``; every change increases the data version."""

    def __init__(self, env: Env, path: str, key: str) -> None:
        self.path = path
        self.version = DataVersion()
        self._env = env
        self._key = key
        self._entries: dict[str, B] = {}
        self.entries: Mapping[str, B] = self._entries
        """The entries, not to be changed."""
        self._lines: dict[str, bytes] = {}
        self._unknown: dict[str, Mapping[str, Any]] = {}
        self._beside: Mapping[str, Any] = {}
        self.text_bytes = 0
        """The bytes of all entries' texts together."""
        self._changes = self._written = self._in_thread = 0
        """The number of the last change, of the last one in the file, and of the last one that :meth:`save_in_thread`
        writes."""
        self._writing = threading.Lock()
        self._saving = trio.Lock()

    @property
    def changed(self) -> bool:
        """Whether anything changed since the file was read or written."""
        return self._written < self._changes

    @property
    def needs_save(self) -> bool:
        """Whether there is a change that neither is in the file nor is being written by a thread."""
        return self._written < self._changes and self._in_thread < self._changes

    def text(self, name: str) -> bytes:
        """Return the entry's JSON text; KeyError when there is none."""
        return self._lines[name][len(dumps(name)) + 1 :]

    def take(
        self,
        stored: Mapping[str, B],
        version: DataVersion,
        validate: Callable[[str], None],
        unknown: Unknown | None = None,
    ) -> None:
        """Load the file's entries. An entry with an illegal name is left out and logged."""
        unknown = unknown or Unknown()
        self.version = version
        self._beside = unknown.beside
        for name in stored:
            self._unknown.pop(name, None)
        self._unknown.update(unknown.entries)
        for name, entry in stored.items():
            try:
                validate(name)
            except RemoteFault as fault:
                log.warning("stored_entry_ignored", path=self.path, name=name[:200], reason=fault.remark)
            else:
                self._set(name, entry)

    def adopt(
        self,
        entries: Mapping[str, B],
        version: DataVersion,
        kept: Callable[[str], bool],
        validate: Callable[[str], None],
        unknown: Unknown | None = None,
    ) -> bool:
        """Replace the table by another broker's; entries in ``kept`` stay. Returns False if the version is the same.

        It is written at once, as in ``SlaveSynchronize``: a promoted slave needs its master's entries.
        """
        if version == self.version:
            return False
        for name in [name for name in self._entries if name not in entries and not kept(name)]:
            self._forget(name)
        self.take(entries, version, validate, unknown)
        self._changes += 1
        try:
            self.save()
        except OSError as error:
            log.warning("adopted_state_not_written", path=self.path, reason=str(error))
        return True

    def put(self, name: str, entry: B) -> bool:
        """Set the entry; returns whether that changed anything."""
        if self._entries.get(name) == entry:
            return False
        self._set(name, entry)
        self.touch()
        return True

    def remove(self, name: str) -> bool:
        """Remove the entry; returns whether it existed."""
        if name not in self._entries:
            return False
        self._forget(name)
        self.touch()
        return True

    def encode(self) -> bytes:
        """Return the file's text, which is also the response to a request for the whole table."""
        return self._encoded(self.version, self._lines.values(), self._beside)

    def save(self) -> None:
        """Write the file if anything changed since it was read or written; OSError if that fails."""
        if self.changed:
            self._write(self._changes, self.encode)

    async def save_in_thread(self) -> None:
        """As :meth:`save`, with all changes up to now, in a worker thread: a large file takes as long as hundreds of
        turns. Calls during a write share the next one."""
        wanted = self._in_thread = self._changes
        try:
            async with self._saving:
                if self._written < wanted:
                    text = partial(self._encoded, self.version, list(self._lines.values()), self._beside)
                    await trio.to_thread.run_sync(self._write, self._changes, text)
        finally:
            if self._written < wanted:  # it failed or was cancelled
                self._in_thread = self._written

    def _write(self, change: int, text: Callable[[], bytes]) -> None:
        """Write the file as of ``change``, unless it has a later one."""
        with self._writing:
            if self._written < change:
                self._env.replace(self.path, text())
                self._written = change

    def _encoded(self, version: DataVersion, lines: Iterable[bytes], beside: Mapping[str, Any]) -> bytes:
        others = b"".join([b",%s:%s" % (dumps(name), dumps(value)) for name, value in beside.items()])
        begin, end = b'{"dataVersion":%s,"%s":{' % (version.to_bytes(), self._key.encode()), b"}%s}" % others
        return join_between(begin, lines, end)

    def _set(self, name: str, entry: B) -> None:
        unknown = self._unknown.get(name)
        text = entry.to_bytes_with(unknown) if unknown else entry.to_bytes()
        start = dumps(name) + b":"
        self.text_bytes += len(text) - len(self._lines.get(name, start)) + len(start)
        self._entries[name] = entry
        self._lines[name] = start + text

    def _forget(self, name: str) -> None:
        del self._entries[name]
        self.text_bytes -= len(self.text(name))
        del self._lines[name]
        self._unknown.pop(name, None)

    def touch(self) -> None:
        """Increase the data version, because the entries as clients see them have changed."""
        self.version = self.version.next(self._env.wall_ms())
        self._changes += 1


def _writable(keys: Mapping[str, Any]) -> Mapping[str, Any]:
    """``keys`` without those whose values are nested too deeply to be written; these are logged."""
    kept = {}
    for name, value in keys.items():
        try:
            dumps({name: value})
        except (TypeError, ValueError) as error:
            log.warning("stored_key_ignored", name=name[:200], reason=str(error))
        else:
            kept[name] = value
    return kept

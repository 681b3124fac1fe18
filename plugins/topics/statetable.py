"""Entries by name with a data version, kept in one JSON file of RocketMQ's form.

The line of each entry, its name and text, is cached, so that writing a hundred thousand of them is a join. An entry is
replaced and never changed in place. Unknown keys of a file or a master are preserved for a newer broker that uses the
store later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import attrs
import msgspec
import structlog

from gantrymq.remoting.bodies.body import Body
from gantrymq.remoting.bodies.tables import DataVersion
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.fastjson import dumps, loads

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
        self._lines: dict[str, bytes] = {}
        self._unknown: dict[str, Mapping[str, Any]] = {}
        self._beside: Mapping[str, Any] = {}
        self.text_bytes = 0
        """The bytes of all entries' texts together."""
        self.changed = False

    @property
    def entries(self) -> Mapping[str, B]:
        """The entries, not to be changed."""
        return self._entries

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
        self.changed = True
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
        entries = b",".join(self._lines.values())
        beside = b"".join([b",%s:%s" % (dumps(name), dumps(value)) for name, value in self._beside.items()])
        return b'{"dataVersion":%s,"%s":{%s}%s}' % (self.version.to_bytes(), self._key.encode(), entries, beside)

    def save(self) -> None:
        """Write the file if anything changed since it was read or written; OSError if that fails."""
        if self.changed:
            self._env.replace(self.path, self.encode())
            self.changed = False

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
        self.changed = True


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

"""Entries by name with a data version, kept in one JSON file of RocketMQ's form.

Each entry's text is kept beside it, so that writing ten thousand of them is a join. An entry is replaced as a whole and
never changed in place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Generic, TypeVar

import structlog

from gantrymq.remoting.bodies import DataVersion
from gantrymq.remoting.body import Body
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.fastjson import dumps

if TYPE_CHECKING:
    from gantrymq.kernel.env import Env

B = TypeVar("B", bound=Body)

log = structlog.get_logger("gantrymq.topics")


class StateTable(Generic[B]):
    """``path`` holds ``{"dataVersion":…,"<key>":{name:entry}}``; every change takes the next data version."""

    def __init__(self, env: Env, path: str, key: str) -> None:
        self.path = path
        self.version = DataVersion()
        self._env = env
        self._key = key
        self._entries: dict[str, B] = {}
        self._texts: dict[str, bytes] = {}
        self.changed = False

    @property
    def entries(self) -> Mapping[str, B]:
        """The entries, not to be changed."""
        return self._entries

    def take(self, stored: Mapping[str, B], version: DataVersion, validate: Callable[[str], None]) -> None:
        """Start from what the file said. An entry with an illegal name is left out, loudly."""
        self.version = version
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
    ) -> bool:
        """Become a copy of another broker's table; entries that are ``kept`` stay. False: the version is the same.

        It is written at once, as ``SlaveSynchronize`` does: who takes a lost master's place must know what that knew.
        """
        if version == self.version:
            return False
        for name in [name for name in self._entries if name not in entries and not kept(name)]:
            del self._entries[name], self._texts[name]
        self.take(entries, version, validate)
        self.changed = True
        try:
            self.save()
        except OSError as error:
            log.warning("adopted and not written yet", path=self.path, reason=str(error))
        return True

    def put(self, name: str, entry: B) -> bool:
        """Set the entry; returns whether that changed anything."""
        if self._entries.get(name) == entry:
            return False
        self._set(name, entry)
        self.touch()
        return True

    def remove(self, name: str) -> bool:
        """Take the entry out; returns whether it was there."""
        if self._entries.pop(name, None) is None:
            return False
        del self._texts[name]
        self.touch()
        return True

    def encode(self) -> bytes:
        """The file's text, which is the answer to a request for the whole table as well."""
        entries = b",".join([dumps(name) + b":" + text for name, text in self._texts.items()])
        return b'{"dataVersion":%s,"%s":{%s}}' % (self.version.to_bytes(), self._key.encode(), entries)

    def save(self) -> None:
        """Write the file if anything changed since it was read or written; OSError when it cannot be."""
        if self.changed:
            self._env.replace(self.path, self.encode())
            self.changed = False

    def _set(self, name: str, entry: B) -> None:
        self._entries[name] = entry
        self._texts[name] = entry.to_bytes()

    def touch(self) -> None:
        """What others are told of the entries is another thing now: take the next data version."""
        self.version = self.version.next(self._env.wall_ms())
        self.changed = True

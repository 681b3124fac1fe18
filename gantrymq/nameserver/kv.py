"""The KV config: a small table of texts in namespaces that admins keep at a nameserver, kept in a JSON file.

The file is RocketMQ's ``kvConfig.json``: ``{"configTable":{namespace:{key:value}}}``. It is replaced as a whole, by
writing another file beside it, syncing and renaming, so that a crash leaves the old state or the new one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from gantrymq.remoting.bodies.body import Body
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.errors import RemoteFault

ORDER_TOPIC_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"
"""Key: topic, value: "brokerA:4;brokerB:8", how many queues each broker has of an ordered topic."""
ENTRIES_MAX: Final = 10_000
CHARACTERS_MAX: Final = 8 * 1024 * 1024
"""Of all names and values together: every change writes all of them, and an answer must fit into a frame."""


class KVConfigFile(Body):
    """What the file holds (``KVConfigSerializeWrapper``)."""

    config_table: dict[str, dict[str, str]] = {}  # noqa: RUF012 - msgspec copies an empty default


class KVConfig:
    """The table, kept at ``path`` or in memory only. A change is in the file when the call returns.

    Calls that change block on the disk; readers in another thread see the table before or after a change.
    """

    def __init__(self, path: Path | None = None) -> None:
        """Reads ``path`` when it exists; :class:`ValueError` names a file that cannot be understood, OSError is raised
        as it comes."""
        self._path = path
        self._table: dict[str, dict[str, str]] = {}
        if path is not None and path.exists():
            try:
                self._table = KVConfigFile.from_bytes(path.read_bytes()).config_table
            except RemoteFault as error:
                raise ValueError(f"{path}: {error.remark}") from None

    def get(self, namespace: str, key: str) -> str | None:
        """The value, or None."""
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """All of a namespace, or None when it never had an entry."""
        return self._table.get(namespace)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set one value. :class:`RemoteFault` (code 1) when the table is full or cannot be written; nothing is
        changed then."""
        entries = {**self._table.get(namespace, {}), key: value}
        if sum(map(len, self._table.values())) >= ENTRIES_MAX and self.get(namespace, key) is None:
            raise RemoteFault(ResponseCode.SYSTEM_ERROR, f"the KV config has {ENTRIES_MAX} entries, no more are taken")
        table = {**self._table, namespace: entries}
        if _characters(table) > max(CHARACTERS_MAX, _characters(self._table)):
            raise RemoteFault(
                ResponseCode.SYSTEM_ERROR, f"the KV config has {CHARACTERS_MAX} characters, no more are taken"
            )
        self._replace(table)

    def delete(self, namespace: str, key: str) -> None:
        """Remove one value if it is there. Errors as with :meth:`put`."""
        entries = dict(self._table.get(namespace, {}))
        if entries.pop(key, None) is not None:
            self._replace({**self._table, namespace: entries})

    def _replace(self, table: dict[str, dict[str, str]]) -> None:
        if self._path is not None:
            try:
                _write_atomically(self._path, KVConfigFile(table).to_bytes())
            except OSError as error:
                raise RemoteFault(
                    ResponseCode.SYSTEM_ERROR, f"the KV config cannot be written: {error.strerror}"
                ) from None
        self._table = table


def _characters(table: dict[str, dict[str, str]]) -> int:
    return sum(
        len(namespace) + sum(len(key) + len(value) for key, value in entries.items())
        for namespace, entries in table.items()
    )


def _write_atomically(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    other = path.with_name(path.name + ".new")
    with open(other, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(other, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)

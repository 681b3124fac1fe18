"""The KV config: a small table of texts by namespace and key, which administrators set, in a JSON file.

The file is RocketMQ's ``kvConfig.json``: ``{"configTable":{namespace:{key:value}}}``. Each change writes a new file,
flushes it and renames it, so that a crash leaves the old state or the new one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from gantrymq.remoting.bodies.body import Body
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.errors import RemoteFault

ORDER_TOPIC_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"
"""Key: an ordered topic. Value: its number of queues on each broker, such as "brokerA:4;brokerB:8"."""
ENTRIES_MAX: Final = 10_000
CHARACTERS_MAX: Final = 8 * 1024 * 1024
"""The most characters of all names and values: each change writes all of them, and a response must fit into a frame."""


class KVConfigFile(Body):
    """The content of the file (``KVConfigSerializeWrapper``)."""

    config_table: dict[str, dict[str, str]] = {}  # noqa: RUF012 - msgspec copies an empty default


class KVConfig:
    """The table, stored at ``path`` or in memory only. A change is in the file when the call returns.

    Calls that change the table block on the disk. Readers in another thread see the table before or after a change.
    """

    def __init__(self, path: Path | None = None) -> None:
        """Read ``path`` if it exists. :class:`ValueError` names a file that is not valid; raises OSError too."""
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
        """All entries of a namespace, or None if it never had one."""
        return self._table.get(namespace)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set one value. :class:`RemoteFault` (code 1), without a change, if the table is full or cannot be written."""
        entries = {**self._table.get(namespace, {}), key: value}
        if sum(map(len, self._table.values())) >= ENTRIES_MAX and self.get(namespace, key) is None:
            raise RemoteFault(ResponseCode.SYSTEM_ERROR, f"the KV config has {ENTRIES_MAX} entries, which is the limit")
        table = {**self._table, namespace: entries}
        if _characters(table) > max(CHARACTERS_MAX, _characters(self._table)):
            raise RemoteFault(
                ResponseCode.SYSTEM_ERROR, f"the KV config has {CHARACTERS_MAX} characters, which is the limit"
            )
        self._replace(table)

    def delete(self, namespace: str, key: str) -> None:
        """Remove one value if it exists. Errors as of :meth:`put`."""
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

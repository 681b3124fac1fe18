"""The delivered offset of each level: ``delayOffset.json``, as RocketMQ 4.9.7 writes and reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gantrymq.kernel.store.state_file import load_state
from gantrymq.remoting.bodies.offsets import DelayOffsetSerializeWrapper

if TYPE_CHECKING:
    from gantrymq.kernel.env import Env


class Positions:
    """The queue offset of the next message to deliver, by level."""

    def __init__(self, env: Env, path: str) -> None:
        """:class:`StartError` when neither the file nor its ``.bak`` can be read."""
        self._path = path
        stored = load_state(env, path, DelayOffsetSerializeWrapper.from_bytes)
        self._table = dict(stored.offset_table) if stored is not None else {}
        self._adopted = False

    def get(self, level: int) -> int:
        """Return the next offset of ``level``; 0 if it never delivered a message."""
        return self._table.get(level, 0)

    def adopt(self, body: bytes) -> None:
        """Adopt a master's positions, which may be empty. :class:`RemoteFault` for an invalid body."""
        table = {**self._table, **(DelayOffsetSerializeWrapper.from_bytes(body).offset_table if body else {})}
        self._adopted = self._adopted or table != self._table
        self._table = table

    def set_back(self, table: Mapping[int, int]) -> None:
        """Lower each position to that in ``table``, to 0 if it has none."""
        lower = {level: min(position, table.get(level, 0)) for level, position in self._table.items()}
        self._adopted = self._adopted or lower != self._table
        self._table = lower

    def changes(self, table: Mapping[int, int]) -> dict[str, bytes] | None:
        """Return the file's path and content if ``table`` has changed since the last call, else None."""
        table = {**self._table, **table}
        if table == self._table and not self._adopted:
            return None
        self._table = table
        self._adopted = False
        return {self._path: encode_positions(table)}


def encode_positions(table: Mapping[int, int]) -> bytes:
    """Return the file's text, which is also the response to a slave."""
    return DelayOffsetSerializeWrapper(offset_table=dict(sorted(table.items()))).to_bytes()

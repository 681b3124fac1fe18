"""How far each level is delivered: ``delayOffset.json``, as RocketMQ 4.9.7 writes and reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gantrymq.kernel.statefile import load_state
from gantrymq.remoting.bodies import DelayOffsetSerializeWrapper

if TYPE_CHECKING:
    from gantrymq.kernel.env import Env


class Positions:
    """The queue offset of the next message to deliver, by level."""

    def __init__(self, env: Env, path: str) -> None:
        """:class:`StartError` when neither the file nor its ``.bak`` can be read."""
        self._path = path
        stored = load_state(env, path, DelayOffsetSerializeWrapper.from_bytes)
        self._table = dict(stored.offset_table) if stored is not None else {}

    def get(self, level: int) -> int:
        """Where ``level`` goes on; 0 when nothing of it was ever delivered."""
        return self._table.get(level, 0)

    def changes(self, table: Mapping[int, int]) -> dict[str, bytes] | None:
        """The file by its path if ``table`` differs from what was handed over last, else None."""
        table = {**self._table, **table}
        if table == self._table:
            return None
        self._table = table
        return {self._path: DelayOffsetSerializeWrapper(offset_table=dict(sorted(table.items()))).to_bytes()}

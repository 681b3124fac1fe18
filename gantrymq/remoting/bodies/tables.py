"""The version of a table, and a table of texts. Source: RocketMQ 4.9.7 ``DataVersion``, ``KVTable``."""

# ruff: noqa: RUF012 - msgspec copies an empty default for each new struct
from __future__ import annotations

import msgspec

from gantrymq.remoting.bodies.body import Body
from gantrymq.remoting.headers.header import Int64


class DataVersion(Body, frozen=True):  # type: ignore[misc]  # as above
    """Identifies a state of a table: two versions with equal fields mean the same state. ``timestamp`` in ms."""

    counter: Int64 = 0
    timestamp: Int64 = 0
    state_version: Int64 | None = None

    def __post_init__(self) -> None:
        # 4.9.7 does not have this field; 5.3.3 writes 0 for the same state
        if self.state_version == 0:
            msgspec.structs.force_setattr(self, "state_version", None)

    def next(self, now: int) -> DataVersion:
        """The version after a change at ``now`` (ms)."""
        return DataVersion(self.counter + 1, now, self.state_version)


class KVTable(Body):
    """Text to text: responses to 219, 28 and 103."""

    table: dict[str, str] = {}

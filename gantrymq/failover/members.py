"""The members of a broker name, as a watcher stores them beside the lock for its successors.

A nameserver removes a slave as soon as its connection ends. A slave that ends together with its master may have
confirmed messages that no other slave has, so a promotion must know that it existed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs


@attrs.frozen
class Members:
    """``master``: its last known address, empty if there was none. ``slaves``: the ids of the others by address.

    ``floor``: a log that ends before this offset may lack acknowledged messages.
    """

    master: str = ""
    slaves: Mapping[str, int] = attrs.field(factory=dict)
    floor: int = 0

    def to_bytes(self) -> bytes:
        """Encode for the store, as JSON."""
        return json.dumps({"master": self.master, "slaves": dict(self.slaves), "floor": self.floor}).encode()

    @classmethod
    def from_bytes(cls, text: bytes) -> Members:
        """Decode :meth:`to_bytes`; an empty text has no members. ValueError for any other text."""
        if not text:
            return cls()
        try:
            said: Any = json.loads(text)
            slaves = {str(address): int(number) for address, number in said["slaves"].items()}
            return cls(str(said["master"]), slaves, int(said["floor"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not what a watcher has written: {text[:100]!r} ({error!r:.100})") from None

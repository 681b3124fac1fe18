"""What a watcher must remember of a broker name, beside the lock: another watcher goes on with it.

A nameserver forgets a slave as soon as its connection ends. A slave that ends together with its master may have
confirmed what no other slave has, so a promotion must know that it was there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs


@attrs.frozen
class Members:
    """``master``: where it was seen last, empty for never. ``slaves``: the numbers of the others by their addresses.

    ``floor``: a log that ends before this offset lacks something that may have been acknowledged.
    """

    master: str = ""
    slaves: Mapping[str, int] = attrs.field(factory=dict)
    floor: int = 0

    def to_bytes(self) -> bytes:
        """For the store."""
        return json.dumps({"master": self.master, "slaves": dict(self.slaves), "floor": self.floor}).encode()

    @classmethod
    def from_bytes(cls, text: bytes) -> Members:
        """The inverse; nothing yet for an empty text. ValueError for what is none."""
        if not text:
            return cls()
        try:
            said: Any = json.loads(text)
            slaves = {str(address): int(number) for address, number in said["slaves"].items()}
            return cls(str(said["master"]), slaves, int(said["floor"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not what a watcher has written: {text[:100]!r} ({error!r:.100})") from None
